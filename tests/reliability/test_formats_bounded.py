"""Damaged and hostile files of every format: an error or a result, in bounded time and memory (promises 10 to 13)."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.formats import checkpoint, legacy, sandbox, tours, tsplib
from cnf_cli.formats.dataset import Block, Dataset, load, save
from cnf_cli.formats.legacy import Untold
from cnf_cli.formats.read import read_any
from tests.conftest import ROOT
from tests.reliability.test_formats_mutate import mutate
from tests.reliability.test_formats_pickle import Calls
from tests.unit.test_formats_dataset import dataset
from tests.unit.test_formats_legacy import state
from tests.unit.test_formats_tsplib import SQUARE, VAN, explicit, listed

slow = pytest.mark.slow


# Promise 10: torch checkpoints.


def test_a_torch_file_with_code_is_refused(tmp_path: Path) -> None:
    """A checkpoint that would run a command runs nothing, in either file format, and the message says why."""
    for zipped in (True, False):
        content = {"model_state_dict": Calls(os.system, f"touch {tmp_path / 'canary'}")}
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        with pytest.raises(DataError, match="more than tensors"):
            legacy.load_checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "canary").exists()


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A compressed archive that declares more than it holds never reaches torch."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(50_000_000))
    with pytest.raises(DataError, match="declares 50000000 bytes"):
        read_any([tmp_path / "a.pt"])


def test_every_truncation_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    """Cut anywhere, a .pt file is reported as truncated, empty or refused, never as a traceback."""
    for zipped in (True, False):
        torch.save(state(d=8, layers=1), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        data = (tmp_path / "a.pt").read_bytes()
        for length in (0, 1, 100, len(data) // 2, len(data) - 1):
            (tmp_path / "b.pt").write_bytes(data[:length])
            with pytest.raises(DataError):
                read_any([tmp_path / "b.pt"], said=Untold(heads=4, norm="instance"))


# Promise 11: our own checkpoints.


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=slow)])
def test_mutated_checkpoint_headers(tmp_path: Path, count: int) -> None:
    """Only ArtifactError comes out of a damaged header, and memory does not grow."""
    path = tmp_path / "a"
    checkpoint.save(path, {"a.weight": torch.ones(3, 4), "b": torch.arange(3)}, {"kind": "policy"})
    data = path.read_bytes()
    length = 8 + struct.unpack("<Q", data[:8])[0]
    rng = np.random.default_rng(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    with path.open("r+b", buffering=0) as file:  # creating 10^5 files would take longer than reading them
        for _ in range(count):
            damaged = mutate(data[:length], rng) + data[length:]
            os.pwrite(file.fileno(), damaged, 0)
            os.ftruncate(file.fileno(), len(damaged))
            try:
                checkpoint.load(path)
            except ArtifactError:
                refused += 1
    assert refused > 0.7 * count
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 300


# Promise 12: data sets.


def hostile(path: Path, kind: str) -> None:
    """A data set whose coordinates are not what they seem."""
    save(path, Dataset("tsp", (Block(xy=np.zeros((2, 3, 2))),)))
    with h5py.File(path, "r+") as file:
        block = file["blocks/00000"]
        del block["xy"]
        match kind:
            case "external storage":
                block.create_dataset("xy", (2, 3, 2), "f8", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
            case "virtual":
                layout = h5py.VirtualLayout((2, 3, 2), "f8")
                layout[:] = h5py.VirtualSource("other.h5", "xy", shape=(2, 3, 2))
                block.create_virtual_dataset("xy", layout)
            case "external link":
                block["xy"] = h5py.ExternalLink("other.h5", "/xy")
            case "soft link":
                block["xy"] = h5py.SoftLink("/elsewhere")
            case "petabytes":
                block.create_dataset("xy", (2**20, 2**25, 2), "f8", chunks=(1, 1024, 2))
            case "sparse":
                block.create_dataset("xy", (1000, 1000, 2), "f8", chunks=(1, 100, 2))[0, 0, 0] = 1
            case "huge chunk":
                block.create_dataset("xy", (2, 3, 2), "f8", chunks=(2, 3, 2), maxshape=(None, None, 2))
                del block["xy"]
                block.create_dataset("xy", (2, 2**20, 2), "f8", chunks=(2, 2**20, 2), compression="gzip")[:] = 0
            case "objects":
                block.create_dataset("xy", (2,), h5py.string_dtype())
            case "references":
                block.create_dataset("xy", (2,), h5py.ref_dtype)
            case "rank 5":
                block.create_dataset("xy", (1, 1, 1, 3, 2), "f8")
            case "float16":
                block.create_dataset("xy", (2, 3, 2), "f2")
            case "group":
                block.create_group("xy")
            case "unknown array":
                block["xy"] = np.zeros((2, 3, 2))
                block["secret"] = np.zeros(3)
            case "lzf":
                block.create_dataset("xy", (2, 3, 2), "f8", compression="lzf")
            case "group loop":
                block["xy"] = np.zeros((2, 3, 2))
                block["extra"] = file["blocks"]


HOSTILE = (
    "external storage", "virtual", "external link", "soft link", "petabytes", "sparse", "huge chunk", "objects",
    "references", "rank 5", "float16", "group", "unknown array", "lzf", "group loop",
)  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_data_sets_are_refused_unread(tmp_path: Path, kind: str) -> None:
    """Other files, virtual data, links, odd types and sizes unlike the stored bytes are all refused."""
    hostile(tmp_path / "a.h5", kind)
    np.savez(tmp_path / "other.h5", xy=np.zeros(3))
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.h5")
    assert caught.value.at == str(tmp_path / "a.h5")


@slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_data_sets_are_refused_soon(tmp_path: Path, kind: str) -> None:
    """None is worked on for longer than a few seconds of processor time: what it declares is never read."""
    hostile(tmp_path / "a.h5", kind)
    np.savez(tmp_path / "other.h5", xy=np.zeros(3))
    start = time.process_time()
    with pytest.raises(DataError):
        load(tmp_path / "a.h5")
    assert time.process_time() - start < 5


_CHILD = """
import resource, sys
from pathlib import Path
import numpy as np
from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import load
import cnf_cli.formats.hdf5
from tests.reliability.test_formats_mutate import mutate
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
data = (folder / "a.h5").read_bytes()
path = folder / "b.h5"
for k in range(first, count):
    path.write_bytes(mutate(data, np.random.default_rng(k)))
    try:
        load(path)
        print("read", flush=True)
    except DataError:
        print("refused", flush=True)
