"""The demo's overview: a line for each stage before it starts, filled in the order the runner works."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from cnf_cli.cli.overview import Line, Overview, lines_of
from cnf_cli.cli.visualize import evaluation_task
from cnf_cli.pipeline.runner import Runner, Step
from cnf_cli.recipe.load import load_recipe
from cnf_cli.store import Store
from tests.conftest import ROOT


def test_a_line_for_every_stage_of_the_demo(tmp_path: Path) -> None:
    """Stages stand in the runner's order, each once, though the evaluation asks for some of them twice."""
    task = evaluation_task(load_recipe(ROOT / "recipes" / "demo.toml"))
    lines = lines_of(task)
    stages = [line.stage for line in lines]
    assert stages == ["data", "label", "pretrain", "attack", "label", "train_cnf", "attack", "label", "evaluate"]
    assert len({line.title for line in lines}) == len(lines)
    planned = [step.stage for step in Runner(Store(tmp_path)).plan(task)]
    assert [s for k, s in enumerate(planned) if k != 5] == stages  # the second request for the attacked set's labels


def shown(overview: Overview) -> list[tuple[str, bool, str]]:
    return [(t.description, t.finished, t.fields["told"]) for t in overview.progress.tasks]


def test_lines_fill_up_in_order() -> None:
    """A new step ends the one before it; hits say so; a key seen before is no new line; figures are one line."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    lines = [Line("data", "draw"), Line("label", "solve"), Line("visualize", "pictures", 3), Line("report", "write")]
    with Overview(console, lines) as overview:
        overview.step(Step("data", "hit", "k1", ""))
        assert shown(overview)[0] == ("draw", False, "found in the store")
        overview.step(Step("label", "miss", "k2", "not made yet"))
        assert shown(overview)[0] == ("draw", True, "found in the store")
        with overview.bar("solving", 10, "instances") as bar:
            bar.advance(4, cost=3.5)
            assert overview.progress.tasks[1].completed == 4
            assert shown(overview)[1][2] == "cost 3.5"
        overview.step(Step("label", "hit", "k2", ""))
        assert not shown(overview)[1][1]
        for k in range(3):
            overview.step(Step("visualize", "miss", f"v{k}", ""))
        assert shown(overview)[1][2] == "done in 0s"
        assert overview.progress.tasks[2].completed == 2
        assert not overview.progress.tasks[3].started
        overview.step(Step("report", "miss", "k3", ""))
    assert all(finished for _, finished, _ in shown(overview))


def test_a_failure_does_not_tick_the_line() -> None:
    """When a stage stops with an error, its line stays unfinished."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    overview = Overview(console, [Line("data", "draw")])
    try:
        with overview:
            overview.step(Step("data", "miss", "k1", ""))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert not shown(overview)[0][1]
