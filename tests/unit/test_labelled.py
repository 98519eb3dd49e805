"""Training on stored labels: read in symmetric copies, named in a recipe, mixed slowly with own rollouts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.errors import ArtifactError, DataError, RecipeError
from cnf_cli.pipeline.job import Artifact, Job, Silent
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import data, label, pretrain
from cnf_cli.store import Manifest, Store
from cnf_cli.training import loop as training
from cnf_cli.training.machine import Setup, set_up
from cnf_cli.training.stored_policies import make_problem
from cnf_cli.training.stored_tours import Labelled
from tests.unit.test_cheap_training import RUNTIME, CutOff, Cutter, metrics, recipe, trained


def labelled(
    store: Path, kind: str = "tsp", n: int = 6, count: int = 32, seed: int = 5, alias: str = "maps"
) -> Manifest:
    """Fresh instances with a quick solver's tours, under that alias."""
    runner = Runner(Store(store), RUNTIME)
    drawn = data.task(finish("d", {"problem": {"kind": kind, "n": n}}, {}).problem, count, seed)
    made = runner.run(label.task(drawn, "descent"))
    Store(store).tag(alias, made.key)
    return made


def lessons(store: Path, *names: str, kind: str = "tsp", **keys: Any) -> Labelled:
    made = recipe(kind, labels=list(names), **keys)
    inputs = {f"labels-{k}": _artifact(store, name) for k, name in enumerate(names)}
    job = Job(made.sections("problem", "pretrain"), inputs, store / "w", RuntimeSection(), Silent())
    with set_up(RUNTIME) as setup:
        return Labelled(job, make_problem(made.problem), Setup(setup.device, setup.engine))


def _artifact(store: Path, name: str) -> Artifact:
    opened = Store(store)
    found = opened.find(opened.resolve(name))
    assert found is not None
    return Artifact(opened, found)


@pytest.mark.parametrize("kind", ["tsp", "cvrp", "atsp"])
def test_a_lesson_is_the_label_from_every_start(kind: str, tmp_path: Path) -> None:
    """Every tour that is to be learned costs what the solver's did, begins at its start, and an epoch has each
    instance once; the next epoch has them in another order."""
    labelled(tmp_path, kind)
    made = lessons(tmp_path, "maps", kind=kind)
    known = made.parts[0]
    problem = made.problem
    exact = problem.cost(known.inst, known.tours.clamp_min(0)[:, None])[:, 0]
    seen: list[list[float]] = []
    for epoch in range(2):
        seen.append([])
        for step in range(2):
            lesson = made.lesson(2 * epoch + step)
            cost = problem.cost(lesson.inst, lesson.tours)
            first = lesson.tours[..., problem.depots]
            assert torch.equal(first, problem.world(lesson.inst).starts.expand_as(first))
            assert lesson.good.any(1).all()
            for row, good in zip(cost, lesson.good, strict=True):
                assert torch.allclose(row[good], row[good][:1])
                seen[-1].append(float(row[good][0]))
    assert torch.allclose(torch.tensor(seen[0]).sort().values, exact.sort().values, rtol=1e-5)
    assert torch.allclose(torch.tensor(seen[1]).sort().values, exact.sort().values, rtol=1e-5)
    assert seen[0] != seen[1]


def test_copies_are_symmetric_and_differ(tmp_path: Path) -> None:
    """An instance comes back as another of its eight copies, not always as it was stored."""
    labelled(tmp_path, count=16)
    made = lessons(tmp_path, "maps")
    first = [made.lesson(step).inst.xy for step in range(6)]
    seen = {tuple(sorted(round(float(x[..., 0].sum()), 3) for x in xy)) for xy in first if xy is not None}
    assert len(seen) > 1


def test_sizes_are_mixed_batch_by_batch(tmp_path: Path) -> None:
    """With data sets of two sizes, an epoch has batches of both, as many as each has instances."""
    labelled(tmp_path, n=6, count=32, alias="small")
    labelled(tmp_path, n=9, count=64, alias="large")
    made = lessons(tmp_path, "small", "large")
    assert Counter(made.lesson(step).inst.nodes for step in range(6)) == {6: 2, 9: 4}


