"""The command that draws the curves of cheaper training."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import cheap, cheap_costs
from cnf_cli.recipe.build import build_section
from cnf_cli.solvers.run import solver

SMALL = ["--n", "6", "--widths", "16", "--validation", "10", "--out"]


def test_table_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of seconds prints a line per variant, baseline first, and writes table and figures; its runs are kept."""
    options = ["--instances", "128", "--seeds", "2", "--variants", "preference", "--widths", "16", "32"]
    wanted = [*SMALL, str(tmp_path), *options]
    cheap.main(wanted)
    text = capsys.readouterr().out
    names = [line.split(" | ")[0].strip("| ") for line in text.splitlines()[2:]]
    assert names == ["baseline", "preference", "baseline, width 32", "preference, width 32"]
    assert (tmp_path / "table.md").read_text() == text
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (tmp_path / "curves.svg").read_bytes()
    bench, seen = cheap.Bench(cheap.arguments(wanted)), []
    bench.runner.on_step = seen.append
    again = [bench.curve(name, width) for width in (16, 32) for name in names[:2]]
    assert cheap.table(again) == text
    assert [step.state for step in seen] == ["hit"] * 8


def test_budget_is_cpu_time(tmp_path: Path) -> None:
    """With --minutes the instances follow from what one costs, and variants that cost the same get equally many."""
    bench = cheap.Bench(cheap.arguments([*SMALL, str(tmp_path), "--minutes", "0.02"]))
    assert bench.budget("baseline", 16) == bench.budget("cosine", 16) == bench.budget("leader", 16)
    seconds = bench.price("baseline", 10 * cheap.BATCH, 16) * bench.budget("baseline", 16)
    assert 0.6 < seconds <= 1.21


def test_going_on_from_the_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --init every run starts from that entry, at its problem, n and width; a wrong name is an error."""
    wanted = ["--init", "zoo/tsp20", "--copies", "2", "--instances", "64", "--validation", "10", "--out", str(tmp_path)]
    args = cheap.arguments([*wanted, "--problem", "cvrp", "--n", "7"])
    assert (args.problem, args.n, args.widths) == ("tsp", 20, [64])
    bench = cheap.Bench(args)
    made = bench.run(1, 64, "leader 40", 64)
    assert made.inputs["init"].key == bench.start.key
    assert made.sections["pretrain"]["validation_augment"] == 2
    assert bench.curve("leader 40", 64).gaps[0][-1] < 1  # from scratch it would be some 30%
    with pytest.raises(SystemExit):
        cheap.arguments(["--init", "zoo/tsp2"])
    assert "zoo/tsp20" in capsys.readouterr().err


@pytest.mark.parametrize("name", cheap.variants(20, 6400))
def test_variants_are_recipes(name: str) -> None:
    """Every variant's keys are keys of [pretrain], and all but the baseline differ from it."""
    keys = cheap.variants(20, 6400)[name]
    section = build_section("pretrain", keys)
    assert (section == build_section("pretrain", {})) == (name == "baseline")


def test_minutes_to_a_gap() -> None:
    """The first moment at or below the gap, seed by seed; none when it was never reached."""
    curve = cheap.Curve("x", {}, [[1, 2, 3]] * 2, [[1.0, 2.0, 3.0]] * 2, [[5.0, 3.0, 4.0], [9.0, 8.0, 7.0]])
    assert curve.minutes_to(3.5) == [2.0, None]


def test_costs_of_every_way() -> None:
    """The prices have an entry for each loss, for few starts and for labels, all above zero."""
    if not solver("hgs").available():
        pytest.skip("hgs is not installed")
    found = cheap_costs.measure(Namespace(problem="cvrp", n=10, batch=4, width=16, steps=1))
    assert list(found) == ["reinforce", "leader", "preference", "8 starts", "on labels", "a label"]
    assert min(found.values()) > 0
