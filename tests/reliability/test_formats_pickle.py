"""A pickle cannot run code, eat the memory or take for ever (promise 9)."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats import sandbox, sets
from tests.conftest import ROOT
from tests.reliability.test_formats_mutate import mutate


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def stored(content: Any) -> Calls:
    """What a pickled tensor's storage is: torch's older file format as bytes inside the pickle."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return Calls(torch.storage._load_from_bytes, buffer.getvalue())


def tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, storage: Calls | None = None) -> bytes:
    if storage is None:
        zeros = torch.zeros(8).untyped_storage()
        storage = stored(torch.storage.TypedStorage(wrap_storage=zeros, dtype=torch.float32, _internal=True))
    return pickle.dumps(Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, OrderedDict()))


def shared_lists(levels: int) -> bytes:
    """Lists that hold their predecessor twice, `levels` times over: 2^levels numbers in a few bytes."""
    out = b"\x80\x04](]q\x00(" + 2 * (b"G" + struct.pack(">d", 1.0)) + b"e"
    for i in range(levels):
        out += b"](" + b"h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1])
    return out + b"e."


def shared_nodes(nodes: int, instances: int) -> bytes:
    """One node, referred to `nodes` times by one instance, referred to `instances` times."""
    node = b"]q\x00(" + 2 * (b"G" + struct.pack(">d", 1.0)) + b"e"
    return b"\x80\x04](]q\x01(" + node + b"h\x00" * nodes + b"e" + b"h\x01" * instances + b"e."


def crafted(canary: Path) -> dict[str, bytes]:
    """Hostile files by name; all would touch `canary` if any part of them ran."""
    touch = f"touch {canary}"
    scalar = pickle.dumps([np.float64(1.0)])
    return {
        "os.system": pickle.dumps(Calls(os.system, touch)),
        "os.system protocol 0": pickle.dumps(Calls(os.system, touch), protocol=0),
        "os.system protocol 2": pickle.dumps(Calls(os.system, touch), protocol=2),
        "eval": pickle.dumps(Calls(eval, f"open({str(canary)!r}, 'w')")),
        "exec": pickle.dumps(Calls(exec, f"open({str(canary)!r}, 'w')")),
        "open": pickle.dumps(Calls(open, str(canary), "w")),
        "subprocess": pickle.dumps(Calls(subprocess.Popen, ["touch", str(canary)])),
        "nested torch bytes": tensor((1, 2, 2), (4, 2, 1), storage=stored(Calls(os.system, touch))),
        "nested torch tensor": tensor((1, 2, 2), (4, 2, 1), storage=stored(torch.zeros(8))),
        "nested bytes of nothing": tensor((1, 2, 2), (4, 2, 1), storage=Calls(torch.storage._load_from_bytes, b"")),
        "partial": pickle.dumps(Calls(functools.partial(os.system, touch))),
        "getattr": pickle.dumps(Calls(getattr, "x", "upper")),
        "dotted global": b"\x80\x04\x8c\x05numpy\x8c\x10dtype.__reduce__\x93.",
        "dotted module": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch.encode() + b"\x85R.",
        "BUILD on a list": b"\x80\x04]}b.",
        "BUILD on a tuple state": b"\x80\x04](K\x03tb.",
        "BUILD an object dtype": scalar.replace(b"<", b"O"),
        "object dtype": scalar.replace(b"f8", b"O8"),
        "NEWOBJ": b"\x80\x04cbuiltins\nlist\n)\x81.",
        "INST": b"\x80\x02(ios\nsystem\n.",
        "OBJ": b"\x80\x02(cos\nsystem\no.",
        "EXT1": b"\x80\x02\x82\x01.",
        "PERSID": b"\x80\x02Pabc\n.",
        "8 EB of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**63 - 1) + b"x",
        "4 GB of text": b"\x80\x04X" + struct.pack("<I", 2**32 - 1) + b"x",
        "8 EB frame": b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b"x",
        "huge integer": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
        "long integer": b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".",
        "memo at 4 G": b"\x80\x04]r" + struct.pack("<I", 2**32 - 1) + b".",
        "10^5 nested lists": b"\x80\x04" + b"]" * 100_001 + b"a" * 100_000 + b".",
        "10^5 nested tuples": b"\x80\x04)" + b"\x85" * 100_000 + b".",
        "10^5 marks": b"\x80\x04" + b"(" * 100_000 + b".",
        "nested tuple as a name": b"\x80\x04)" + b"\x85" * 100_000 + b"N\x93.",
        "list in itself": b"\x80\x04]q\x00h\x00a.",
        "2^60 shared numbers": shared_lists(60),
        "2^60 as a name": shared_lists(60)[:-1] + b"N\x93.",
        "10^10 shared nodes": shared_nodes(100_000, 100_000),
        "tensor outside its storage": tensor((1, 5, 2), (10, 2, 1)),
        "tensor before its storage": tensor((1, 2, 2), (4, 2, 1), offset=-4),
        "tensor of 2^60": tensor((2**20, 2**20, 2), (2**21, 2, 1)),
        "tensor of stride 0": tensor((100, 100, 2), (0, 0, 1)),
        "dictionary": pickle.dumps({"a": 1}),
        "a number": pickle.dumps(1.0),
        "no instances": pickle.dumps([]),
        "NaN": pickle.dumps([[[0.0, float("nan")], [1.0, 1.0]]]),
        "text as coordinates": pickle.dumps([[["0", "1"], ["2", "3"]]]),
        "one node": pickle.dumps([[[0.0, 0.0]]]),
        "demand above capacity": pickle.dumps([([0, 0], [[1, 1], [2, 2]], [1, 9], 8)]),
        "truncated": pickle.dumps([[[0.5, 0.5], [1.0, 1.0]]])[:-5],
        "nothing but a header": b"\x80\x04",
    }


