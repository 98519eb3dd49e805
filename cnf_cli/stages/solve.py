"""Solve a user's own files with a policy; costs are recomputed on the original coordinates by the file's own rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.evaluation import solution_files
from cnf_cli.pipeline.job import Artifact, Bars
from cnf_cli.recipe.sections import ProblemSection, RuntimeSection
from cnf_cli.store import Manifest, Store

if TYPE_CHECKING:
    from cnf_cli.formats.item import Item
    from cnf_cli.policies.biased import Rates
    from cnf_cli.training.machine import Setup
    from cnf_cli.training.stored_policies import Ensemble


def solve_files(
    store: Store,
    files: Sequence[Path],
    policy: Manifest | None,
    runtime: RuntimeSection,
    bars: Bars,
    augment: int | None = None,
    write_to: Path | None = None,
    *,
    problem: str | None = None,
    capacity: float | None = None,
    note: Callable[[str], None] | None = None,
    distance_bias: Rates = (),
    force: bool = False,
) -> Iterator[dict[str, Any]]:
    """One row per instance, in the order of the files.

    Without `policy` the one that fits the instance's size best answers, which is said. Without `augment` each is shown
    as many copies as the problem usually has. Solutions in `write_to` replace what is there only by `force`.
    """
    from cnf_cli import plugins
    from cnf_cli.bench.libraries import recognised
    from cnf_cli.formats.dataset import Dataset
    from cnf_cli.formats.read import as_given
    from cnf_cli.formats.sandbox import read_safely
    from cnf_cli.recipe.copies import copies
    from cnf_cli.training.machine import set_up
    from cnf_cli.training.stored_policies import load_models

    found = read_safely(list(files), problem, capacity, order=True)
    if not isinstance(found, Dataset):
        raise DataError(
            "this is a checkpoint, not an instance", at=str(files[0]), hint="`cnf import` takes it into the store"
        )
    tell = note or bars.say
    if "notes" in found.attrs:
        tell(str(found.attrs["notes"]))
    about = plugins.params("problems", found.problem)
    assert issubclass(about, ProblemSection)
    shown = copies(about, about.usual_copies if augment is None else augment)
    items = [recognised(item) for item in as_given(found)]
    files_of = solution_files.planned(write_to, items, force=force)
    chosen = _chosen(store, found.problem, items, policy, tell)
    for line in _far_off(store, items, chosen, 0 if any(distance_bias) else shown):
        tell(line)
    with set_up(runtime) as setup, bars.bar("solving", len(items), "instances") as bar:
        ensembles: dict[str, Ensemble] = {}
        for item, manifest, target in zip(items, chosen, files_of, strict=True):
            if manifest.key not in ensembles:
                ensembles[manifest.key] = load_models(Artifact(store, manifest), setup.device).biased(distance_bias)
                _check(ensembles[manifest.key], manifest, found.problem)
            row = _solve_one(item, ensembles[manifest.key], setup, shown, target)
            yield {**row, "policy": manifest.checks.get("known") or manifest.key}
            bar.advance()


def _check(ensemble: Ensemble, policy: Manifest, problem: str) -> None:
    if ensemble.problem.kind != problem:
        raise ArtifactError(
            f"artifact {policy.key[:12]} is a policy for {ensemble.problem.kind}, the files hold {problem}",
            hint=f"choose one for {problem}: `cnf ls`, `cnf zoo ls`",
        )


def _chosen(
    store: Store, problem: str, items: Sequence[Item], policy: Manifest | None, note: Callable[[str], None]
) -> list[Manifest]:
    """The policy of every item: the given one, or for each size the one that `choice.choose` finds."""
    from cnf_cli.evaluation import policy_choice as choice
    from cnf_cli.stages import zoo

    sizes = [item.nodes - (item.demand is not None) for item in items]
    taken: dict[int, Manifest] = {}
    told: set[str] = set()
    for n in sorted(set(sizes)):
        chosen = choice.Choice(policy, "") if policy else choice.choose(store, problem, n)
        if chosen is None:
            raise choice.no_policy(store, problem, n)
        found = chosen.policy
        taken[n] = zoo.take(store, found) if isinstance(found, str) else found
        if chosen.told and taken[n].key not in told:
            note(chosen.told)
        told.add(taken[n].key)
    return [taken[n] for n in sizes]


def _far_off(store: Store, items: Sequence[Item], chosen: Sequence[Manifest], copies: int) -> Iterator[str]:
    """A line for each policy that has to answer instances far from its size, about the largest of them."""
    from cnf_cli.evaluation.policy_choice import far_off

    largest: dict[str, tuple[int, Manifest]] = {}
    for item, manifest in zip(items, chosen, strict=True):
        n = item.nodes - (item.demand is not None)
        if manifest.key not in largest or n > largest[manifest.key][0]:
            largest[manifest.key] = n, manifest
    for n, manifest in largest.values():
        if line := far_off(store, manifest, n, copies):
            yield line


def _solve_one(item: Item, ensemble: Ensemble, setup: Setup, augment: int, target: Path | None) -> dict[str, Any]:
    from cnf_cli.formats.item import collect
    from cnf_cli.policies.run import answer

    started = time.monotonic()
    block = collect([item]).blocks[0]
    try:
        scaled = ensemble.problem.scaled([block])[0]
    except DataError as error:
        raise DataError(error.message, at=item.at or None, hint=error.hint) from None
    solved = answer(ensemble.policies, ensemble.problem, scaled, setup.engine, setup.device, augment=augment)
    best = int(solved.cost[:, 0].argmin())
    tour = [int(v) for v in solved.tour[best, 0] if v >= 0]
    cost = item.re_cost(tour)
    item.no_proof_is_beaten(cost, False, "the policy")
    known = None if item.cost != item.cost else item.cost
    if target is not None:
        solution_files.write(target, item, tour, cost)
    return {
        "name": item.name,
        "nodes": item.nodes,
        "cost": cost,
        "reference": known,
        "gap_percent": None if not known else 100 * (cost / known - 1),
        "seconds": round(time.monotonic() - started, 3),
        "model": best,
        "file": None if target is None else str(target),
    }
