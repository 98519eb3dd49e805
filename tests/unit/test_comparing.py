"""Several evaluations side by side: a policy is one by its content, whatever it was measured beside."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cnf_cli import plots
from cnf_cli.evaluation.answers import columns_of
from cnf_cli.evaluation.comparison import together
from cnf_cli.evaluation.protocol import Roll, SetEntry
from cnf_cli.evaluation.result_table import comparisons_of, rows_of
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.plots._source import Ask, sources
from cnf_cli.store import Input, Manifest, Store, make_key

SETS = ("clean (uniform)", "fixed adversarial")
COUNT = 12
SPREAD = {"b" * 64: 0.05, "a" * 64: 0.01, "c" * 64: 0.02}
"""Content of a policy -> mean of its gaps."""


def protocol(policies: tuple[str, ...], instances: str = "i") -> dict[str, Any]:
    entries = [{"name": name, "only": -1, "instances": instances, "reference": "r", "solver": "s"} for name in SETS]
    keys = {"problem": "tsp", "augment": 1, "decode": "greedy", "normalise": "auto"}
    return {**keys, "sets": entries, "policies": list(policies), "solvers": []}


def manifest(key: str, *contents: str) -> Any:
    inputs = {f"policy-{k}": Input("0" * 64, content) for k, content in enumerate(contents)}
    return SimpleNamespace(key=key * 64, stage="evaluate", inputs=inputs)


def evaluation(store: Store, folder: Path, names: tuple[str, ...], contents: tuple[str, ...]) -> Manifest:
    """A stored evaluation of these policies on two sets, as the stage writes it."""
    blocks, rows, columns = [], [], []
    for s, name in enumerate(SETS):
        rng = np.random.default_rng(s)
        cost = rng.uniform(3, 4, COUNT)
        extra = {"set": np.full(COUNT, s, "i4")}
        for k, content in enumerate(contents):
            gaps = np.random.default_rng([s, ord(content[0])]).exponential(SPREAD[content], (COUNT, 1))
            extra |= {f"{what}_{k}": cost[:, None] * (1 + gaps) for what in ("cost", "plain")}
        block = Block(
            names=tuple(f"{s}-{i}" for i in range(COUNT)), xy=rng.random((COUNT, 5, 2)), cost=cost, extra=extra
        )
        blocks.append(block)
        columns += columns_of(Dataset("tsp", (block,)), SetEntry(name=name), names)
    rows = [row for column in columns for row in rows_of(column, 1, "greedy")]
    table = {"problem": "tsp", "protocol": protocol(names), "rows": rows, "comparisons": comparisons_of(columns)}
    folder.mkdir()
    dataset.save(folder / "evaluation.h5", Dataset("tsp", tuple(blocks)))
    (folder / "rows.json").write_text(json.dumps(table))
    inputs = {f"policy-{k}": Input("0" * 64, content) for k, content in enumerate(contents)}
    sections = {"protocol": {"names": list(names)}}
    key = make_key("evaluate", 1, sections, {name: one.digest for name, one in inputs.items()})
    files = {name: folder / name for name in ("evaluation.h5", "rows.json")}
    return store.commit(
        key, files, stage="evaluate", version=1, sections=sections, inputs=inputs, provenance={}, checks={}
    )


@pytest.fixture
def two(tmp_path: Path) -> tuple[Store, list[tuple[Manifest, dict[str, Any]]]]:
    """Two evaluations of the same sets that share their first policy."""
    store = Store(tmp_path / "store")
    given = [(("base", "one"), ("b" * 64, "a" * 64)), (("base", "two"), ("b" * 64, "c" * 64))]
    made = [evaluation(store, tmp_path / f"work-{k}", *each) for k, each in enumerate(given)]
    return store, [(one, json.loads(store.open(one.key, "rows.json").read_text())) for one in made]


def test_evaluations_that_share_a_policy_count_it_once(two: tuple[Store, list[Any]]) -> None:
    """Three policies on two sets are three rows and three pairs a set, and p is corrected for those six alone."""
    told = together(*two)
    assert [(row["set"], row["method"]) for row in told["rows"]] == [
        (s, m) for s in SETS for m in ("base", "one", "two")
    ]
    pairs = [(c["set"], c["a"], c["b"]) for c in told["comparisons"]]
    assert pairs == [(s, *pair) for s in SETS for pair in (("base", "one"), ("base", "two"), ("one", "two"))]
    smallest = min(told["comparisons"], key=lambda c: c["p"])
    assert smallest["p_holm"] == pytest.approx(6 * smallest["p"])


@pytest.mark.parametrize("kind", ["ablation", "tradeoff"])
def test_figures_show_a_policy_once(kind: str, two: tuple[Store, list[Any]]) -> None:
    """Figures that compare methods draw one mark for a policy that several evaluations share."""
    store, found = two
    stored = [SimpleNamespace(manifest=one, path=lambda name, key=one.key: store.open(key, name)) for one, _ in found]
    data = plots.load(kind).collect(sources(stored), Ask())
    assert [method.name for method in data.methods] == ["base", "one", "two"]


def test_another_policy_of_the_same_name_is_told_apart() -> None:
    """Equal names of different content get the evaluation's id; different names of one content are one."""
    roll = Roll()
    clean = SETS[0]
    assert roll.enter(manifest("1", "a", "b"), protocol(("x", "y")))[clean, "x"] == ("x", False)
    again = roll.enter(manifest("2", "a", "c"), protocol(("other", "y")))
    assert again[clean, "other"] == ("x", True)
    assert again[clean, "y"] == ("y [222222]", False)
    assert roll.enter(manifest("3", "c"), protocol(("y",)))[clean, "y"] == ("y [222222]", True)


def test_one_policy_on_other_instances_is_another_row() -> None:
    """A set of the same name with other instances does not hide what was measured on it."""
    roll = Roll()
    roll.enter(manifest("1", "a"), protocol(("x",)))
    assert roll.enter(manifest("2", "a"), protocol(("x",), "j"))[SETS[0], "x"] == ("x [222222]", False)


def test_a_set_made_against_one_method_says_nothing_of_the_others() -> None:
    """A white-box set counts for its own method only, so another evaluation's row of it is not taken for known."""
    roll, made = Roll(), protocol(("x", "y"))
    made["sets"] = [{"name": "white", "only": k, "instances": f"i{k}"} for k in range(2)]
    assert roll.enter(manifest("1", "a", "b"), made) == {("white", "x"): ("x", False), ("white", "y"): ("y", False)}
    other = {**protocol(("y",)), "sets": [{"name": "white", "only": 0, "instances": "i1"}]}
    assert roll.enter(manifest("2", "b"), other) == {("white", "y"): ("y", True)}