"""


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=slow)])
def test_mutated_data_sets_never_hurt_the_parent(tmp_path: Path, count: int) -> None:
    """Each damaged file ends as read, refused, or, one in a hundred at most, as the death of the child."""
    save(tmp_path / "a.h5", dataset())
    results: list[str] = []
    died: list[int] = []
    while len(results) < count:
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path), str(len(results)), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as child:
            results += _until_silent(child, seconds=10)
        if len(results) < count:
            died.append(len(results))
            results.append("died")
    assert set(results) <= {"read", "refused", "died"}
    assert results.count("refused") > count / 10
    assert len(died) <= count / 100, died


def _until_silent(child: subprocess.Popen[str], seconds: float) -> list[str]:
    """The child's lines until it ends; a child that says nothing for `seconds` is killed."""
    import selectors

    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    watch = selectors.DefaultSelector()
    watch.register(child.stdout, selectors.EVENT_READ)
    text = ""
    limit = seconds + 20  # the first line also waits for the imports
    while True:
        if not watch.select(limit):
            child.kill()
            break
        part = os.read(child.stdout.fileno(), 65536).decode()
        if not part:
            break
        text, limit = text + part, seconds
    child.wait()
    return text.split()


# Promise 13: text.

TEXTS = [
    SQUARE,
    VAN,
    explicit("UPPER_ROW", listed("UPPER_ROW")),
    explicit("LOWER_DIAG_COL", listed("LOWER_DIAG_COL")) + "DISPLAY_DATA_SECTION\n1 0 0\n2 0 1\n3 1 1\n4 1 0\nEOF\n",
    explicit("FULL_MATRIX", listed("FULL_MATRIX"), kind="ATSP"),
]
WORDS = ("NODE_COORD_SECTION", "DEMAND_SECTION", "EOF", "-1", "1e309", "nan", "DIMENSION : 99999999", "TYPE : ATSP",
         "EDGE_WEIGHT_TYPE : GEO", "EXPLICIT", "CAPACITY : 0", "9" * 400, "\t", "\r", ":", "4", "0",
         "FIXED_EDGES_SECTION", "TOUR_SECTION", "\u00e9", "Route #1: 1 2", "DEPOT_SECTION\n1\n-1")  # fmt: skip


