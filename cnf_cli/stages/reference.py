"""Reference costs for instances in memory, by a solver that is quick enough to ask while somebody waits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.stages.files import write_atomic
from cnf_cli.stages.job import Job

QUICK = {"tsp": "fast_tsp"}
"""Solvers that answer in milliseconds per instance."""


def reference_costs(problem: BaseProblem, inst: Instances, job: Job) -> Tensor | None:
    """Each instance's cost by the quick solver for its problem, kept in the work folder; None without one."""
    kind = QUICK.get(problem.kind)
    if kind is None or kind not in plugins.kinds("solvers") or not plugins.load("solvers", kind).Solver().available():
        return None
    block = problem.to_block(inst)
    name = hashlib.sha256(b"".join(a.tobytes() for a in (block.xy, block.demand) if a is not None)).hexdigest()[:16]
    kept = job.work / f"reference-{name}.npy"
    if kept.exists():
        return torch.from_numpy(np.load(kept, allow_pickle=False))
    answers = solve_block(problem.kind, block, kind, job)
    if any(cost is None for cost in answers):
        return None
    costs = np.array(answers, dtype=np.float64)
    import io

    buffer = io.BytesIO()
    np.save(buffer, costs)
    write_atomic(kept, buffer.getvalue())
    return torch.from_numpy(costs)


def solve_block(problem: str, block: Any, kind: str, job: Job) -> list[float | None]:
    """The solver's cost for every instance of the block; None where it failed."""
    import os

    from cnf_cli.solvers.base import Answer, Instance
    from cnf_cli.solvers.pool import solve_all

    given = [
        Instance(
            problem,
            xy=None if block.xy is None else block.xy[i],
            matrix=None if block.matrix is None else block.matrix[i],
            demand=None if block.demand is None else block.demand[i],
            capacity=None if block.capacity is None else float(block.capacity[i]),
            rule=block.rule,
        )
        for i in range(len(block))
    ]
    with job.bars.bar(f"reference costs ({kind})", len(given), "instances") as bar:
        found = solve_all(given, kind, plugins.params("solvers", kind)(), jobs=os.cpu_count() or 1, on_done=lambda *_: bar.advance())
    return [answer.cost if isinstance(answer, Answer) else None for answer in found]
