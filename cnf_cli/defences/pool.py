"""The pool one CNF step learns from: clean, local and global adversarial instances, and every model's cost on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.attacks.base import Attack
from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences.base import BaseDefence, Metrics, Model, attack_health
from cnf_cli.defences.routing import CLEAN, GLOBAL, LOCAL, distinct
from cnf_cli.problems.instances import Instances, concatenate


@dataclass(frozen=True)
class Pool:
    """N rows: b clean, m*b local (model by model) and, with the global attack, b global instances."""

    instances: Instances
    kind: Int[Tensor, " N"]
    maker: Int[Tensor, " N"]
    """The model whose local attack made the row; -1 for clean and global rows."""
    source: Int[Tensor, " N"]
    """The row that holds the very same instance: itself, or the local row that a global row was copied from."""
    clean_cost: Float[Tensor, "b m"] | None = None
    """What the local attacks' own rollouts cost on the clean rows: R there, at no extra cost."""
    health: Metrics = field(default_factory=dict)
    """What the local attacks say about themselves."""

    def __len__(self) -> int:
        return len(self.kind)


def make_pool(
    attack: Attack,
    models: Sequence[Model],
    clean: Instances,
    rng: torch.Generator,
    *,
    global_attack: bool = True,
    copy_global: bool = False,
) -> Pool:
    """The clean batch and its adversarial instances.

    `copy_global` takes the global instances of a one-step attack from the local ones: attacking the model that was
    best on the clean instance is what that model's local attack has just done.
    """
    b, m, device = len(clean), len(models), clean.device
    step = attack.draw(b, rng)  # one draw for the whole step: local and global attacks are equally strong
    local = [attack([model], clean, rng=rng, step=step) for model in models]
    seen = [one.clean_cost for one in local if one.clean_cost is not None]
    known = torch.cat(seen, 1) if len(seen) == m else None
    parts = [clean, *(one.instances for one in local)]
    row = torch.arange(b, device=device)
    kind = [torch.full((b,), CLEAN, device=device), torch.full((m * b,), LOCAL, device=device)]
    maker = [row.new_full((b,), -1), torch.arange(m, device=device).repeat_interleave(b)]
    source = [row, b + torch.arange(m * b, device=device)]
    if global_attack:
        kind.append(torch.full((b,), GLOBAL, device=device))
        maker.append(row.new_full((b,), -1))
        if copy_global and known is not None and one_step(attack):
            # Of equals the first, whatever `train.ties` says: a copy is the very row that the attack would make.
            copied = b + known.argmin(1) * b + row
            parts.append(concatenate(parts)[copied])
            source.append(copied)
        else:
            parts.append(attack(models, clean, rng=rng, step=step).instances)
            source.append((m + 1) * b + row)
    if getattr(attack, "objective", "") == "greedy":
        known = None  # R is the cost of sampled tours
    rows = (torch.cat(kind), torch.cat(maker), torch.cat(source))
    return Pool(concatenate(parts).detach(), *rows, known, attack_health(local))


def one_step(attack: Attack) -> bool:
    """True when the attack's first step is its last, so that a global attack never changes its target."""
    return getattr(getattr(attack, "params", None), "steps", None) == 1


def cost_matrix(
    defence: BaseDefence,
    models: Sequence[Model],
    pool: Pool,
    seeds: Int[Tensor, "N m"],
    rows: Int[Tensor, " k"] | None = None,
    *,
    use_known: bool = False,
) -> tuple[Float[Tensor, "N m"], list[Rolled]]:
    """(R: the lowest cost of p sampled tours of each model on each row; the tours of the rows that were rolled out).

    Only `rows` are filled in, all by default; the rest is NaN. A copied row is rolled out once, as its source, and
    `use_known` takes clean rows from the attack. The seed of an entry is its source's, so which entries are asked for
    changes none of them. The tours are listed per model, for the rows `rolled_rows` names.
    """
    wanted = torch.arange(len(pool), device=pool.kind.device) if rows is None else rows
    own = rolled_rows(pool, wanted, use_known)
    cost = torch.full((len(pool), len(models)), torch.nan, device=pool.kind.device)
    if use_known and pool.clean_cost is not None:
        cost[: len(pool.clean_cost)] = pool.clean_cost
    inst, rolled = pool.instances[own], []
    for j, model in enumerate(models):
        if len(own):
            rolled.append(defence.roll(model, inst, seeds[own, j]))
            cost[own, j] = rolled[-1].best
    filled = torch.full_like(cost, torch.nan)
    filled[wanted] = cost[pool.source[wanted]]
    return filled, rolled


def rolled_rows(pool: Pool, rows: Int[Tensor, " k"], use_known: bool) -> Int[Tensor, " u"]:
    """The rows that must be rolled out, ascending, to know the cost on `rows`."""
    own = distinct(pool.source[rows])
    if use_known and pool.clean_cost is not None:
        own = own[own >= len(pool.clean_cost)]
    return own
