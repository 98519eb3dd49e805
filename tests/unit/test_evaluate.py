"""The evaluate stage: every cost is what the tour really costs on the original instance, however it was found."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnf_cli import plugins
from cnf_cli.errors import ArtifactError, CheckFailed, RecipeError
from cnf_cli.evaluation.answers import first_of, judge
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.runner import Runner
from cnf_cli.problems.validate import check_tour
from cnf_cli.recipe.build import build_section
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import evaluate, first, label
from cnf_cli.store import Manifest, Store, make_key
from cnf_cli.training.stored_policies import make_policy, make_problem, save_models
from tests.unit.test_label import stored


@pytest.fixture(autouse=True)
def _whole_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the plugins' own classes: shape checks compare classes, and recipes read `Params` without torch."""
    monkeypatch.setattr(plugins, "params", lambda family, kind: plugins.load(family, kind).Params)


def policy(store: Store, folder: Path, kind: str = "tsp", models: int = 2) -> Manifest:
    """An artifact with untrained policies."""
    problem: Any = build_section("problem", {"kind": kind, "n": 8})
    section: Any = build_section(
        "policy",
        {"kind": "matnet" if kind == "atsp" else "pomo", "width": 16, "layers": 1, "heads": 2, "feed_forward": 16},
    )
    rng = torch.Generator().manual_seed(3)
    made = [make_policy(section, make_problem(problem)).init(rng) for _ in range(models)]
    files = save_models(folder, made, problem, section)
    sections = {"p": {"kind": kind, "models": models}}
    about: dict[str, Any] = {"stage": "pretrain", "version": 1, "sections": sections, "inputs": {}, "provenance": {}}
    key = make_key("pretrain", 1, sections, {})
    return store.commit(key, files, checks={"problem": kind, "models": models}, **about)


def mixed() -> Dataset:
    """Unit-square instances, rounded ones far from it, and one with a matrix and coordinates for drawing."""
    rng = np.random.default_rng(5)
    xy = rng.random((1, 8, 2))
    matrix = np.abs(rng.normal(5, 1, (1, 8, 8)))
    matrix = matrix + matrix.transpose(0, 2, 1)
    matrix[:, range(8), range(8)] = 0
    blocks = (
        Block(xy=rng.random((4, 9, 2)), names=("a", "b", "c", "d")),
        Block(xy=rng.integers(-500, 9000, (2, 12, 2)), rule="euc_2d", names=("e", "f")),
        Block(xy=rng.integers(0, 60, (1, 10, 2)), rule="geo", names=("g",)),
        Block(xy=xy, matrix=matrix, rule="explicit", names=("h",)),
    )
    return Dataset("tsp", blocks)


def run(
    tmp: Path, data: Dataset, *, kind: str = "tsp", solvers: tuple[str, ...] = (), **options: Any
) -> tuple[Store, Manifest]:
    store = Store(tmp / "store")
    runtime = options.pop("runtime", RuntimeSection(device="cpu", engine="torch"))
    source = stored(store, data, tmp)
    solved = tuple(label.task(source, name, local={"jobs": 1}) for name in solvers)
    labelled = label.task(source, "nearest", local={"jobs": 1})
    task = evaluate.task([evaluate.SetOf("s", labelled, solved)], [("p", policy(store, tmp, kind))], solvers, **options)
    return store, Runner(store, runtime).run(task)


def test_every_stored_cost_is_its_tours_cost_by_the_instances_own_rule(tmp_path: Path) -> None:
    """Plain and augmented costs of both models, and a solver's, re-costed from scratch for four distance rules."""
    store, manifest = run(tmp_path, mixed(), solvers=("descent",), augment=2)
    found = dataset.load(Artifact(store, manifest).path("evaluation.h5"))
    seen = 0
    for (block, i), (given, k) in zip(found.instances(), mixed().instances(), strict=True):
        where: dict[str, Any] = {"matrix": given.matrix[k]} if given.matrix is not None else {"xy": given.xy[k]}  # type: ignore[index]
        for cost, tour in (("cost_0", "tour_0"), ("plain_0", "plain_tour_0"), ("cost_1", "tour_1")):
            for j, row in enumerate(block.extra[tour][i]):
                real = check_tour([int(v) for v in row if v >= 0], rule=given.rule, **where)
                assert real == pytest.approx(block.extra[cost][i][j], rel=1e-12)
                seen += 1
        assert (block.extra["cost_0"][i] <= block.extra["plain_0"][i] * (1 + 1e-6)).all()
    assert seen == 8 * (2 + 2 + 1)
    table = json.loads(Artifact(store, manifest).path("rows.json").read_text())
    assert {row["method"] for row in table["rows"]} == {"p", "descent"}
    assert "seconds" not in json.dumps(table["rows"])


