"""What an interrupted run has kept is checked: damage costs time, never the result (promise 24)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.evaluation import methods as measure
from cnf_cli.formats import checkpoint
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, data, evaluate, label, pretrain, train_cnf
from cnf_cli.store import Manifest, Store
from cnf_cli.training import loop as training

TABLES: dict[str, dict[str, Any]] = {
    "problem": {"kind": "tsp", "n": 6},
    "policy": {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16},
    "pretrain": {"instances": 64, "batch_size": 8, "epoch_instances": 16, "validation_count": 0},
    "attack": {"kind": "attribute", "count": 30},
    "train": {
        "defence": "cnf",
        "instances": 48,
        "batch_size": 8,
        "epoch_instances": 16,
        "validation_count": 4,
        "keep": "best",
    },
}
Making = Callable[[Runner], Task]


class Halt(Exception):
    """The run was cut off."""


class Until:
    """Progress that cuts the run off after so many reports, and hears what is said."""

    def __init__(self, most: int | None, watched: str = "") -> None:
        self.left, self.watched, self.said = most, watched, list[str]()

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        if amount and self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Halt

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Until]:
        yield self if what.startswith(self.watched) else Until(None)

    def say(self, text: str) -> None:
        self.said.append(text)


def runner(store: Path, most: int | None = None, watched: str = "") -> Runner:
    return Runner(Store(store), RuntimeSection(engine="torch", threads=1), Until(most, watched))


def recipe() -> Any:
    return finish("damage", {name: dict(table) for name, table in TABLES.items()}, {})


def pretraining(_: Runner) -> Task:
    return pretrain.task(recipe())


def hardening(run: Runner) -> Task:
    return train_cnf.task(recipe(), run.run(pretrain.task(recipe())))


def attacking(run: Runner) -> Task:
    clean = run.run(data.task(recipe().problem, 30, 1))
    return attack.task(recipe(), run.run(pretrain.task(recipe())), clean)


def labelling(run: Runner) -> Task:
    return label.task(run.run(data.task(recipe().problem, 8, 1)), "nearest", local={"jobs": 1})


def measuring(run: Runner) -> Task:
    labelled = run.run(labelling(run))
    named = [("policy", run.run(pretrain.task(recipe())))]
    return evaluate.task([evaluate.SetOf("set", labelled)], named, (), augment=1, seed=1)


CASES: dict[str, tuple[Making, int, str]] = {
    "pretrain": (pretraining, 5, "pretraining"),
    "train-cnf": (hardening, 4, "cnf(3)"),
    "attack": (attacking, 2, "attacking"),
    "label": (labelling, 4, "solving"),
    "evaluate": (measuring, 2, "set:"),
}
"""What is made, and after how many reports of which progress bar it is cut off."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """State is saved after every step, parts are small."""
    monkeypatch.setattr(training, "SAVE_EVERY_SECONDS", -1.0)
    monkeypatch.setattr(measure, "_WORK", 100)


def cut_off(place: Path, name: str) -> tuple[Path, str]:
    """(a store with an interrupted run of that stage, the digest of what an uninterrupted one makes)."""
    make, steps, watched = CASES[name]
    straight = runner(place / "straight")
    made = straight.run(make(straight))
    shutil.copytree(place / "straight", place / "cut")
    store = Store(place / "cut")
    store.manifest(made.key).unlink()
    cut = runner(place / "cut", steps, watched)
    task = make(runner(place / "cut"))
    with pytest.raises(Halt):
        cut.run(task)
    assert [path for path in (place / "cut" / "work" / made.key).iterdir() if path.stat().st_size]
    return place / "cut", made.digest


def goes_on(source: Path, to: Path, name: str, harm: Callable[[Path], None]) -> tuple[Manifest, list[str]]:
    """What the run ends with, in a copy, after harm was done to what it has kept; and what was said."""
    shutil.copytree(source, to)
    harm(next((to / "work").iterdir()))
    run = runner(to)
    found = run.run(CASES[name][0](run))
    said = run.bars.said  # type: ignore[attr-defined]
    shutil.rmtree(to)
    return found, said


def flipped(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(CASES))
def test_a_flipped_bit_never_gives_another_result(place: Path, name: str, times: int) -> None:
    """One bit anywhere in what was kept, or a file cut short: the artifact is that of an uninterrupted run."""
    rng = random.Random(name)
    cut, wanted = cut_off(place, name)
    work = next((cut / "work").iterdir())
    files = sorted(path.name for path in work.iterdir() if path.stat().st_size)
    for k in range(times):
        one = files[k % len(files)]
        size = (work / one).stat().st_size
        at, bit = rng.randrange(min(size, rng.choice([64, 2048, size]))), rng.randrange(8)
        made, _ = goes_on(cut, place / "copy", name, lambda folder, f=one, a=at, b=bit: flipped(folder / f, a, b))
        assert made.digest == wanted, (one, at, bit)
    for k, one in enumerate(files[: (times + 1) // 2]):
        left = (0, 40, (work / one).stat().st_size - 1)[k]
        made, _ = goes_on(cut, place / "copy", name, lambda folder, f=one, n=left: (folder / f).open("r+b").truncate(n))
        assert made.digest == wanted, (one, left)


def test_the_run_goes_on_from_the_state_before_and_says_so(place: Path) -> None:
    """With the newest state damaged the older one serves; with both, the run starts again; each with a word."""
    cut, wanted = cut_off(place, "pretrain")
    names = ["state.safetensors", "state-before.safetensors"]

    def harmed(folder: Path, some: list[str]) -> None:
        for name in some:
            (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    made, said = goes_on(cut, place / "a", "pretrain", lambda folder: harmed(folder, names[:1]))
    assert made.digest == wanted
    assert any("state.safetensors is damaged" in line for line in said), said
    assert any("going on from the state before it, after 32 instances" in line for line in said), said
    made, said = goes_on(cut, place / "b", "pretrain", lambda folder: harmed(folder, names))
    assert made.digest == wanted
    assert any("starting again from the beginning" in line for line in said), said


def test_a_state_of_an_older_version_still_opens(place: Path) -> None:
    """A state without a seal, as it was written before, is gone on from; nothing is said to be damaged."""
    cut, wanted = cut_off(place, "pretrain")

    def aged(folder: Path) -> None:
        tensors, meta = checkpoint.load(folder / "state.safetensors")
        old = {name: value for name, value in tensors.items() if not name.startswith("diary/")}
        checkpoint.save(folder / "state.safetensors", old, {k: meta[k] for k in ("kind", "progress")})
        (folder / "state-before.safetensors").unlink()

    made, said = goes_on(cut, place / "copy", "pretrain", aged)
    assert made.digest == wanted
    assert not [line for line in said if "damaged" in line or "beginning" in line]