def test_the_key_knows_labels_by_their_content(tmp_path: Path) -> None:
    """The same labels under another name make the same result, other labels another; the name is not in the key."""
    labelled(tmp_path)
    made = labelled(tmp_path, alias="again")
    labelled(tmp_path, seed=6, alias="other")
    keys = [trained(tmp_path, recipe(labels=name)).key for name in ("maps", "again", made.key[:12], "other")]
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]
    assert "labels" not in recipe(labels="maps").pretrain.identity()
    assert pretrain.task(recipe()).key({}) == pretrain.task(recipe(labels=[])).key({})


def test_labels_that_are_none_are_refused(tmp_path: Path) -> None:
    """An unknown name, a set without tours or of another problem, a warm start beside labels: each says so."""
    runner = Runner(Store(tmp_path), RUNTIME)
    bare = runner.run(data.task(recipe().problem, 8, 1))
    Store(tmp_path).tag("bare", bare.key)
    labelled(tmp_path)
    with pytest.raises(ArtifactError, match="nowhere"):
        trained(tmp_path, recipe(labels="nowhere"))
    with pytest.raises(DataError, match="no tours") as none:
        trained(tmp_path, recipe(labels="bare"))
    assert "cnf label" in (none.value.hint or "")
    with pytest.raises(DataError, match="holds tsp"):
        trained(tmp_path, recipe("cvrp", labels="maps"))
    with pytest.raises(RecipeError, match="warm_start"):
        pretrain.task(recipe(labels="maps", warm_start=16))


def test_imitation_learns_the_labels(tmp_path: Path) -> None:
    """The loss, minus the log-probability of the solver's tours, falls, and the policy gets better than by chance."""
    labelled(tmp_path, count=64)
    lines = metrics(tmp_path, trained(tmp_path, recipe(labels="maps", instances=960, epoch_instances=320)).key)
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]


def test_own_rollouts_join_in_slowly() -> None:
    """Labels count alone for their share of the run; then their weight falls in proportion and the rollouts' rises."""
    section = recipe(labels="x", instances=1000, label_share=0.5, label_end=0.2, rollout_weight=3.0).pretrain
    assert pretrain.shares(section, 0) == (1.0, 0.0)
    assert pretrain.shares(section, 500) == (1.0, 0.0)
    assert pretrain.shares(section, 750) == pytest.approx((0.6, 1.5))
    assert pretrain.shares(section, 1000) == pytest.approx((0.2, 3.0))
    assert pretrain.shares(recipe(labels="x").pretrain, 10) == (1.0, 0.0)


def test_mixed_losses_resume_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off and run again, a run on labels that own rollouts joined ends in the bytes of a straight one."""
    keys: dict[str, Any] = {"labels": "maps", "label_share": 0.3, "label_end": 0.5, "loss": "preference"}
    for folder in "ab":
        labelled(tmp_path / folder)
    straight = trained(tmp_path / "a", recipe(**keys))
    monkeypatch.setattr(training, "SAVE_EVERY_SECONDS", 0.0)
    for steps in (2, 3):
        with pytest.raises(CutOff):
            Runner(Store(tmp_path / "b"), RUNTIME, Cutter(steps)).run(pretrain.task(recipe(**keys)))
    assert trained(tmp_path / "b", recipe(**keys)).digest == straight.digest
    alone = trained(tmp_path / "a", recipe(labels="maps", loss="preference"))
    assert alone.digest != straight.digest


def test_sizes_mixed_within_a_run() -> None:
    """With `sizes_mixed` every part of the run has batches of every size, each of one size."""
    section = recipe(sizes=[5, 8], sizes_mixed=True, instances=1600).pretrain
    problem = make_problem(recipe().problem)
    with set_up(RUNTIME) as setup:
        nodes = [pretrain.drawn(section, problem, setup, step).inst.nodes for step in range(100)]
    assert set(nodes[:50]) == set(nodes[50:]) == {5, 8}
    assert 25 <= nodes.count(5) <= 75
