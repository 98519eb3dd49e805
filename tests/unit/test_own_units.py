"""Attack, validation, solve and measure on a user's data: every size, the policy's scale, the user's units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnf_cli import plugins
from cnf_cli.errors import DataError
from cnf_cli.formats import dataset, export
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.formats.item import items_of
from cnf_cli.pipeline.job import Artifact, Silent
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, evaluate, label, pretrain
from cnf_cli.stages.data import drawn
from cnf_cli.stages.solve import solve_files
from cnf_cli.store import Manifest, Store
from tests.unit.test_evaluate import policy
from tests.unit.test_label import stored

RUNTIME = RuntimeSection(device="cpu", engine="torch")


@pytest.fixture(autouse=True)
def _whole_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the plugins' own classes: shape checks compare classes, and recipes read `Params` without torch."""
    monkeypatch.setattr(plugins, "params", lambda family, kind: plugins.load(family, kind).Params)


def five(width: float = 1000.0, rule: str = "euc_2d") -> Dataset:
    """Five instances of two sizes, `width` wide."""
    rng = np.random.default_rng(11)
    blocks = [
        Block(xy=rng.uniform(0, width, (count, nodes, 2)), rule=rule, names=names)
        for count, nodes, names in ((2, 8, ("a", "b")), (3, 11, ("c", "d", "e")))
    ]
    return Dataset("tsp", tuple(blocks))


def attacked(tmp: Path, data: Dataset, *, models: int = 1, white_box: bool = False, **keys: Any) -> tuple[Dataset, Any]:
    """(the attacked set, its checks)."""
    store = Store(tmp / "store")
    recipe = finish("x", {"problem": {"kind": data.problem, "n": 8}, "attack": keys}, {})
    given = policy(store, tmp, data.problem, models)
    task = attack.task(recipe, given, stored(store, data, tmp), white_box=white_box, own_units=True)
    made = Runner(store, RUNTIME).run(task)
    return dataset.load(Artifact(store, made).path("data.h5")), made.checks


def test_every_size_is_attacked_in_the_users_units(tmp_path: Path) -> None:
    """Five instances of two sizes, 1000 wide: all five come back in order, by name and rule, on a map as wide."""
    data = five()
    hard, checks = attacked(tmp_path, data)
    assert [block.names for block in hard.blocks] == [("a", "b"), ("c", "d", "e")]
    assert checks["count"] == 5
    for block, was in zip(hard.blocks, data.blocks, strict=True):
        assert block.xy is not None
        assert was.xy is not None
        assert (block.rule, block.cost) == ("euc_2d", None)
        assert np.array_equal(block.extra["clean_xy"], was.xy)
        # As released: the moved nodes are stretched to the edges of the map that the policy sees.
        low, high = was.xy.min(1), was.xy.max(1)
        wide = (high - low).max(1, keepdims=True)
        np.testing.assert_allclose(block.xy.min(1), low, atol=1e-3)
        np.testing.assert_allclose(block.xy.max(1), low + wide, atol=1e-3)
        moved = np.linalg.norm(block.xy - was.xy, axis=-1).mean(1) / wide[:, 0]
        np.testing.assert_allclose(block.extra["moved_mean"], moved, rtol=1e-4)
    assert [row for block in hard.blocks for row in block.extra["clean_row"]] == [0, 1, 2, 3, 4]
    assert checks["moved_mean"] < 1.5


@pytest.mark.parametrize("kind", ["attribute", "noise"])
def test_a_budget_is_a_share_of_the_map_whatever_its_units(tmp_path: Path, kind: str) -> None:
    """A radius of 0.05 on a map 1000 wide moves nodes by up to 50, and unmoved nodes keep their very places."""
    data = five()
    hard, _ = attacked(tmp_path, data, kind=kind, budget={"radius": 0.05, "nodes": 3})
    for block, was in zip(hard.blocks, data.blocks, strict=True):
        assert block.xy is not None
        assert was.xy is not None
        wide = (was.xy.max(1) - was.xy.min(1)).max(1)
        far = np.linalg.norm(block.xy - was.xy, axis=-1)
        assert (far.max(1) <= 0.05 * wide * (1 + 1e-5)).all()
        assert far.max() > 0.02 * wide.min()
        assert ((far > 0).sum(1) <= 3).all()


