"""Run in fresh processes: what training's networks give, compared with the plain policy.

Fresh, because torch.compile cannot trace through the shape checks of the test session, bfloat16 may end a process, and
ranks are processes anyway. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.engine import get_engine
from cnf_cli.engine.random import seeds_from
from cnf_cli.pipeline import ranks
from cnf_cli.policies.run import reinforce_loss
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.training.machine import Accelerated, Setup, network, set_up
from tests.unit.defence_kit import small_problem

POLICIES = {"tsp": "pomo", "cvrp": "pomo", "atsp": "matnet"}


def small(kind: str, **keys: Any) -> tuple[Any, Any]:
    """(a problem, a small policy for it)."""
    problem, module = small_problem(kind, 7), plugins.load("policies", POLICIES[kind])
    params = module.Params(width=16, layers=2, heads=4, feed_forward=32, **keys)
    return problem, module.Policy(params, problem).init(torch.Generator().manual_seed(1))


def gradients(learner: Any, policy: Any, problem: Any, inst: Any, seeds: Tensor) -> dict[str, Tensor]:
    """The gradient of each of the policy's parameters after one backward pass."""
    policy.zero_grad(set_to_none=True)
    loss, _ = reinforce_loss(learner, problem, inst, get_engine("torch"), seeds)
    torch.autograd.backward(loss)
    return {name: p.grad.clone() for name, p in policy.named_parameters()}


def apart(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest difference between two groups of tensors, as a share of the largest number in the second."""
    assert ours.keys() == theirs.keys()
    largest = max(float(t.detach().abs().max()) for t in theirs.values())
    return max(float((ours[k] - theirs[k]).detach().abs().max()) for k in theirs) / largest


def faster(kind: str, backend: str, sizes: list[int], **keys: Any) -> dict[str, Any]:
    """How far an accelerated policy's tables and gradients are from the plain ones, for each batch size."""
    problem, policy = small(kind)
    rng, found = torch.Generator().manual_seed(0), []
    with (
        patch("torch.compile", partial(torch.compile, backend=backend)),
        torch.backends.mkldnn.flags(enabled=keys.get("precision") != "bfloat16"),  # whose bfloat16 can end the process
    ):
        fast = Accelerated(policy, RuntimeSection.model_validate(keys), torch.device("cpu"))
        for size in sizes:
            inst, seeds = problem.sample(size, rng=rng), seeds_from(rng, size)
            ours, theirs = (dict(learner.encode(inst).tensors()) for learner in (fast, policy))
            found.append(
                {
                    "types": sorted({str(table.dtype) for table in ours.values()}),
                    "tables": apart(ours, theirs),
                    "gradients": apart(*(gradients(net, policy, problem, inst, seeds) for net in (fast, policy))),
                }
            )
    counters = torch._dynamo.utils.counters
    return {"found": found, "graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"])}


def shared(kind: str, setup: Setup, runtime: RuntimeSection) -> dict[str, Any]:
    """How far gradients are from the mean of those of all ranks' rows: this rank's with the others, and without."""
    problem, policy = small(kind)
    learner, plain = network(policy, runtime, setup), deepcopy(policy)
    rng, together, alone = torch.Generator().manual_seed(0), [], []
    for size in (8, 8, 4):
        inst, seeds, mine = problem.sample(size, rng=rng), seeds_from(rng, size), setup.mine(size)
        parts = [replace(setup, rank=rank).mine(size) for rank in range(setup.world)]
        each = [gradients(plain, plain, problem, inst[rows], seeds[rows]) for rows in parts]
        mean = {name: torch.stack([part[name] for part in each]).mean(0) for name in each[0]}
        together.append(apart(gradients(learner, policy, problem, inst[mine], seeds[mine]), mean))
        alone.append(apart(each[setup.rank], mean))
    return {"averaged_by": type(learner.ranks).__name__, "together": together, "alone": alone}


def buffers(setup: Setup) -> float:
    """Batch norm's largest statistic after one rank had wrong ones, and had encoded without the others."""
    problem, policy = small("tsp", norm="batch")
    learner, rng = network(policy.train(), RuntimeSection(), setup), torch.Generator().manual_seed(0)
    inst, seeds = problem.sample(4, rng=rng), seeds_from(rng, 4)
    if setup.rank == 1:
        for buffer in policy.buffers():
            buffer.fill_(1000.0)
        with torch.no_grad():
            learner.encode(inst)
    setup.agree(True)  # would never be reached if the line above waited for rank 0
    gradients(learner, policy, problem, inst, seeds)
    return max(float(buffer.max()) for buffer in policy.buffers())


def accelerated_on_a_cpu(policy: Any, runtime: RuntimeSection, device: torch.device) -> Accelerated:
    """What `accelerated` gives on CUDA."""
    return Accelerated(policy, runtime, device)


def several(compiled: bool) -> dict[str, Any]:
    """What one of several ranks finds."""
    with set_up(RuntimeSection(device="cpu", engine="torch")) as setup:
        if compiled:
            with (
                patch("cnf_cli.training.machine.accelerated", accelerated_on_a_cpu),
                patch("torch.compile", partial(torch.compile, backend="aot_eager")),
            ):
                found: dict[str, Any] = {"tsp": shared("tsp", setup, RuntimeSection(compile=True))}
        else:
            found = {kind: shared(kind, setup, RuntimeSection()) for kind in POLICIES}
            found["buffers"] = buffers(setup)
    ranks.leave()
    return {**found, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(several(**given) if "compiled" in given else faster(**given)))
