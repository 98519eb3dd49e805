"""How long a run will take on this machine: said once, when its first steps have been timed."""

from __future__ import annotations

import time
from collections.abc import Callable

STEPS = 4
"""Steps that are timed; the first of a run is left out, since it makes what later ones reuse."""
LONG, VERY_LONG = 120, 86_400
"""Seconds from which on a run is announced, and from which on a shorter way is told with it."""


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42s, 3m20s, 2h05m, 3d04h."""
    whole = round(max(0.0, seconds))
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02d}{small_unit}"
    return f"{whole}s"


class Forecast:
    """Counts what a run does, and says once how long the rest takes."""

    def __init__(self, say: Callable[[str], None], shorter: str) -> None:
        """`shorter` is what to type for a run that takes less."""
        self.say, self.shorter = say, shorter
        self.steps = self.done = 0
        self.began = 0.0

    def step(self, done: int, left: int) -> None:
        """One more step did `done` of the work; so much is left."""
        if self.steps > STEPS:
            return
        self.steps += 1
        if self.steps == 1:
            self.began = time.monotonic()
            return
        self.done += done
        if self.steps > STEPS:
            seconds = (time.monotonic() - self.began) / self.done * left
            if seconds >= LONG:
                more = f"; {self.shorter}" if seconds >= VERY_LONG else ""
                self.say(f"this takes about {duration(seconds)} on this machine, and can be stopped and repeated{more}")