def mutate_text(text: str, rng: np.random.Generator) -> str:
    """Lines swapped, dropped, doubled, words put in, characters changed."""
    rows = text.split("\n")
    for _ in range(int(rng.integers(1, 5))):
        k = int(rng.integers(len(rows)))
        match int(rng.integers(6)):
            case 0:
                rows.insert(k, rows[int(rng.integers(len(rows)))])
            case 1 if len(rows) > 1:
                del rows[k]
            case 2:
                rows[k] = WORDS[int(rng.integers(len(WORDS)))]
            case 3:
                words = rows[k].split(" ")
                words[int(rng.integers(len(words)))] = WORDS[int(rng.integers(len(WORDS)))]
                rows[k] = " ".join(words)
            case 4:
                j = int(rng.integers(len(rows[k]) + 1))
                rows[k] = rows[k][:j] + chr(int(rng.integers(1, 256))) + rows[k][j + 1 :]
            case _:
                rows = rows[: k + 1]
    return "\n".join(rows)


def attempt(text: str, at: str, read: Any) -> tuple[Any, int]:
    """What `read` returns, or the line its DataError names (which must lie inside the text)."""
    try:
        return read(text), 0
    except DataError as error:
        place, _, line = str(error.at).rpartition(":")
        if place != at or not 1 <= int(line) <= text.count("\n") + text.count("\r") + 1:
            pytest.fail(f"{error.at} is no line of {text!r}")
        return None, int(line)


def test_mutated_tsplib_files() -> None:
    """A usable instance or a DataError with file and line."""
    mutated_tsplib_files(500)


@slow
def test_many_mutated_tsplib_files() -> None:
    """The same, 100,000 times, and none takes long: a second is room for a busy machine."""
    worst = mutated_tsplib_files(100_000)
    assert worst < 1