_MEASURE = """
import json, resource, sys, time
from pathlib import Path
import torch
from cnf_cli.errors import DataError
from cnf_cli.formats import sets
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = {}
for path in sorted(Path(sys.argv[1]).glob("*.pkl")):
    start = time.process_time()
    try:
        sets.read_pickle(path)
        what = "read"
    except DataError as error:
        what = error.message
    out[path.stem] = [what, time.process_time() - start]
print(json.dumps([out, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


def test_hostile_pickles_are_refused(tmp_path: Path) -> None:
    """All crafted files are refused, none runs anything, none takes 500 MB."""
    refuse_hostile(tmp_path)


@pytest.mark.slow
def test_hostile_pickles_are_refused_soon(tmp_path: Path) -> None:
    """None is worked on for longer than a few seconds of processor time."""
    assert refuse_hostile(tmp_path) < 5


def refuse_hostile(tmp_path: Path) -> float:
    """The processor time of the slowest of the crafted files, all of which are refused."""
    canary = tmp_path / "canary"
    files = crafted(canary)
    assert len(files) >= 20
    for k, data in enumerate(files.values()):
        (tmp_path / f"{k:03d}.pkl").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, grown = json.loads(done.stdout)
    results = dict(zip(files, found.values(), strict=True))
    assert [name for name, (what, _) in results.items() if what == "read"] == []
    assert grown < 500
    assert not canary.exists()
    for name, word in (
        ("os.system", "posix.system" if os.name == "posix" else "nt.system"),
        ("nested torch bytes", "more than tensors"),
        ("8 EB of bytes", "declares 9223372036854775807 bytes"),
        ("10^10 shared nodes", "larger than its file"),
        ("object dtype", "number type O8"),
    ):
        assert word in results[name][0]
    return max(seconds for _, seconds in results.values())


@pytest.mark.parametrize("name", ["os.system", "nested torch bytes", "10^5 nested tuples"])
def test_the_sandbox_refuses_them_too(tmp_path: Path, name: str) -> None:
    """The same files through the child process end in the same kind of error."""
    path = tmp_path / "a.pkl"
    path.write_bytes(crafted(tmp_path / "canary")[name])
    with pytest.raises(DataError) as caught:
        sandbox.read_safely([path])
    assert str(path) in str(caught.value.at)
    assert not (tmp_path / "canary").exists()


HONEST = (
    "concorde_tsp50_uniform.pkl",
    "cvrp50_uniform.pkl",
    "hgs_cvrp50_uniform.pkl",
    "lkh_atsp20.pkl",
    "tsp50_uniform.pkl",
)


@pytest.mark.parametrize("name", HONEST)
def test_honest_pickles_still_load(shared: Path, name: str) -> None:
    """Each public set, and each file of solutions, needs nothing that is refused."""
    path = shared / "data/sets" / name
    if not path.exists():
        pytest.skip(f"{name} is not in the public data")
    found = sets.read_pickle(path)
    assert (len(found.costs) if isinstance(found, sets.Solutions) else len(found)) == 1000


@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_mutated_pickles_are_read_or_refused(count: int) -> None:
    """Random damage to a valid set ends in data or in a DataError, nothing else."""
    from cnf_cli.formats import legacy, pickles

    rng = np.random.default_rng(7)
    cost = np.float64(1.5)
    seeds = [
        pickle.dumps([[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]] * 3),
        pickle.dumps([([[0.5, 0.5]], [[0.1, 0.2], [0.3, 0.4]], [1, 2], 30)] * 2, protocol=2),
        pickle.dumps([(cost, [0, 1, 2]), (cost, [0, 2, 1])]),
        pickle.dumps(torch.rand(2, 3, 2)),
    ]
    outcomes = {"read": 0, "refused": 0}
    for k in range(count):
        data = mutate(seeds[k % len(seeds)], rng)
        try:
            sets.interpret(pickles.loads(data, legacy.storage), len(data), "a.pkl")
            outcomes["read"] += 1
        except DataError:
            outcomes["refused"] += 1
    assert outcomes["read"] > 0
    assert outcomes["refused"] > count / 3
