"""What is measured on what, and how: everything about an evaluation that must be equal for two to be comparable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from cnf_cli.recipe.sections import DistanceBias, Normalise, Section, Seed

if TYPE_CHECKING:
    from cnf_cli.store import Manifest


class SetEntry(Section):
    """One set of instances."""

    name: str
    only: int = Field(-1, description="the one policy this set was made against; -1 = every method is measured on it")


class ProtocolSection(Section):
    """How hard a policy may try, and what it is tried on."""

    added: ClassVar[tuple[str, ...]] = ("distance_bias",)
    sets: tuple[SetEntry, ...]
    policies: tuple[str, ...] = ()
    solvers: tuple[str, ...] = ()
    augment: int = Field(8, ge=1, le=128, description="symmetric copies per instance")
    decode: Literal["greedy", "sample"] = "greedy"
    distance_bias: DistanceBias = Field((), description="how much nearer nodes are preferred than the networks say")
    normalise: Normalise = Field("auto", description="how coordinates are brought to the unit square")
    seed: Seed = 4321


def told_bias(rates: tuple[float, ...] | str) -> str:
    """What a policy's name in tables says of a bias at decoding."""
    told = rates if isinstance(rates, str) else ", ".join(f"{rate:g}" for rate in rates)
    return f" (distance bias {told})" if told else ""


def unequal(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """In what two protocols, as plain values, differ so that their numbers must not be compared."""
    keys = ("problem", "augment", "decode", "normalise")
    found = [f"{key}: {a.get(key)} and {b.get(key)}" for key in keys if a.get(key) != b.get(key)]
    theirs = {entry["name"]: entry for entry in b["sets"]}
    common = [entry for entry in a["sets"] if entry["name"] in theirs]
    if not common:
        found.append(f"sets: {_names(a)} and {_names(b)}")
    for entry in common:
        other = theirs[entry["name"]]
        if entry["only"] >= 0 and other["only"] >= 0:
            continue  # made against the method itself: never the same instances, and never paired
        for key, what in (("instances", "instances"), ("reference", "reference costs")):
            if entry[key] != other[key]:
                found.append(f"{entry['name']}: other {what} ({entry[key][:12]} and {other[key][:12]})")
    return found


@dataclass
class Roll:
    """What methods are called over several evaluations: a policy is one by its content, whatever it is measured beside.

    A solver is one by its name where its answers are the same.
    """

    called: dict[str, str] = field(default_factory=dict)
    """Content -> name."""
    met: dict[tuple[str, str], str] = field(default_factory=dict)
    """(set, name) -> what was answered there."""

    def enter(self, manifest: Manifest, protocol: dict[str, Any]) -> dict[tuple[str, str], tuple[str, bool]]:
        """(set, method) of one evaluation -> (its name over all, whether an earlier evaluation has it on that set)."""
        own: dict[tuple[str, str], tuple[str, bool]] = {}
        before, tag, policies = set(self.met), manifest.key[:6], protocol["policies"]
        for s, entry in enumerate(protocol["sets"]):
            for k, method in enumerate([*policies, *protocol["solvers"]]):
                solver = k >= len(policies)
                if entry["only"] not in ((-1,) if solver else (-1, k)):
                    continue  # made against another method
                source = manifest.inputs.get(f"solver-{k - len(policies)}-{s}" if solver else f"policy-{k}")
                digest = source.digest if source else f"{manifest.key} {k}"
                digest += "" if solver else told_bias(protocol.get("distance_bias", ()))  # biased, it is another
                name = self._name(method, f"solver {method}" if solver else digest, tag)
                answered = f"{digest} {entry['instances']}"
                if self.met.setdefault((entry["name"], name), answered) != answered:
                    name = f"{name} [{tag}]"
                    self.met[entry["name"], name] = answered
                own[entry["name"], method] = name, (entry["name"], name) in before
        return own

    def _name(self, method: str, content: str, tag: str) -> str:
        if content not in self.called:
            taken = method in self.called.values()
            self.called[content] = f"{method} [{tag}]" if taken else method
        return self.called[content]


def _names(protocol: dict[str, Any]) -> str:
    return ", ".join(entry["name"] for entry in protocol["sets"])
