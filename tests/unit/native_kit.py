"""Tables, worlds and comparisons for the tests of the native engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.engine import native
from cnf_cli.engine import torch as reference
from cnf_cli.engine.base import Tables, World
from cnf_cli.formats.legacy import load_checkpoint
from cnf_cli.policies.pomo import Params, Policy

needs_native = pytest.mark.skipif(not native.available(), reason=f"the extension is not built: {native.why_not()}")
TIE = 1e-5


def random_case(
    b: int,
    n: int,
    *,
    d: int = 128,
    heads: int = 8,
    depot: bool = False,
    seed: int = 0,
    scale: float = 0.3,
    biased: bool = False,
    candidates: int = 0,
) -> tuple[Tables, World]:
    """Tables of random numbers; `scale` widens the queries and so the attention scores. n counts the depot.

    `biased` tables prefer some moves to others, and their attention falls off with random distances. With
    `candidates` moves go to so many of the nearest nodes, by an order that is random as well.
    """
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    rows = {name: draw(b, n, d) for name in ("last", "key", "value", "pointer")}
    rows["last"] *= scale
    extra = {"load": draw(d)} if depot else {"first": draw(b, n, d) * scale}
    if biased:
        extra |= {"near": draw(b, n, n), "space": draw(b, n, n).abs(), "fade": 1 + draw(heads)}
    tables = Tables(**rows, bias=draw(b, n), heads=heads, clip=10.0, **extra)
    if candidates:
        tables = replace(tables, nearest=draw(b, n, n).argsort(-1), candidates=candidates)
    if not depot:
        return tables, World(torch.arange(n))
    demand = torch.randint(1, 10, (b, n), generator=rng) / 30
    demand[:, 0] = 0
    return tables, World(torch.arange(1, n), demand)


def policy_case(kind: str, b: int, n: int, *, width: int = 128, heads: int = 8, seed: int = 0) -> tuple[Tables, World]:
    """Tables of a fresh network on uniform instances of n customers or cities."""
    module = plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=n))
    rng = torch.Generator().manual_seed(seed)
    policy = Policy(Params(width=width, heads=heads), problem).init(rng)
    inst = problem.sample(b, rng=rng)
    with torch.no_grad():
        return policy.encode(inst), problem.world(inst)


def trained_case(shared: Path, kind: str, b: int, n: int, seed: int) -> tuple[Tables, World]:
    """Tables of a published network on uniform instances; skips where its weights are not there."""
    path = shared / "weights" / f"amdkd-pomo-{kind}{n}.pt"
    if not path.is_file():
        pytest.skip("the public weights are not there (CNF_SHARED)")
    found, module = load_checkpoint(path), plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=n))
    policy = Policy(Params(**found.policy), problem)
    policy.load_state_dict(found.models[0])
    inst = problem.sample(b, rng=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return policy.encode(inst), problem.world(inst)


def leaves(tables: Tables) -> tuple[Tables, dict[str, Tensor]]:
    """The same tables as fresh leaves that collect gradients."""
    named = {name: x.detach().clone().requires_grad_() for name, x in tables.tensors()}
    return tables.with_(**named), named


def one(tables: Tables, world: World, i: int) -> tuple[Tables, World]:
    """Instance i on its own."""
    rows = {name: x if x.ndim == 1 else x[i : i + 1] for name, x in tables.tensors()}
    if tables.nearest is not None:
        rows["nearest"] = tables.nearest[i : i + 1]
    return tables.with_(**rows), World(world.starts, None if world.demand is None else world.demand[i : i + 1])


@torch.no_grad()
def differences(tables: Tables, world: World, ours: Tensor, theirs: Tensor) -> list[float]:
    """For each rollout whose tours differ: by how much the two moves' scores differ where they first part."""
    longest = max(ours.shape[-1], theirs.shape[-1])
    ours, theirs = (torch.nn.functional.pad(x, (0, longest - x.shape[-1])) for x in (ours, theirs))
    gaps = []
    for i, p in (ours != theirs).any(-1).nonzero().tolist():
        t = int((ours[i, p] != theirs[i, p]).nonzero()[0])
        few, rules = one(tables, world, i)
        rules = World(world.starts[p : p + 1], rules.demand)
        state, heads = reference.State(few, rules), reference._split(few)
        for step in range(len(state.forced), t):
            state.move(theirs[i : i + 1, p : p + 1, step])
        score = heads.scores(state.place, state.allowed())[0, 0]
        gaps.append(float((score[ours[i, p, t]] - score[theirs[i, p, t]]).abs()))
    return gaps


def relative(a: Tensor, b: Tensor) -> float:
    """Distance of a from b in units of b's length."""
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))
