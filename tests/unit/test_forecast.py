"""A run says how long it takes when its first steps are timed: once, and with a shorter way where it takes days."""

from __future__ import annotations

import pytest

from cnf_cli.pipeline import forecast
from cnf_cli.pipeline.forecast import Forecast, duration


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (10 * 30, []),
        (10 * 3600, ["this takes about 1h00m on this machine, and can be stopped and repeated"]),
        (
            10 * 86_400 * 33,
            ["this takes about 33d00h on this machine, and can be stopped and repeated; type something else"],
        ),
    ],
)
def test_a_long_run_is_announced_once(monkeypatch: pytest.MonkeyPatch, left: int, told: list[str]) -> None:
    """Ten instances a second: half a minute is not worth a line, an hour is, and a month names the shorter way."""
    now = 0.0
    monkeypatch.setattr(forecast.time, "monotonic", lambda: now)
    said: list[str] = []
    one = Forecast(said.append, "type something else")
    for _ in range(20):
        now += 1
        one.step(10, left)
    assert said == told


@pytest.mark.parametrize(("seconds", "told"), [(0.4, "0s"), (59.6, "1m00s"), (200, "3m20s"), (7500, "2h05m")])
def test_durations_are_told_as_people_say_them(seconds: float, told: str) -> None:
    """The largest unit and the one below it."""
    assert duration(seconds) == told