@pytest.mark.parametrize("power", [-3, 0, 5])
def test_units_do_not_change_an_attack(tmp_path: Path, power: int) -> None:
    """The same map in other units gives the same adversarial map in those units."""
    base, _ = attacked(_made(tmp_path / "a"), five(rule="euclid"))
    other, _ = attacked(_made(tmp_path / "b"), five(1000 * 2.0**power, rule="euclid"))
    for a, b in zip(base.blocks, other.blocks, strict=True):
        assert a.xy is not None
        assert b.xy is not None
        np.testing.assert_allclose(b.xy, a.xy * 2.0**power, rtol=1e-6)
        np.testing.assert_allclose(b.extra["cost_before"], a.extra["cost_before"] * 2.0**power, rtol=1e-5)
        np.testing.assert_allclose(b.extra["moved_max"], a.extra["moved_max"], rtol=1e-5)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_white_box_sample_is_drawn_from_all_sizes(tmp_path: Path) -> None:
    """As many instances as the clean set has, each row's clean instance and model told, whatever its size."""
    data = five()
    hard, checks = attacked(tmp_path, data, models=3, white_box=True)
    assert checks["count"] == len(hard) == 5
    clean = [was.xy[i] for was, i in data.instances() if was.xy is not None]
    for block, i in hard.instances():
        row = int(block.extra["clean_row"][i])
        assert np.array_equal(block.extra["clean_xy"][i], clean[row])
        assert block.names[i] == "abcde"[row]
        assert 0 <= block.extra["model"][i] < 3
    two, _ = attacked(_made(tmp_path / "two"), data, count=3)
    assert [block.names for block in two.blocks] == [("a", "b"), ("c",)]


