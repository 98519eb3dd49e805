"""Use a policy: roll it out, solve with the best of many rollouts, and the loss that trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.engine import memory, random
from cnf_cli.engine.base import Engine, Tables
from cnf_cli.policies.biased import Biased
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.scaled import Scaled

_ROOM = {"cpu": 1 << 19}
"""Rollouts times nodes that an evaluation holds at once: a decoder step has as many weights for each head.

A CPU's caches like it small; other devices get 32 times as much, about 2 GB.
"""
Price = Callable[[Tensor, Tensor], Tensor]
"""(rows, tours (r, p, t)) -> costs (r, p): what tours of these instances really cost, where the map shown says less."""
SAME = 1e-6
"""Costs this close, relatively, are one tour seen twice (turned round, or begun elsewhere)."""


@runtime_checkable
class Encoder(Protocol):
    """Any policy: a network that turns instances into a decoder's tables."""

    def encode(self, inst: Instances, *, second_order: bool = False, engine: Engine | None = None) -> Tables: ...


@dataclass(frozen=True)
class Solved:
    """The best that m models found for b instances, on the CPU; costs in float64, by the price if one was given."""

    cost: Float[Tensor, "m b"]
    tour: Int[Tensor, "m b t"]
    """The tour with that cost, padded with -1; with a depot it starts and ends there."""
    cost_plain: Float[Tensor, "m b"]
    """The best cost without augmented copies."""
    tour_plain: Int[Tensor, "m b s"]
    """The tour with that cost."""


@dataclass(frozen=True)
class Sampled:
    """What a training step saw, detached."""

    tours: Int[Tensor, "b p t"]
    cost: Float[Tensor, "b p"]
    log_prob: Float[Tensor, "b p"]

    @property
    def best(self) -> Float[Tensor, " b"]:
        """The lowest cost of each instance's rollouts."""
        return self.cost.amin(1)


@torch.no_grad()
def rollout(
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    *,
    seeds: Int[Tensor, " b"] | None = None,
    starts: int | None = None,
) -> tuple[Int[Tensor, "b p t"], Float[Tensor, "b p"]]:
    """(tours, their costs) from all starts: greedy without seeds, else sampled."""
    tours = engine.rollout(policy.encode(inst, engine=engine), problem.world(inst, starts), seeds)
    return tours, problem.cost(inst, tours)


