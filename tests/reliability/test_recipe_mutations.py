"""Damaged recipes: an error with its place, or a valid recipe; quickly, and nothing else (promise 13)."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from cnf_cli import plugins
from cnf_cli.errors import CnfError
from cnf_cli.recipe import load_recipe
from cnf_cli.recipe.starter import starter

BITS = [
    "[",
    "]",
    "=",
    '"',
    "'",
    "\n",
    "#",
    "{",
    "}",
    ",",
    "nan",
    "inf",
    "1e999",
    "-1",
    "[[a]]",
    "extends",
    "\x00",
    "é",
    ".",
]
BITS += [
    "[train]\n",
    'kind = "tsp"\n',
    "99999999999999999999",
    "true",
    '"""',
    "'''",
    "\\",
    "\ufeff",
    "[a.b.c.d]",
    "0x",
    "1979-05-27",
]


def mutate(text: str, rng: random.Random) -> bytes:
    """The text with a few random edits, sometimes as bytes that are no text at all."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text) + 1)
        kind = rng.random()
        if kind < 0.4:
            text = text[:at] + rng.choice(BITS) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + rng.randint(1, 20) :]
        elif kind < 0.9:
            text = text[:at] + chr(rng.randrange(1, 0x250)) + text[at + 1 :]
        else:
            text = text[:at] + text[rng.randrange(len(text) + 1) :][:200] + text[at:]
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = data[: rng.randrange(len(data) + 1)] + bytes([rng.randrange(128, 256)])
    return data


def check(folder: Path, rounds: int, seed: int) -> tuple[int, int, float]:
    """(valid, refused, processor time of the slowest) of `rounds` mutations of the starter recipe."""
    rng, path, counts, worst = random.Random(seed), folder / "m.toml", [0, 0], 0.0
    text = starter("cvrp", 20)
    for family in plugins.FAMILIES:  # reading the plugins' files happens once per process, not once per recipe
        for kind in plugins.kinds(family):
            plugins.params(family, kind)
    for _ in range(rounds):
        path.write_bytes(mutate(text, rng))
        start = time.process_time()
        try:
            load_recipe(path)
            counts[0] += 1
        except CnfError as error:
            counts[1] += 1
            refused = error
        else:
            refused = None
        assert refused is None or (refused.message and (refused.at is None or "m.toml" in refused.at))
        worst = max(worst, time.process_time() - start)
    return counts[0], counts[1], worst


def test_mutated_recipes(tmp_path: Path) -> None:
    """2,000 mutations: a recipe or an error with its place."""
    valid, refused, _ = check(tmp_path, 2_000, seed=1)
    assert valid > 50
    assert refused > 500


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_mutated_recipes(tmp_path: Path) -> None:
    """The same, 100,000 times, and none takes long: a second is room for a busy machine."""
    _, _, worst = check(tmp_path, 100_000, seed=2)
    assert worst < 1
