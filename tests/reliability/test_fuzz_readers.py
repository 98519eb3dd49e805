"""A little of `make fuzz` in every run of the tests: damaged files end as read or refused, for every reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import DataError
from tests.reliability.fuzz_kit import Reader, is_refusal, readers
from tests.reliability.fuzz_readers import as_command, faults, in_process

KINDS = ("tsplib", "vrplib", "solution", "csv", "hdf5", "safetensors", "pickle", "toml", "tar")


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """Every reader with its honest files."""
    found = readers(tmp_path_factory.mktemp("seeds"))
    assert set(found) == set(KINDS)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_damaged_files_of_each_kind(every: dict[str, Reader], place: Path, kind: str) -> None:
    """Each is read or refused with an error for the user; none hangs, none ends the process."""
    told = in_process(every[kind], place, 0, 100)
    assert told["read"] + told["refused"] == 100, told
    assert told["refused"] > 30
    assert not faults({kind: told})


@pytest.mark.parametrize("kind", KINDS)
def test_honest_files_are_read_and_damage_repeats(every: dict[str, Reader], place: Path, kind: str) -> None:
    """The fuzzer starts from files that its reader takes, and its k-th input is always the same."""
    path = place / f"honest{every[kind].suffix}"
    for data in every[kind].seeds:
        path.write_bytes(data)
        every[kind].read(path)
    inputs = [every[kind].input(k) for k in range(50)]
    assert inputs == [every[kind].input(k) for k in range(50)]
    assert len(set(inputs)) > 40


@pytest.mark.parametrize("kind", ["csv", "tar"])
def test_two_damaged_files_through_the_command(every: dict[str, Reader], place: Path, kind: str) -> None:
    """The command ends with a result or an error of use, never as a bug."""
    told = as_command(kind, every[kind], place, 0, 2)
    assert told.get("read", 0) + told.get("refused", 0) == 2, told


def test_the_fuzzer_sees_what_is_wrong(place: Path) -> None:
    """A reader that raises anything else, that hangs or that dies is counted as such, and the run goes on after it."""

    def bad(path: Path) -> None:
        match path.read_bytes()[0] % 5:
            case 0:
                raise ValueError("a bug")
            case 1:
                import os

                os._exit(1)
            case 2:
                raise DataError("refused")

    def numbered(data: bytes, rng: np.random.Generator) -> bytes:
        return bytes([int(rng.integers(256))])

    told = in_process(Reader(".bin", (b"x",), numbered, bad), place, 0, 40)
    assert told["read"] + told["refused"] + told["wrong"] + told["died"] == 40
    assert min(told["read"], told["refused"], told["wrong"], told["died"]) > 0
    assert faults({"bin": told})
    assert is_refusal("error: no\n")
    assert not is_refusal("error: this is a bug in cnf: x")
