"""Solve many instances in worker processes: a crash, a hang or a wrong answer costs one instance, not the run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, Literal

from cnf_cli.errors import RecipeError
from cnf_cli.problems.validate import InvalidTour
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Answer, Failure, Instance
from cnf_cli.solvers.process import StartError, Worker
from cnf_cli.solvers.run import default_fallback, params_of, require, solver

Outcome = Answer | Failure
Executor = Literal["processes", "dask", "ray"]
_MOST_BATCH = 32
_TICK_SECONDS = 0.25
_START_SECONDS = 60.0
"""A worker's first import of a solver may take this long on a busy machine; the time limit starts after it."""


def solve_all(
    instances: Sequence[Instance],
    kind: str,
    params: Mapping[str, Any] | Section | None = None,
    *,
    jobs: int = 0,
    timeout_seconds: float = 600.0,
    fallback: Sequence[str] | None = None,
    on_done: Callable[[int, Outcome], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    executor: Executor = "processes",
    address: str | None = None,
) -> list[Outcome]:
    """One checked answer, or the reasons for having none, per instance and in their order.

    `fallback` names the solvers asked in turn when `kind` fails on an instance (None: the installed ones for this
    problem). `jobs` = 0 takes every core. `on_done` hears of each instance as it is finished, in any order; what it
    raises ends the run, as does what `on_tick`, called several times a second while worker processes work, raises.
    `address` is the scheduler of an existing Dask or Ray cluster.
    """
    if not instances:
        return []
    if not timeout_seconds > 0:
        raise RecipeError(f"the time limit is {timeout_seconds:g} s", hint="give a positive number of seconds")
    problem = instances[0].problem
    require(kind, problem)
    given = params_of(kind, params)
    others = default_fallback(problem, kind) if fallback is None else tuple(fallback)
    for other in others:
        solver(other)
    report = on_done or (lambda index, outcome: None)
    if executor != "processes":
        from cnf_cli.solvers.cluster import run_on

        return run_on(executor, address, instances, kind, given, jobs, timeout_seconds, others, report)
    tick = on_tick or (lambda: None)
    return _Run(instances, kind, given, others, timeout_seconds, report, tick).finish(jobs or cores())


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Run:
    """The state of one call: what is left to do, who works on what, what came out."""

    def __init__(
        self,
        instances: Sequence[Instance],
        kind: str,
        params: dict[str, Any],
        fallback: tuple[str, ...],
        timeout: float,
        report: Callable[[int, Outcome], None],
        tick: Callable[[], None],
    ) -> None:
        self.instances, self.timeout, self.report, self.tick = instances, timeout, report, tick
        self.kinds = (kind, *fallback)
        self.params: list[dict[str, Any]] = [params] + [{}] * len(fallback)
        self.todo: deque[tuple[int, int]] = deque((i, 0) for i in range(len(instances)))
        """(instance, attempt): attempt k is made with kinds[k]."""
        self.notes: dict[int, list[str]] = {}
        self.out: list[Outcome | None] = [None] * len(instances)
        self.left = len(instances)
        self.workers: list[Worker] = []

    def finish(self, jobs: int) -> list[Outcome]:
        jobs = min(jobs, len(self.instances))
        try:
            while self.left:
                self._hire(jobs)
                self._listen()
        finally:  # also on Ctrl-C: nothing keeps running
            for worker in self.workers:
                worker.let_go()
            for worker in self.workers:
                worker.kill()
        return [o for o in self.out if o is not None]

    def _hire(self, jobs: int) -> None:
        while self.todo and len(self.workers) < jobs and sum(not w.batch for w in self.workers) < len(self.todo):
            self.workers.append(Worker())
        for worker in self.workers:
            if not worker.batch and self.todo:
                # Many small instances travel together; towards the end one by one, so that no core waits.
                size = max(1, min(_MOST_BATCH, len(self.todo) // (4 * jobs)))
                batch = [self.todo.popleft() for _ in range(size)]
                worker.deadline = time.monotonic() + self.timeout + _START_SECONDS
                worker.give(batch, [(i, self.instances[i], self.kinds[k], self.params[k]) for i, k in batch])

    def _listen(self) -> None:
        soonest = min(w.deadline for w in self.workers)
        self.tick()
        heard = wait([w.replies for w in self.workers], min(_TICK_SECONDS, max(0.0, soonest - time.monotonic())))
        for worker in list(self.workers):
            if worker.replies in heard:
                self._hear(worker)
            elif worker.batch and time.monotonic() >= worker.deadline:
                self._lose(worker, f"was stopped after {self.timeout:g} s")

    def _hear(self, worker: Worker) -> None:
        try:
            message = worker.receive()
        except (EOFError, OSError, ValueError) as error:
            if not worker.batch:
                worker.kill()
                self.workers.remove(worker)
                return
            self._lose(worker, worker.obituary() if isinstance(error, EOFError | OSError) else "sent a garbled answer")
            return
        if "began" in message:
            worker.deadline = time.monotonic() + self.timeout
        if "index" not in message:
            return
        index, attempt = worker.batch.popleft()
        worker.deadline = time.monotonic() + self.timeout + _START_SECONDS
        if "answer" in message:
            self._accept(index, attempt, message["answer"])
        else:
            self._fail(index, attempt, str(message.get("error")), final=bool(message.get("final")))

    def _lose(self, worker: Worker, how: str) -> None:
        """The worker is gone: its current instance is to blame, the rest of its batch goes back."""
        worker.kill()
        self.workers.remove(worker)
        if not worker.ready and how.startswith("crashed"):
            raise StartError(
                f"a solver's worker process {how} before it started", hint="`cnf doctor` checks the installation"
            )
        index, attempt = worker.batch.popleft()
        self.todo.extendleft(reversed(worker.batch))
        self._fail(index, attempt, f"{self.kinds[attempt]} {how}")

    def _accept(self, index: int, attempt: int, answer: dict[str, Any]) -> None:
        try:
            # Judged again on this side: the library that found the tour shared the worker's memory.
            tour = tuple(int(node) for node in answer["tour"])
            cost = self.instances[index].cost(tour)
        except (InvalidTour, TypeError, ValueError, KeyError) as error:
            self._fail(index, attempt, f"{self.kinds[attempt]} returned an infeasible tour: {error}")
            return
        notes = [*self.notes.get(index, []), *([answer["note"]] if answer["note"] else [])]
        if attempt:
            notes.insert(0, f"fallback to {self.kinds[attempt]}")
        proved, seconds = bool(answer["proved"]), float(answer["seconds"])
        self._finish(index, Answer(tour, cost, proved, seconds, self.kinds[attempt], "; ".join(notes)))

    def _fail(self, index: int, attempt: int, why: str, final: bool = False) -> None:
        self.notes.setdefault(index, []).append(why)
        if final or attempt + 1 == len(self.kinds):
            self._finish(index, Failure(self.kinds[0], "; ".join(self.notes[index])))
        else:
            self.todo.append((index, attempt + 1))

    def _finish(self, index: int, outcome: Outcome) -> None:
        self.out[index] = outcome
        self.left -= 1
        self.report(index, outcome)
