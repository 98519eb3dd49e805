"""One live overview of a whole pipeline: a line per stage with its bar and ETA, from the first to the last."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnf_cli.cli.progress import describe
from cnf_cli.pipeline.forecast import duration
from cnf_cli.pipeline.job import Bar
from cnf_cli.pipeline.runner import Step
from cnf_cli.pipeline.stage import Task
from cnf_cli.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@dataclass(frozen=True)
class Line:
    """A stage to come."""

    stage: str
    title: str
    parts: int = 0
    """How many steps of the runner this line stands for; 0 = one."""


def lines_of(task: Task) -> list[Line]:
    """The stages a task needs, in the order the runner takes them, each once however often it is asked for."""
    found: dict[str, Line] = {}
    _walk(task, found)
    return list(found.values())


def _walk(task: Task, found: dict[str, Line]) -> str:
    inputs = {n: _walk(s, found) if isinstance(s, Task) else s.key for n, s in task.inputs.items()}
    same = json.dumps([task.stage.name, task.dumped(), inputs], sort_keys=True, default=str)
    found.setdefault(same, Line(task.stage.name, task.stage.title(task)))
    return same


class Overview:
    """Progress for a runner: its `on_step` is `step`, its bars are this; lines appear at once and fill up in order."""

    def __init__(self, console: Console, lines: list[Line]) -> None:
        self.console, self.lines = console, lines
        self.progress = _columns(console)
        self.at, self.seen = -1, set[str]()
        self.started = 0.0
        self.rows = [self.progress.add_task(one.title, total=None, start=False, told="", rate="") for one in lines]

    def __enter__(self) -> Overview:
        self.progress.start()
        return self

    def __exit__(self, *failed: object) -> None:
        if failed[0] is None:
            self._finish()
        self.progress.stop()

    def step(self, step: Step) -> None:
        """The runner begins with this stage, or found it in the store; the stage before it is done."""
        if step.key in self.seen:
            return
        self.seen.add(step.key or "")
        if self.at >= 0 and self.lines[self.at].parts and self.lines[self.at].stage == step.stage:
            self.progress.update(self.rows[self.at], advance=1)
            return
        self._finish()
        self.at = min(self.at + 1, len(self.lines) - 1)
        self.started = time.monotonic()
        row = self.rows[self.at]
        self.progress.start_task(row)
        if self.lines[self.at].parts:
            self.progress.update(row, total=self.lines[self.at].parts)
        if step.state == "hit":
            self.progress.update(row, told="found in the store")

    def _finish(self) -> None:
        """The current line is full."""
        if self.at < 0:
            return
        row = self.rows[self.at]
        found = self.progress.tasks[row].fields["told"] == "found in the store"
        told = "found in the store" if found else f"done in {duration(time.monotonic() - self.started)}"
        self.progress.update(row, total=1, completed=1, told=told, rate="")
        self.progress.stop_task(row)

    def say(self, text: str) -> None:
        self.progress.console.print(printable(text), markup=False)

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        row = self.rows[self.at]
        # A stage may show several bars after each other; each takes over the line, with its own clock for the ETA.
        self.progress.reset(row, total=total, completed=done, told=what, rate="")
        yield _Part(self.progress, row, what, unit)


class _Part:
    def __init__(self, progress: Progress, row: Any, what: str, unit: str) -> None:
        self.progress, self.row, self.what, self.unit = progress, row, what, unit
        self.began, self.done = time.monotonic(), 0
        self.shown: dict[str, float | str] = {}

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        self.done += amount
        self.shown.update(shown)
        rate = self.done / max(1e-9, time.monotonic() - self.began)
        told = describe(dict(list(self.shown.items())[-2:])) or self.what
        self.progress.update(self.row, advance=amount, rate=f"{rate:.4g} {self.unit}/s", told=told)


def _columns(console: Console) -> Progress:
    from rich import progress as p

    class Eta(p.ProgressColumn):
        """Time left, only while there is some."""

        def render(self, task: p.Task) -> str:
            left = task.time_remaining
            return "" if left is None or task.finished else f"eta {duration(left)}"

    class State(p.SpinnerColumn):
        """Nothing for what waits, a spinner for what runs, a tick for what is done."""

        def render(self, task: p.Task) -> Any:
            return super().render(task) if task.started else " "

    return p.Progress(
        State(finished_text="✓" if console.encoding.startswith("utf") else "+"),
        p.TextColumn("{task.description}", markup=False),
        p.BarColumn(bar_width=24),
        p.TaskProgressColumn(),
        Eta(),
        p.TextColumn("{task.fields[rate]}", style="cyan"),
        p.TextColumn("{task.fields[told]}", style="dim", markup=False),
        console=console,
        refresh_per_second=4,
    )
