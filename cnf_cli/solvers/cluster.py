"""Fan out over machines through an existing engine, Dask or Ray; each task still solves in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cnf_cli.errors import MissingDependency, RecipeError
from cnf_cli.solvers.base import Answer, Failure, Instance

Outcome = Answer | Failure
Work = tuple[list[Instance], str, dict[str, Any], float, tuple[str, ...]]


def run_on(
    executor: str,
    address: str | None,
    instances: Sequence[Instance],
    kind: str,
    params: dict[str, Any],
    jobs: int,
    timeout: float,
    fallback: tuple[str, ...],
    report: Callable[[int, Outcome], None],
) -> list[Outcome]:
    """As `solve_all`, with one task per batch on a cluster at `address`, or on a local one of `jobs` workers."""
    from cnf_cli.solvers.pool import cores

    engines = {"dask": _dask, "ray": _ray}
    if executor not in engines:
        raise RecipeError(f"no executor '{executor}'", hint="one of processes, dask, ray")
    workers = jobs or cores()
    size = max(1, min(64, len(instances) // (4 * workers)))
    starts = list(range(0, len(instances), size))
    work: list[Work] = [(list(instances[s : s + size]), kind, params, timeout, fallback) for s in starts]
    out: list[Outcome | None] = [None] * len(instances)
    for number, outcomes in engines[executor](address, workers, work):
        for index, outcome in enumerate(outcomes, starts[number]):
            out[index] = outcome
            report(index, outcome)
    return [o for o in out if o is not None]


def _solve_batch(work: Work) -> list[Outcome]:
    """Runs on the cluster's machine: a child process keeps a crash away from the cluster's own worker."""
    from cnf_cli.solvers.pool import solve_all

    instances, kind, params, timeout, fallback = work
    return solve_all(instances, kind, params, jobs=1, timeout_seconds=timeout, fallback=fallback)


def _lost(work: Work, error: BaseException) -> list[Outcome]:
    return [Failure(work[1], f"the cluster lost the task: {error}"[:500]) for _ in work[0]]


def _dask(address: str | None, workers: int, work: list[Work]) -> Iterator[tuple[int, list[Outcome]]]:
    try:
        from dask.distributed import Client, as_completed
    except ImportError as error:
        raise MissingDependency("dask.distributed is not installed", hint='pip install "cnf-cli[dask]"') from error
    here = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with Client(address) if address else Client(**here) as client:
        futures = {client.submit(_solve_batch, w, pure=False): k for k, w in enumerate(work)}
        try:
            for future in as_completed(list(futures)):
                number = futures[future]
                lost = future.exception() if future.status == "error" else None
                yield number, future.result() if lost is None else _lost(work[number], lost)
        finally:
            client.cancel(list(futures), force=True)


def _ray(address: str | None, workers: int, work: list[Work]) -> Iterator[tuple[int, list[Outcome]]]:
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("ray is not installed", hint='pip install "cnf-cli[ray]"') from error
    started = not ray.is_initialized()
    if started:
        local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        ray.init(**({"address": address} if address else local), log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(num_cpus=1)(_solve_batch)
        pending = {remote.remote(w): k for k, w in enumerate(work)}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1)
            number = pending.pop(done[0])
            try:
                outcomes = ray.get(done[0])
            except ray.exceptions.RayError as error:
                outcomes = _lost(work[number], error)
            yield number, outcomes
    finally:
        if started:
            ray.shutdown()
