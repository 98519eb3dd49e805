"""What every attack takes and gives back, and how far an adversarial instance is from its clean one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cnf_cli.errors import RecipeError
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.instances import Instances

MOVED = 1e-6
"""A node has moved when it lies farther than this from its clean place: above float32 rounding, below anything real."""


@dataclass(frozen=True)
class Attacked:
    """Adversarial instances in the order of the clean ones, and what is known about each."""

    instances: Instances
    stats: dict[str, Float[Tensor, " b"]]
    """alpha, moved_mean, moved_max (map widths), nodes_moved (share), demand_changed (units, mean), zero_gradient,
    nonfinite_gradient, projected (0 or 1); cost_before, cost_after and hardness where the attack knows them."""
    best: Int[Tensor, " b"] | None = None
    """The policy attacked at the last step, for each instance."""
    clean_cost: Float[Tensor, "b m"] | None = None
    """Each policy's best cost over its starts on the clean instances, from the attack's own first rollouts."""


@runtime_checkable
class Attack(Protocol):
    """One policy: the local attack. Several: the global one, where each step attacks an instance's best policy."""

    def __init__(self, params: Any, problem: Any, engine: Any) -> None: ...

    def draw(self, count: int, rng: torch.Generator) -> Float[Tensor, " b"]:
        """Step sizes for `count` instances: pass slices of them to `__call__` to attack a set in parts."""

    def __call__(
        self,
        policies: Sequence[Encoder],
        clean: Instances,
        *,
        rng: torch.Generator,
        step: Float[Tensor, " b"] | None = None,
    ) -> Attacked: ...


def named(wanted: Sequence[str], problem: Any) -> tuple[str, ...]:
    """The problem's own names of the wanted attributes: "xy" and "customers" are one, the nodes' places."""
    has = tuple(problem.movable)
    places = next((name for name in ("xy", "customers") if name in has), None)
    if places is None:
        raise RecipeError(
            f"this attack moves coordinates, and {problem.kind} has none",
            hint="`cnf list attacks` says what each attack changes",
        )
    names = tuple(dict.fromkeys(places if name in ("xy", "customers") else name for name in wanted))
    for name in names:
        if name not in has:
            raise RecipeError(
                f"{problem.kind} has no '{name}' to attack; it has {', '.join(has)}", hint="`cnf list attacks`"
            )
    return names


def measure(clean: Instances, attacked: Instances) -> dict[str, Float[Tensor, " b"]]:
    """How far each adversarial instance lies from its clean one; without places, how far a node's costs changed."""
    moved = _zeros(clean)
    if clean.xy is not None and attacked.xy is not None:
        moved = (attacked.xy.double() - clean.xy.double()).norm(dim=-1)
    elif clean.matrix is not None and attacked.matrix is not None:
        moved = (attacked.matrix.double() - clean.matrix.double()).abs().amax(-1)
    units = _zeros(clean)
    if clean.demand is not None and attacked.demand is not None:
        units = (attacked.demand.double() - clean.demand.double()).abs()
        if clean.capacity is not None:
            units = units * clean.capacity.double()[:, None]
    changed = (moved > MOVED) | (units > MOVED)
    served = max(1, clean.nodes - (clean.demand is not None))
    return {
        "moved_mean": moved.mean(-1).float(),
        "moved_max": moved.amax(-1).float(),
        "nodes_moved": changed.double().mean(-1).float(),
        "demand_changed": (units.sum(-1) / served).float(),
    }


def _zeros(inst: Instances) -> Tensor:
    return torch.zeros(len(inst), inst.nodes, dtype=torch.float64, device=inst.device)


def checks(stats: Mapping[str, Float[Tensor, " b"]]) -> dict[str, Any]:
    """Health of an attacked set as plain numbers, with a warning for each number that should not be trusted."""
    shares = {name: _mean(stats, name) for name in ("zero_gradient", "nonfinite_gradient", "projected", "nodes_moved")}
    out: dict[str, Any] = {"count": len(next(iter(stats.values()), ())), **{f"{k}_share": v for k, v in shares.items()}}
    out |= {"moved_mean": _mean(stats, "moved_mean"), "demand_changed_mean": _mean(stats, "demand_changed")}
    far = stats.get("moved_max")
    out["moved_max"] = float(far.max()) if far is not None and len(far) else 0.0
    if "cost_before" in stats and "cost_after" in stats:
        before = stats["cost_before"].double().clamp_min(1e-12)
        out["cost_ratio_mean"] = float((stats["cost_after"].double() / before).mean()) if len(before) else 1.0
    out["warnings"] = _warnings(out)
    return out


def _mean(stats: Mapping[str, Tensor], name: str) -> float:
    values = stats.get(name)
    return float(values.double().mean()) if values is not None and len(values) else 0.0


def _warnings(found: Mapping[str, Any]) -> list[str]:
    warnings = []
    if found["zero_gradient_share"] > 0.05:
        warnings.append(
            f"{found['zero_gradient_share']:.0%} of the instances had a zero gradient: "
            "the attack did nothing there, so the policy looks more robust than it is"
        )
    if found["nonfinite_gradient_share"] > 0:
        warnings.append(
            f"{found['nonfinite_gradient_share']:.1%} of the instances had a non-finite gradient, "
            "set to zero: look for duplicate nodes or a diverged policy"
        )
    if found["moved_mean"] > 0.3:
        warnings.append(
            f"nodes moved {found['moved_mean']:.2f} map widths on average: the adversarial map has little to do "
            "with the clean one, so this measures another distribution rather than a perturbation"
        )
    if found["count"] and found["moved_max"] <= MOVED and found["demand_changed_mean"] <= MOVED:
        warnings.append("nothing changed: the adversarial instances are the clean ones")
    return warnings


@contextmanager
def frozen(policies: Sequence[Any]) -> Iterator[None]:
    """Evaluation mode without gradients of weights inside, the policies' own modes again afterwards."""
    modules = [policy for policy in policies if isinstance(policy, nn.Module)]
    was = [(policy, policy.training) for policy in modules]
    learning = [weight for policy in modules for weight in policy.parameters() if weight.requires_grad]
    try:
        for policy in modules:
            policy.eval()
        for weight in learning:
            weight.requires_grad_(False)
        yield
    finally:
        for policy, training in was:
            policy.train(training)
        for weight in learning:
            weight.requires_grad_()
