"""Progress: a live bar with rate and ETA on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cnf_cli.pipeline.forecast import duration
from cnf_cli.pipeline.job import Bar, Bars, Silent
from cnf_cli.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EVERY_SECONDS = 5.0
WIDE, NARROW = 102, 70
"""Columns that the bar, its counts, rate and ETA take, with and without the counts."""


def make_bars(console: Console, *, quiet: bool) -> Bars:
    """The fitting kind of progress for this console."""
    if quiet:
        return Silent()
    return Live(console) if console.is_terminal else Lines(console)


def describe(shown: dict[str, float | str]) -> str:
    """The latest values, short."""
    names = {k: k.replace("_percent", " %").replace("_", " ") for k in shown}
    return "  ".join(f"{names[k]} {v:.4g}" if isinstance(v, float) else f"{names[k]} {v}" for k, v in shown.items())


class Lines:
    """A line every few seconds, also while nothing is finished, and at the end."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        self.console.print(printable(text), markup=False)

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        bar = _LineBar(self, what, total, unit, done)
        over = threading.Event()
        beat = threading.Thread(target=bar.beat, args=(over,), daemon=True)
        beat.start()
        try:
            yield bar
        finally:
            over.set()
            beat.join()
        bar.line(last=True)


class _LineBar:
    def __init__(self, lines: Lines, what: str, total: int, unit: str, done: int) -> None:
        self.lines, self.what, self.total, self.unit = lines, what, total, unit
        self.done = self.started_at = done
        self.shown: dict[str, float | str] = {}
        self.started = self.last = time.monotonic()

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        self.done += amount
        self.shown.update(shown)
        if time.monotonic() - self.last >= EVERY_SECONDS:
            self.line()

    def beat(self, over: threading.Event) -> None:
        """While one instance takes long, or a pipe has no bar to look at, lines show that the time does not stand."""
        while not over.wait(max(0.01, self.last + EVERY_SECONDS - time.monotonic())):
            if time.monotonic() - self.last >= EVERY_SECONDS:
                self.line()

    def line(self, last: bool = False) -> None:
        self.last = time.monotonic()
        spent = self.last - self.started
        rate = (self.done - self.started_at) / spent if spent > 0 else 0.0
        left = f"{duration((self.total - self.done) / rate)} left" if rate > 0 else f"after {duration(spent)}"
        left = f"in {duration(spent)}" if last else left
        share = f"{100 * self.done / self.total:.0f}%" if self.total else "100%"
        parts = [f"{self.what}: {self.done:,}/{self.total:,} {self.unit} ({share})", f"{rate:.4g}/s", left]
        self.lines.say("  ".join([*parts, describe(dict(self.shown))]).rstrip())


class Live:
    """Rich bars, one below the other, that stay when they are done."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self.open = 0

    def say(self, text: str) -> None:
        (self.progress.console if self.progress else self.console).print(printable(text), markup=False)

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        if self.progress is None:
            self.progress = self._columns()
            self.progress.start()
        self.open += 1
        task = self.progress.add_task(what, total=total, completed=done, unit=unit, rate="", shown="")
        bar = _LiveBar(self.progress, task, done)
        try:
            yield bar
        finally:
            self.open -= 1
            if not self.open:
                self.progress.stop()
                self.progress = None

    def _columns(self) -> Progress:
        from rich import progress as p

        def text(template: str, style: str = "none") -> p.TextColumn:
            return p.TextColumn(template, style=style, markup=False)

        columns: list[p.ProgressColumn] = [
            p.SpinnerColumn("line"),
            text("{task.description}"),
            p.BarColumn(16),
            text("{task.percentage:>3.0f}%"),
        ]
        if self.console.width >= WIDE:
            columns.append(text("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"))
        columns += [text("{task.fields[rate]}", "cyan"), text("eta"), p.TimeRemainingColumn(compact=True)]
        columns.append(text("{task.fields[shown]}", "dim"))
        return p.Progress(*columns, console=self.console, refresh_per_second=4)


class _LiveBar:
    def __init__(self, progress: Progress, task: TaskID, done: int) -> None:
        self.progress, self.task = progress, task
        self.started, self.done = time.monotonic(), 0
        self.shown: dict[str, float | str] = {}

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        self.done += amount
        self.shown.update(shown)
        rate = self.done / max(1e-9, time.monotonic() - self.started)
        room = self.progress.console.width - (WIDE if self.progress.console.width >= WIDE else NARROW)
        # Lines longer than the terminal would squeeze the bar away; the newest values come first and are kept.
        told = describe(dict(reversed(self.shown.items())))[: max(0, room)]
        self.progress.update(self.task, advance=amount, rate=f"{rate:.4g}/s", shown=told)