def advantage(cost: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
    """REINFORCE with the rollouts' mean cost as their baseline: the weight of each log-probability."""
    return (cost - cost.mean(1, keepdim=True)) / cost.shape[1]


def reinforce_loss(
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    seeds: Int[Tensor, " b"],
    starts: int | Int[Tensor, " p"] | None = None,
) -> tuple[Float[Tensor, ""], Sampled]:
    """What one plain training step descends: the mean over the instances i of

    loss_i = mean_p (cost_ip - mean_p cost_ip) log p(tour_ip)
    """
    tables, world = policy.encode(inst, engine=engine), problem.world(inst, starts)
    with torch.no_grad():
        tours = engine.rollout(tables, world, seeds)
        cost = problem.cost(inst, tours)
    losses, log_prob = engine.score(tables, world, tours, advantage(cost))
    return losses.mean(), Sampled(tours, cost, log_prob)


@torch.no_grad()
def solve(
    policies: Sequence[Encoder],
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    *,
    augment: int = 8,
    seeds: Int[Tensor, " b"] | None = None,
    chunk: int = 0,
    price: Price | None = None,
) -> Solved:
    """The best tour of every model for every instance, over all starts and augmented copies.

    By `price`, or by the problem's cost of the instances as given: what is chosen by is what is counted in the end.

    chunk: instances per forward pass; 0 bounds memory by the instances' size, if need be two copies at a time. Where
    free memory holds fewer there are fewer; where it does not hold one copy, that is an error before any work.
    Sampled copies draw from seeds of their own: copy a of model m from fold(seed, m * augment + a).
    """
    room = _ROOM.get(inst.device.type, 1 << 24)
    wanted = chunk * augment if chunk else max(2, room // inst.nodes**2)
    rows = memory.rows_that_fit(inst.nodes, wanted, inst.device)
    group = max(1, rows // augment)
    models = []
    for m, policy in enumerate(policies):
        parts = []
        for low in range(0, len(inst), group):
            few = inst[low : low + group]
            own = None if seeds is None else _copies(seeds[low : low + group], m, augment)
            counted = None if price is None else _from(price, low)
            parts.append(_best(policy, problem, few, engine, augment, own, rows, counted))
        models.append([_join(list(piece)) for piece in zip(*parts, strict=True)])
    cost, plain, tour, tour_plain = (_join([model[i][None] for model in models]) for i in range(4))
    if problem.depots:
        tour, tour_plain = _trim(tour), _trim(tour_plain)
    return Solved(cost, tour, plain, tour_plain)


def answer(
    policies: Sequence[Encoder],
    problem: BaseProblem,
    scaled: Scaled,
    engine: Engine,
    device: torch.device,
    *,
    augment: int,
    seeds: Int[Tensor, " b"] | None = None,
    chunk: int = 0,
) -> Solved:
    """What the policies answer on a user's instances, chosen by what a tour costs there; costs in the user's units."""
    price = None if scaled.plain else scaled.cost
    shown = scaled.instances.to(device)
    return solve(policies, problem, shown, engine, augment=augment, seeds=seeds, chunk=chunk, price=price)


def _from(price: Price, low: int) -> Price:
    """The price of instances that are counted from the one at `low`."""
    return lambda rows, tours: price(rows + low, tours)


def _copies(seeds: Int[Tensor, " b"], model: int, augment: int) -> Int[Tensor, " r"]:
    copy = torch.arange(augment, device=seeds.device) + model * augment
    return random.fold(seeds[:, None], copy[None, :]).flatten()


def _best(
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    augment: int,
    seeds: Int[Tensor, " r"] | None,
    rows: int,
    price: Price | None = None,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """(cost, cost without copies, best tour, best tour without copies) of each instance."""
    copies = problem.augment(inst, augment) if augment > 1 else inst
    copy = torch.arange(len(copies)) % augment
    costs, tours = [], []
    for cut in _cuts(len(copies), rows):
        turned = policy.at(copy[cut]) if isinstance(policy, Biased) else policy
        tour, cost = rollout(turned, problem, copies[cut], engine, seeds=None if seeds is None else seeds[cut])
        if price is not None:
            cost = price(torch.arange(cut.start, cut.start + len(tour)) // augment, tour)
        at = _first_best(cost)
        costs.append(cost.gather(1, at[:, None])[:, 0])
        tours.append(tour.gather(1, at[:, None, None].expand(-1, 1, tour.shape[-1]))[:, 0])
    cost, tour = _join(costs).view(len(inst), augment), _join(tours).view(len(inst), augment, -1)
    at = _first_best(cost)
    best = tour.gather(1, at[:, None, None].expand(-1, 1, tour.shape[-1]))
    # Only tours that end at the depot, node 0, differ in length: standing there is free.
    ends = torch.cat([best, tour[:, :1]], 1).clamp_min(0).cpu()
    exact = Instances(**{k: None if v is None else v.cpu().double() for k, v in vars(inst).items() if k != "seed"})
    both = problem.cost(exact, ends) if price is None else price(torch.arange(len(inst)), ends)
    return both[:, 0], both[:, 1], best[:, 0].cpu(), tour[:, 0].cpu()


def _cuts(count: int, size: int) -> Iterator[slice]:
    for low in range(0, count, size):
        yield slice(low, low + size)


def _first_best(cost: Float[Tensor, "b p"]) -> Int[Tensor, " b"]:
    """The first rollout whose cost is the lowest but for rounding: the same one whatever the chunk size."""
    limit = cost.amin(1, keepdim=True) * (1 + SAME)
    return (cost <= limit).int().argmax(1)


def _trim(tour: Int[Tensor, "m b t"]) -> Int[Tensor, "m b s"]:
    """One depot after the last customer, then -1, as short as the longest tour: the same whatever the chunk size."""
    place = torch.arange(tour.shape[-1])
    last = torch.where(tour > 0, place, 0).amax(-1, keepdim=True)
    return tour.masked_fill(place > last + 1, -1)[..., : int(last.max()) + 2]


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenated; tours of different length are padded with -1."""
    if parts[0].is_floating_point():
        return torch.cat(list(parts))
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1]), value=-1) for part in parts])