def test_cvrp_tours_are_judged_too(tmp_path: Path) -> None:
    """Loads, depot and rounded costs of CVRP tours pass the validator on the original units."""
    rng = np.random.default_rng(2)
    demand = np.concatenate([np.zeros((3, 1)), rng.integers(1, 10, (3, 9))], 1)
    data = Dataset(
        "cvrp", (Block(xy=rng.integers(0, 1000, (3, 10, 2)), demand=demand, capacity=np.full(3, 20.0), rule="euc_2d"),)
    )
    store, manifest = run(tmp_path, data, kind="cvrp", augment=2, normalise="published")
    block = dataset.load(Artifact(store, manifest).path("evaluation.h5")).blocks[0]
    given = data.blocks[0]
    assert given.xy is not None
    for i in range(3):
        for j in range(2):
            tour = [int(v) for v in block.extra["tour_0"][i, j] if v >= 0]
            real = check_tour(tour, xy=given.xy[i], demand=demand[i], capacity=20.0, rule="euc_2d")
            assert real == block.extra["cost_0"][i, j] == round(real)


@pytest.mark.parametrize("decode", ["greedy", "sample"])
def test_same_key_same_bytes_whatever_the_chunks(tmp_path: Path, decode: str) -> None:
    """Two runs, one of them in chunks of one instance: equal keys, equal digests; times only in the provenance."""
    digests = set()
    for chunk in (0, 1):
        folder = tmp_path / str(chunk)
        folder.mkdir()
        runtime = RuntimeSection(device="cpu", engine="torch", chunk=chunk)
        _, manifest = run(folder, mixed(), augment=2, decode=decode, runtime=runtime)
        digests.add((manifest.key, manifest.digest))
        assert manifest.provenance["timings"][0]["seconds"] >= 0
    assert len(digests) == 1


def test_the_best_of_many_is_chosen_by_what_is_counted() -> None:
    """Under a rounding rule tours are ranked by rounded lengths, also where the shortest on the plane is another."""
    section: Any = build_section("problem", {"kind": "tsp", "n": 5})
    problem = make_problem(section)
    tours = torch.tensor([[[0, *order] for order in permutations(range(1, 5))]])
    differ = 0
    for seed in range(20):
        xy = np.random.default_rng(seed).uniform(0, 4, (1, 5, 2))
        block = Block(xy=xy, rule="euc_2d")
        scaled = problem.scaled([block])[0]
        counted = scaled.cost(torch.tensor([0]), tours)[0]
        assert not scaled.plain
        assert counted.tolist() == [check_tour(t, xy=xy[0], rule="euc_2d") for t in tours[0].tolist()]
        differ += float(counted[problem.cost(scaled.instances, tours)[0].argmin()]) > float(counted.min())
    assert differ > 0


def test_what_a_policy_sees() -> None:
    """auto leaves unit-square data alone and fits the rest; published divides by the largest coordinate or by 1000."""
    section: Any = build_section("problem", {"kind": "tsp", "n": 4})
    problem = make_problem(section)
    unit = Block(xy=np.array([[[0.2, 0.2], [0.4, 0.8], [0.3, 0.3]]]))

    def shown(block: Block, how: Any) -> torch.Tensor:
        xy = problem.scaled([block], how)[0].instances.xy
        assert xy is not None
        return xy

    assert shown(unit, "auto").numpy() == pytest.approx(unit.xy)
    assert float(shown(unit, "fit").max()) == 1.0
    map_ = Block(xy=np.array([[[100.0, 200.0], [400.0, 800.0], [300.0, 300.0]]]), rule="euc_2d")
    seen = shown(map_, "published")
    assert seen[0, 1].tolist() == [0.5, 1.0]
    assert float(seen.min()) > 0
    fitted = shown(map_, "auto")
    assert (float(fitted.min()), float(fitted.max())) == (0.0, 1.0)


def test_an_infeasible_tour_stops_the_run() -> None:
    """A tour that misses a node is a failed check that names the instance, not a number in a table."""
    block = Block(xy=np.random.default_rng(0).random((1, 4, 2)), names=("x",))
    with pytest.raises(CheckFailed, match="infeasible tour of x"):
        judge(block, np.array([[[0, 1, 2, 2]]]))


def test_first_takes_a_prefix_over_blocks(tmp_path: Path) -> None:
    """The first stage counts instances over all blocks, in order, and never makes more of them."""
    assert [block.names for block in first_of(mixed(), 5).blocks] == [("a", "b", "c", "d"), ("e",)]
    assert len(first_of(mixed(), 100)) == 8
    store = Store(tmp_path / "store")
    manifest = Runner(store).run(first.task(stored(store, mixed(), tmp_path), 3))
    assert len(dataset.load(Artifact(store, manifest).path("data.h5"))) == 3


def test_a_policy_of_another_problem_is_refused(tmp_path: Path) -> None:
    """The error names both problems; nothing to evaluate is bad usage."""
    with pytest.raises(ArtifactError, match="policy for cvrp, the data are tsp"):
        run(tmp_path, mixed(), kind="cvrp")
    with pytest.raises(RecipeError, match="nothing to evaluate"):
        evaluate.task([], [])


def test_an_instance_without_coordinates_is_refused(tmp_path: Path) -> None:
    """A matrix alone cannot be shown to this policy: the error names the instance."""
    matrix = np.ones((1, 5, 5)) - np.eye(5)
    data = Dataset("tsp", (Block(matrix=matrix, rule="explicit", names=("bare",)),))
    with pytest.raises(ArtifactError, match=r"p cannot read bare: .*coordinates"):
        run(tmp_path, data)