def mutated_tsplib_files(count: int) -> float:
    """The processor time of the slowest of so many damaged files; all are read or refused with file and line."""
    rng = np.random.default_rng(5)
    read, worst = 0, 0.0
    for k in range(count):
        text = mutate_text(TEXTS[k % len(TEXTS)], rng)
        start = time.thread_time()
        item, _ = attempt(text, "a.tsp", lambda t: tsplib.parse(t, at="a.tsp", name="a"))
        worst = max(worst, time.thread_time() - start)
        if item is not None:
            read += 1
            nodes = range(item.nodes) if item.demand is None else [v for c in range(1, item.nodes) for v in (0, c)]
            assert np.isfinite(item.re_cost(list(nodes)))
    assert read > count / 20
    return worst


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=slow)])
def test_mutated_tours(count: int) -> None:
    """Damaged .tour and .sol files: a tour of the instance's nodes or a DataError with file and line."""
    rng = np.random.default_rng(6)
    square, van = tsplib.parse(SQUARE, name="square"), tsplib.parse(VAN, name="van")
    good = "TYPE : TOUR\nDIMENSION : 4\nTOUR_SECTION\n1\n2\n3\n4\n-1\nEOF"
    read = 0
    for _ in range(count // 2):
        tour, _ = attempt(mutate_text(good, rng), "a", lambda t: tours.parse_tour(t, square, "a"))
        walk, _ = attempt(
            mutate_text("Route #1: 0 3\nRoute #2: 2\nCost 36\n", rng), "a", lambda t: tours.parse_sol(t, van, "a")[0]
        )
        assert set(tour or ()) | set(walk or ()) <= {0, 1, 2, 3}
        read += (tour is not None) + (walk is not None)
    assert count / 20 < read < count


def test_large_declarations_cost_nothing() -> None:
    """A file that declares a billion nodes, or 10,000 with a matrix it does not have, is refused before allocation."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    huge = explicit("FULL_MATRIX", [1, 2, 3]).replace("DIMENSION: 4", "DIMENSION: 10000")
    for text in (SQUARE.replace(": 4", ": 1000000000"), SQUARE.replace(": 4", ": 1000000"), huge):
        with pytest.raises(DataError, match="DIMENSION"):
            tsplib.parse(text)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 50


def test_a_long_line_of_digits_is_refused() -> None:
    """A megabyte of digits in one number is an error, not a number."""
    refuse_long_lines()


@slow
def test_a_long_line_of_digits_is_refused_soon() -> None:
    """In a few seconds of processor time at most: turning the digits into a number would take longer."""
    start = time.thread_time()
    refuse_long_lines()
    assert time.thread_time() - start < 5


def refuse_long_lines() -> None:
    """Both places where a number can stand are tried."""
    for text in (SQUARE.replace("2 0 10", "2 0 " + "9" * 1_000_000), SQUARE.replace(": 4", ": " + "4" * 1_000_000)):
        with pytest.raises(DataError):
            tsplib.parse(text)


# The child process that reads users' files.


def run_child(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch, **limits: int) -> DataError:
    """The error the parent raises when the reader in the child does `body` instead of reading."""
    package = tmp_path / "evil"
    package.mkdir()
    hook = "import cnf_cli.formats.read as r\ndef evil(paths, *a, **named):\n    a[-1](paths[0])\n"
    hook += "".join(f"    {line}\n" for line in body.splitlines()) + "r.read_any = evil\n"
    (package / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(package))
    (tmp_path / "a.tsp").write_text(SQUARE)
    with pytest.raises(DataError) as caught:
        sandbox.read_safely([tmp_path / "a.tsp"], **limits)  # type: ignore[arg-type]
    return caught.value


CHILD_CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", {}),
    "loop": ("while True: pass", "longer than 1 s", {"seconds": 1}),
    "memory": ("x = bytearray(1 << 30)", "more than 256 MB", {"memory": 256 << 20}),
    "system": ("import os\nos.system('touch CANARY')", "os.system is not for a reader", {}),
    "process": ("import subprocess\nsubprocess.run(['touch', 'CANARY'])", "not for a reader", {}),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "not for a reader", {}),
    "write": ("open('CANARY', 'w')", "writes nowhere else", {}),
    "exit": ("import os\nos._exit(7)", "exit code 7", {}),
    "recursion": ("f = lambda: f()\nf()", "RecursionError", {}),
}


@pytest.mark.parametrize("kind", CHILD_CASES)
def test_whatever_happens_in_the_child_is_one_error(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash, an endless loop, too much memory, a started process, a connection: a DataError that names the file."""
    body, message, limits = CHILD_CASES[kind]
    error = run_child(tmp_path, body.replace("CANARY", str(tmp_path / "canary")), monkeypatch, **limits)
    assert message in error.message
    assert error.at == str(tmp_path / "a.tsp")
    assert not (tmp_path / "canary").exists()


def test_the_error_file_is_json_of_known_keys(tmp_path: Path) -> None:
    """What the child reports is data: three texts, nothing the parent would run."""
    (tmp_path / "error.json").touch()
    assert sandbox._report(tmp_path, DataError("a", at="b", hint="c"), 1, {}) == 2
    assert json.loads((tmp_path / "error.json").read_text()) == {"message": "a", "at": "b", "hint": "c"}
