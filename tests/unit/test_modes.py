"""Modes: in `released` and `paper` every default is that of the published code and of the paper."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from cnf_cli.engine import get_engine
from cnf_cli.plugins import load
from cnf_cli.recipe.build import build_section
from tests.conftest import ROOT
from tests.unit.defence_kit import small_problem

MODES = ("released", "paper")


def listed() -> list[tuple[str, str, dict[str, Any]]]:
    """(table and plugin, key, mode -> value) of each line of the table in docs/method.md."""
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").split("## Modes: whose defaults")[1]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    body = [cells for cells in lines if len(cells) == 4 and cells[0].startswith(("attack ", "train "))]
    return [
        (where, key, {mode: tomllib.loads(f"v = {value}")["v"] for mode, value in zip(MODES, values, strict=True)})
        for where, key, *values in body
    ]


def section(where: str, **keys: Any) -> Any:
    table, plugin = where.split()
    return build_section(table, {"kind" if table == "attack" else "defence": plugin, **keys})


def in_effect(where: str, key: str, mode: str) -> Any:
    """What the plugin does about a key that its section leaves at `auto`, or about a choice without a key."""
    if where == "attack attribute":
        module = load("attacks", "attribute")
        params = module.Params(mode=mode)
        attack = module.Attack(params, small_problem("cvrp" if "CVRP" in key else "tsp"), get_engine("torch"))
        projection = {"minmax": "always"}.get(attack.free.how, attack.free.how)
        given: dict[str, Any] = {"step_scaling": [attack.scaling], "projection": [projection]}
        given |= {"objective": [attack.objective], "demand rule": [attack.free.demand_rule]}
        return given.get(key, list(attack.names))
    module = load("defences", "cnf")
    problem = small_problem()
    attributes = load("attacks", "attribute")
    attack = attributes.Attack(attributes.Params(), problem, get_engine("torch"))

    def defence(**keys: Any) -> Any:
        return module.Defence(
            module.Params(mode=mode, **keys), problem=problem, engine=get_engine("torch"), attack=attack
        )

    return {
        "routing": [defence().routing],
        "routing without the router": [defence(router=False).routing],
        "fresh_rollouts of the global attack": [defence().attack.params.fresh_rollouts],
        "work that is reused": [defence().reuse or defence().reuse_tours or defence()._copy],
    }[key]


@pytest.mark.parametrize(("where", "key", "values"), listed(), ids=lambda v: v if isinstance(v, str) else "")
def test_a_mode_has_the_listed_defaults(where: str, key: str, values: dict[str, Any]) -> None:
    """Each value of the table in docs/method.md is what a recipe that gives nothing but the mode gets."""
    for mode, value in values.items():
        got = in_effect(where, key, mode) if isinstance(value, list) else getattr(section(where, mode=mode), key)
        assert got == value, mode


@pytest.mark.parametrize("where", ["attack attribute", "attack roco", "train hac", "train cnf"])
def test_the_list_has_every_key_that_a_mode_changes(where: str) -> None:
    """No key changes with the mode without standing in docs/method.md."""
    known = {key for table, key, _ in listed() if table == where}
    one, other = (section(where, mode=mode).model_dump() for mode in MODES)
    changed = {key for key in one if one[key] != other[key]} - {"mode"}
    assert changed <= known
    of_modes = getattr(type(section(where)), "by_mode", {}).values()
    assert {key for of_mode in of_modes for key in of_mode} <= known


def test_a_given_key_counts_in_every_mode() -> None:
    """A mode fills in what is left out and nothing else."""
    assert section("train hac", mode="paper", temperature="cyclic").temperature == "cyclic"
    assert section("attack roco", mode="released", reward="upside", augment=2).augment == 2


@pytest.mark.parametrize("where", ["attack roco", "train hac"])
def test_modes_leave_the_identity_of_stored_results(where: str) -> None:
    """A section without a mode has the identity that it had before there were modes."""
    assert "mode" not in section(where).identity()
    assert section(where, mode="paper").identity()["mode"] == "paper"


def test_a_dumped_section_reads_back_as_itself() -> None:
    """What a mode filled in is written out with the rest, and read again it stays."""
    first = section("attack roco", mode="released", reward="upside")
    assert build_section("attack", first.model_dump()) == first
