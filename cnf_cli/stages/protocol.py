"""What is measured on what, and how: everything about an evaluation that must be equal for two to be comparable."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cnf_cli.recipe.sections import Section, Seed

Normalise = Literal["auto", "fit", "published"]


class SetEntry(Section):
    """One set of instances."""

    name: str
    only: int = Field(-1, description="the one policy this set was made against; -1 = every method is measured on it")


class ProtocolSection(Section):
    """How hard a policy may try, and what it is tried on."""

    sets: tuple[SetEntry, ...]
    policies: tuple[str, ...] = ()
    solvers: tuple[str, ...] = ()
    augment: int = Field(8, ge=1, le=128, description="symmetric copies per instance")
    decode: Literal["greedy", "sample"] = "greedy"
    normalise: Normalise = Field("auto", description="how coordinates are brought to the unit square")
    seed: Seed = 4321


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


def _names(protocol: dict[str, Any]) -> str:
    return ", ".join(entry["name"] for entry in protocol["sets"])
