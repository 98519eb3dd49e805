"""Costs by a reference solver: asked in worker processes, checked, and kept as they come, so that nothing is lost."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cnf_cli.formats.dataset import Block
from cnf_cli.pipeline.job import Job
from cnf_cli.problems.validate import InvalidTour
from cnf_cli.regular_files import add_line
from cnf_cli.solvers.base import Answer, Failure, Instance
from cnf_cli.solvers.pool import Executor, Outcome, solve_all
from cnf_cli.solvers.run import params_of, solver

if TYPE_CHECKING:
    from torch import Tensor

    from cnf_cli.problems.base import BaseProblem

QUICK: dict[str, tuple[str, dict[str, Any], int]] = {
    "tsp": ("fast_tsp", {}, 1000),
    "cvrp": ("hgs", {"iterations": 400}, 50),
    "atsp": ("cpsat", {}, 25),
}
"""Solver, settings and most nodes for which an answer takes well under a second."""
_SAVE_SECONDS = 2.0


@dataclass(frozen=True)
class Ask:
    """Which solver, with which settings, and who does the work."""

    kind: str
    params: dict[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 600.0
    jobs: int = 0
    executor: Executor = "processes"
    address: str | None = None


def reference_costs(problem: BaseProblem, blocks: Sequence[Block], job: Job) -> Tensor | None:
    """Each instance's cost by the quick solver for its problem, kept in the work folder; None without one."""
    import torch

    kind, params, nodes = QUICK.get(problem.kind, ("", {}, 0))
    largest = max(block.nodes for block in blocks) - problem.depots
    if not kind or largest > nodes or not solver(kind).available():
        return None
    found = answers([one for block in blocks for one in instances_of(problem.kind, block)], Ask(kind, params), job)
    if not all(isinstance(answer, Answer) for answer in found):
        return None
    return torch.tensor([answer.cost for answer in found if isinstance(answer, Answer)], dtype=torch.float64)


def instances_of(problem: str, block: Block) -> list[Instance]:
    """The block's instances one by one, as solvers take them."""
    matrix = block.matrix
    return [
        Instance(
            problem,
            # With a matrix, coordinates are for drawing only.
            xy=None if block.xy is None or matrix is not None else block.xy[i],
            matrix=None if matrix is None else matrix[i],
            demand=None if block.demand is None else block.demand[i],
            capacity=None if block.capacity is None else float(block.capacity[i]),
            rule=block.rule,
        )
        for i in range(len(block))
    ]


def answers(given: Sequence[Instance], ask: Ask, job: Job) -> list[Outcome]:
    """One checked answer or failure per instance; what an interrupted run has found already is not asked again."""
    kept = _Kept(job.work / f"answers-{_digest(given, ask)}.jsonl", given)
    left = [i for i in range(len(given)) if i not in kept.found]
    stuck: dict[int, Failure] = {}
    what = f"solving with {ask.kind}"
    with job.bars.bar(what, len(given), "instances", len(kept.found)) as bar:

        def done(at: int, outcome: Outcome) -> None:
            if isinstance(outcome, Answer):
                kept.add(left[at], outcome)
            else:
                stuck[left[at]] = outcome
            bar.advance(1, **{k: v for k, v in (("failed", str(len(stuck))),) if stuck})
            tick()

        def tick() -> None:
            if job.stopping():
                kept.flush()
                job.pause_point()

        try:
            solve_all(
                [given[i] for i in left],
                ask.kind,
                ask.params,
                jobs=ask.jobs,
                timeout_seconds=ask.timeout_seconds,
                on_done=done,
                on_tick=tick,
                executor=ask.executor,
                address=ask.address,
            )
        finally:
            kept.flush()
    return [kept.found[i] if i in kept.found else stuck[i] for i in range(len(given))]


class _Kept:
    """Answers on disk, one JSON line each; a line that was cut off, or whose tour is wrong, is not believed."""

    def __init__(self, path: Path, given: Sequence[Instance]) -> None:
        self.path = path
        self.found: dict[int, Answer] = {}
        self.waiting: list[str] = []
        self.last = time.monotonic()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                entry = _believed(json.loads(line))
                i, tour = int(entry["i"]), tuple(int(v) for v in entry["tour"])
                rest = bool(entry["proved"]), float(entry["seconds"]), str(entry["solver"]), str(entry["note"])
                self.found[i] = Answer(tour, given[i].cost(tour), *rest)
            except (ValueError, KeyError, TypeError, IndexError, InvalidTour):
                continue

    def add(self, i: int, answer: Answer) -> None:
        self.found[i] = answer
        entry = {"i": i, **vars(answer)}
        self.waiting.append(json.dumps({**entry, "sum": _sum(entry)}))
        if time.monotonic() - self.last > _SAVE_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            add_line(self.path, "\n".join(["", *self.waiting]))  # the first newline ends a line that was cut off
        self.waiting, self.last = [], time.monotonic()


_FIELDS = {"i", *(one.name for one in fields(Answer))}


def _believed(entry: dict[str, Any]) -> dict[str, Any]:
    """The answer as it was written; one without a sum is from an older version."""
    told = entry.pop("sum", None)
    # A flipped bit in the name of the sum makes another field of it: that is not a line without one.
    if set(entry) != _FIELDS or (told is not None and told != _sum(entry)):
        raise ValueError("not as it was written")
    return entry


def _sum(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def _digest(given: Sequence[Instance], ask: Ask) -> str:
    """A name for exactly these instances asked of exactly this solver."""
    out = hashlib.sha256(json.dumps([ask.kind, params_of(ask.kind, ask.params)], sort_keys=True, default=str).encode())
    for one in given:
        out.update(f"{one.problem} {one.rule} {one.capacity}".encode())
        for array in (one.xy, one.matrix, one.demand):
            if array is not None:
                out.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return out.hexdigest()[:16]
