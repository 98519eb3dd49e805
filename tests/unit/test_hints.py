"""What messages tell a user to do can be done, and what they say is so."""

from __future__ import annotations

import io
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import DataError, RecipeError
from cnf_cli.formats import csv, export
from cnf_cli.formats.item import Item
from cnf_cli.formats.sniff import refuse, sniff
from cnf_cli.pipeline.runner import NEW, Runner
from cnf_cli.store import Store
from tests.unit.test_runner import tasks
from tests.unit.test_zoo import cnf


def test_hint_for_a_capacity_is_good_for_every_command() -> None:
    """The line in the file comes first: `cnf evaluate` has no --capacity, and the commands that have it are named."""
    with pytest.raises(DataError) as caught:
        csv.parse("0,0,0\n1,1,3\n")
    hint = str(caught.value.hint)
    assert hint.startswith("add a line `# capacity: 50` to the file")
    assert "`cnf solve` and `cnf import`" in hint


@pytest.mark.parametrize(
    ("inside", "what"),
    [
        (["[Content_Types].xml", "xl/workbook.xml"], "Excel"),
        (["mimetype", "content.xml"], "OpenDocument"),
        ([], "Excel"),
    ],
)
def test_workbooks_are_to_be_saved_as_csv(tmp_path: Path, inside: list[str], what: str) -> None:
    """Nobody is told to unpack an .xlsx, an .ods or an old .xls: their sheets can be saved as CSV."""
    file = tmp_path / "stops.xlsx"
    with zipfile.ZipFile(file, "w") as archive:
        for name in inside:
            archive.writestr(name, "")
    if not inside:
        file.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    error = refuse(file, sniff(file))
    assert what in error.message
    assert "save the sheet as CSV" in str(error.hint)


@pytest.mark.parametrize("problem", ["tsp", "cvrp", "atsp"])
def test_names_that_an_export_recommends_are_accepted(tmp_path: Path, problem: str) -> None:
    """A plain map is not recommended as .tsp or .vrp, which would round it, nor a matrix as .csv."""
    rng = np.random.default_rng(0)
    xy = None if problem == "atsp" else rng.random((4, 2))
    demand = np.array([0.0, 1, 2, 3]) if problem == "cvrp" else None
    matrix = rng.integers(1, 9, (4, 4)).astype(float) * (1 - np.eye(4)) if problem == "atsp" else None
    rule = "explicit" if problem == "atsp" else "euclid"
    item = Item(problem, rule, "a", xy=xy, demand=demand, capacity=6.0 if problem == "cvrp" else None, matrix=matrix)
    with pytest.raises(DataError) as caught:
        export.write(tmp_path / "a.xyz", item)
    names = str(caught.value.hint).removeprefix("name it ").split(" or ")
    assert names == (["*.atsp", "*.h5"] if problem == "atsp" else ["*.csv", "*.h5"])
    for name in names[:-1]:  # .h5 is written by the command itself
        export.write(tmp_path / name.replace("*", "a"), item)


def test_ls_of_a_stage_says_what_there_is_not(tmp_path: Path) -> None:
    """An unknown stage is an error with the near and the known names; a known one without artifacts is said."""
    wrong = cnf("ls", "--stage", "pretran", store=tmp_path)
    assert isinstance(wrong.exception, RecipeError)
    assert "did you mean 'pretrain'?" in str(wrong.exception.hint)
    assert "train_cnf" in str(wrong.exception.hint)
    empty = cnf("ls", "--stage", "pretrain", store=tmp_path)
    assert empty.exit_code == 0
    assert "no artifacts of the stage pretrain" in empty.stderr


def test_cards_are_shown_in_whole_sentences(tmp_path: Path) -> None:
    """Neither "from by:" nor "cnf at None": a run that another went on from, and a commit that nobody recorded."""
    shown = cnf("zoo", "show", "tsp20", store=tmp_path).stdout
    assert "from by" not in shown
    assert "None" not in shown
    assert "it started from the result of: cnf pretrain" in shown


def test_a_plan_compares_with_what_was_made_for_the_same_purpose(tmp_path: Path) -> None:
    """Other numbers drawn for another sum are no reason; the sum's own former input is, under its name."""
    runner = Runner(Store(tmp_path))
    runner.run(tasks()[1])
    changed = runner.plan(tasks(30)[1])
    assert changed[0].why == "selftest.numbers: 20 -> 30"
    runner.run(tasks(30)[0])
    other = replace(tasks(30)[1], alias="other/sum")
    assert runner.plan(other)[-1].why == NEW
    assert runner.plan(tasks(30)[1])[-1].why.startswith("input numbers: ")


def test_a_first_run_is_not_told_as_running_never_run(tmp_path: Path) -> None:
    """What was never made is "running"; a reason is told where there is one."""
    done = cnf("selftest", store=tmp_path)
    assert "selftest_count: running  " in done.stderr
    assert "never run" not in done.stderr


def test_lines_go_on_while_one_instance_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is finished for a while there are lines with the time all the same, and none after the end."""
    from rich.console import Console

    from cnf_cli.cli import progress

    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.02)
    out = io.StringIO()
    with progress.Lines(Console(file=out, width=200)).bar("solving", 1, "instances") as bar:
        while out.getvalue().count("\n") < 3:
            time.sleep(0.005)
        bar.advance()
    lines = out.getvalue().splitlines()
    assert all("solving: 0/1 instances (0%)" in line and "after" in line for line in lines[:3])
    assert "solving: 1/1 instances (100%)" in lines[-1]
    time.sleep(0.1)
    assert out.getvalue().splitlines() == lines