def test_demands_come_back_in_their_units(tmp_path: Path) -> None:
    """CVRP loads stay whole units, changed by no more than the budget, and the capacity is the user's."""
    rng = np.random.default_rng(2)
    demand = np.concatenate([np.zeros((2, 1)), rng.integers(1, 10, (2, 8))], 1)
    block = Block(xy=rng.uniform(0, 500, (2, 9, 2)), demand=demand, capacity=np.full(2, 25.0), rule="euc_2d")
    hard, _ = attacked(_made(tmp_path / "c"), Dataset("cvrp", (block,)), budget={"radius": 0.1, "demand": 2})
    moved = hard.blocks[0]
    assert moved.demand is not None
    assert np.array_equal(moved.demand, moved.demand.round())
    assert np.abs(moved.demand - demand).max() in (1.0, 2.0)
    assert np.array_equal(moved.extra["clean_demand"], demand)
    assert np.array_equal(moved.capacity, np.full(2, 25.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "keys",
    [
        {"budget": {"demand": 20}},
        {"attributes": ["demand"], "budget": {"radius": 0.1}},
        {"attributes": ["demand"], "mode": "paper"},
        {"attributes": ["demand"], "mode": "released"},
        {"kind": "noise", "budget": {"demand": 20}},
    ],
    ids=lambda keys: " ".join(f"{k}={v}" for k, v in keys.items()),
)
def test_demands_reach_as_far_as_the_instances_own(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Demands of tens stay of that size: some rise above 9, none above the instance's largest or its capacity."""
    rng = np.random.default_rng(2)
    demand = np.concatenate([np.zeros((3, 1)), rng.integers(2, 60, (3, 8))], 1)
    demand[:, 1], demand[2, 1] = 60, 70
    block = Block(xy=rng.uniform(0, 500, (3, 9, 2)), demand=demand, capacity=np.array([100.0, 60, 75]), rule="euc_2d")
    hard, _ = attacked(tmp_path, Dataset("cvrp", (block,)), **keys)
    moved = hard.blocks[0]
    assert moved.demand is not None
    assert np.array_equal(moved.demand, moved.demand.round())
    assert ((moved.demand > demand) & (moved.demand > 9)).any()
    assert (moved.demand[:, 1:] >= 1).all()
    assert (moved.demand.max(1) <= demand.max(1)).all()
    if most := keys.get("budget", {}).get("demand"):
        assert np.abs(moved.demand - demand).max() <= most


def test_matrices_come_back_in_their_units(tmp_path: Path) -> None:
    """ATSP costs of thousands stay of that size, and what stands on the diagonal stays there."""
    rng = np.random.default_rng(2)
    blocks = []
    for nodes in (6, 8):
        matrix = rng.uniform(100, 5000, (2, nodes, nodes))
        matrix[:, range(nodes), range(nodes)] = 9999
        blocks.append(Block(matrix=matrix, rule="explicit", names=(f"x{nodes}", f"y{nodes}")))
    hard, checks = attacked(tmp_path, Dataset("atsp", tuple(blocks)), kind="roco", attacker="random", steps=3)
    assert checks["count"] == 4
    for block, was in zip(hard.blocks, blocks, strict=True):
        assert block.matrix is not None
        assert was.matrix is not None
        assert block.names == was.names
        assert (block.matrix.diagonal(axis1=1, axis2=2) == 9999).all()
        share = block.matrix / was.matrix
        halved = np.abs(np.log2(share).round() - np.log2(share)) < 1e-6
        assert halved.all()
        assert (share < 0.75).any()
        assert ((share != 1).sum((1, 2)) == block.extra["edges"]).all()


def test_a_drawing_of_a_matrix_is_not_attacked(tmp_path: Path) -> None:
    """A TSP whose costs are a matrix is refused by name: moving the nodes of its drawing changes no cost."""
    rng = np.random.default_rng(2)
    matrix = np.abs(rng.normal(5, 1, (1, 8, 8)))
    block = Block(xy=rng.random((1, 8, 2)), matrix=matrix + matrix.transpose(0, 2, 1), rule="explicit", names=("bays",))
    with pytest.raises(DataError, match="bays: the costs are a matrix"):
        attacked(tmp_path, Dataset("tsp", (*five().blocks, block)))


def test_training_is_watched_on_every_size_in_the_users_units(tmp_path: Path) -> None:
    """`--validate` on five instances of two sizes: mean cost of all five in their units, and the gap to theirs."""
    store, data = Store(tmp_path / "store"), five()
    source = Runner(store).run(label.task(stored(store, data, tmp_path), "nearest", local={"jobs": 1}))
    small = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16}
    tables = {"problem": {"n": 8}, "policy": small, "pretrain": {"instances": 64, "epoch_instances": 64}}
    recipe = finish("x", tables, {})
    made = Runner(store, RUNTIME).run(pretrain.task(recipe, validation=source, own_units=True))
    (line,) = dataset_lines(Artifact(store, made))
    task = evaluate.task([evaluate.SetOf("s", source)], [("p", made)], augment=1)
    found = dataset.load(Artifact(store, Runner(store, RUNTIME).run(task)).path("evaluation.h5"))
    cost = np.concatenate([block.extra["cost_0"][:, 0] for block in found.blocks])
    known = np.concatenate([block.cost for block in found.blocks if block.cost is not None])
    assert line["validation_cost"] == pytest.approx(cost.mean(), rel=1e-6)
    assert line["gap_percent"] == pytest.approx(100 * (cost / known - 1).mean(), rel=1e-6)


def dataset_lines(artifact: Artifact) -> list[dict[str, Any]]:
    """What a training run wrote down."""
    import json

    return [json.loads(line) for line in artifact.path("metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("rule", ["geo", "euc_2d", "ceil_2d", "att", "euclid", "explicit"])
def test_solve_and_evaluate_give_one_answer(tmp_path: Path, rule: str) -> None:
    """Same policy, file and copies: equal costs by either command, by every rule, and never worse with more copies."""
    rng = np.random.default_rng(8)
    # So coarse that rounded lengths order tours differently; so far north that the plane is no picture of the globe.
    low, wide = {"geo": ((60, 0), (18, 90)), "att": (0, 9)}.get(rule, (0, 3))
    xy = np.array(low) + rng.random((10, 9, 2)) * np.array(wide)
    drawn_ = rng.integers(1, 5, (10, 9, 9)).astype(float)
    matrix = drawn_ + drawn_.transpose(0, 2, 1) if rule == "explicit" else None
    names = tuple(f"i{k}" for k in range(10))
    data = Dataset("tsp", (Block(xy=xy, matrix=matrix, rule=rule, names=names),))
    store = Store(tmp_path / "store")
    given, source = policy(store, tmp_path), stored(store, data, tmp_path)
    file = tmp_path / "all.h5"
    dataset.save(file, data)
    before = None
    for copies in (1, 8):
        rows = list(solve_files(store, [file], given, RUNTIME, Silent(), copies))
        task = evaluate.task([evaluate.SetOf("s", source)], [("p", given)], augment=copies)
        found = dataset.load(Artifact(store, Runner(store, RUNTIME).run(task)).path("evaluation.h5")).blocks[0]
        best = found.extra["cost_0"].min(1)
        assert [row["cost"] for row in rows] == best.tolist()
        assert before is None or (best <= before * (1 + 1e-9)).all()
        before = best


def test_data_that_a_problem_drew_are_known(tmp_path: Path) -> None:
    """Drawn, labelled and attacked sets have the policy's scale; imported ones have not, labelled or not."""
    store = Store(tmp_path / "store")
    about: dict[str, Any] = {"version": 1, "sections": {}, "provenance": {}, "checks": {}}

    def made(stage: str, above: Manifest | None = None, name: str = "data") -> Manifest:
        from cnf_cli.store import Input, make_key

        file = tmp_path / f"{stage}.txt"
        file.write_text(stage + (above.key if above else ""))
        inputs = {} if above is None else {name: Input(above.key, above.digest)}
        digests = {k: v.digest for k, v in inputs.items()}
        key = make_key(stage, 1, {}, digests)
        return store.commit(key, {"data.h5": file}, stage=stage, inputs=inputs, **about)

    own, foreign = made("data"), made("imported")
    assert drawn(store, own)
    assert drawn(store, made("attack", made("label", own), "clean"))
    assert not drawn(store, foreign)
    assert not drawn(store, made("first", made("label", foreign)))


def test_files_of_one_folder_are_answered_alike(tmp_path: Path) -> None:
    """Files in other units and sizes, together and alone: the same answers."""
    store = Store(tmp_path / "store")
    given = policy(store, tmp_path)
    folder = _made(tmp_path / "files")
    for item in items_of(five(rule="euclid")):
        export.write(folder / f"{item.name}.csv", item)
    together = {row["name"]: row["cost"] for row in solve_files(store, [folder], given, RUNTIME, Silent())}
    for item in items_of(five(rule="euclid")):
        (row,) = solve_files(store, [folder / f"{item.name}.csv"], given, RUNTIME, Silent())
        assert row["cost"] == together[item.name]


def test_solve_lists_instances_in_the_order_of_the_files(tmp_path: Path) -> None:
    """Whatever their sizes: the third file's row is the third."""
    store = Store(tmp_path / "store")
    given = policy(store, tmp_path)
    items = [items_of(five(rule="euclid"))[k] for k in (2, 0, 3, 1)]
    files = [tmp_path / f"{item.name}.csv" for item in items]
    for file, item in zip(files, items, strict=True):
        export.write(file, item)
    rows = list(solve_files(store, files, given, RUNTIME, Silent()))
    assert [row["name"] for row in rows] == ["c", "a", "d", "b"]
    assert [row["nodes"] for row in rows] == [11, 8, 11, 8]
