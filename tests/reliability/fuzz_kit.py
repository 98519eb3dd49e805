"""What the fuzzer feeds to every reader of files: honest files, words that hurt, and how bytes are damaged."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnf_cli.formats import checkpoint, csv, dataset, sets, tours, tsplib
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.recipe import load_recipe
from cnf_cli.recipe.starter import starter
from cnf_cli.store import Store, disk
from tests.reliability.store_kit import put
from tests.reliability.test_formats_mutate import mutate

Rng = np.random.Generator
SQUARE = """NAME : square
TYPE : TSP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
NODE_COORD_SECTION
1 0 0
2 0 10
3 10 10
4 10 0
EOF
"""
MATRIX = """NAME : m
TYPE : ATSP
DIMENSION : 3
EDGE_WEIGHT_TYPE : EXPLICIT
EDGE_WEIGHT_FORMAT : FULL_MATRIX
EDGE_WEIGHT_SECTION
0 1 2
3 0 4
5 6 0
EOF
"""
VAN = """NAME : van
TYPE : CVRP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
CAPACITY : 10
NODE_COORD_SECTION
1 0 0
2 0 10
3 10 10
4 10 0
DEMAND_SECTION
1 0
2 4
3 5
4 6
DEPOT_SECTION
1
-1
EOF
"""
_TABLES = (
    b"0,0\n0,1\n1,1\n",
    b"# capacity: 9\nx;y;demand\n0;0;0\n1,5;2;3\n",
    b"# capacity: 9\n0,0,0\n1,1,4\n",
)
ROUTES = "Route #1: 1 2\nRoute #2: 3\nCost 54\n"
_NUMBERS = (
    b"-1",
    b"0",
    b"1e309",
    b"nan",
    b"9" * 400,
    b"1e100",
    b"99999999",
    b"\t",
    b"\r",
    b"\x00",
    b"\xff\xfe",
    b"\xc3\xa4",
)
_TSPLIB = (
    b"NODE_COORD_SECTION\n", b"DEMAND_SECTION\n", b"EOF\n", b"DIMENSION : 99999999\n", b"TYPE : ATSP\n", b"GEO", b"ATT",
    b"EXPLICIT", b"CAPACITY : 0\n", b"FIXED_EDGES_SECTION\n", b"TOUR_SECTION\n", b"DEPOT_SECTION\n1\n-1\n", b":",
    b"EDGE_WEIGHT_FORMAT : UPPER_ROW\n", b"Route #1: 1 2\n", b"DISPLAY_DATA_SECTION\n",
)  # fmt: skip
_CSV = (b",", b";", b"\n", b'"', b"# capacity: 9\n", b"x,y\n", b"lon;lat\n", b"1,5", b"\xef\xbb\xbf", b"demand")
_TOML = (
    b"[", b"]", b"=", b'"', b"'", b"{", b"}", b".", b"#", b"\n", b'"""', b"'''", b"\\", b"inf", b"0x", b"[[a]]\n",
    b"[train]\n", b"true", b"1979-05-27", b"\xef\xbb\xbf", b"a.b.c.d = 1\n", b'extends = "a.toml"\n',
)  # fmt: skip
_PICKLE = (
    b"cos\nsystem\n",
    b"\x93",
    b"R",
    b"b",
    b"(",
    b"e",
    b"t",
    b"\x8e" + b"\xff" * 8,
    b"q\x00",
    b"h\x00",
    b".",
    b"\x80\x05",
)
_HEADER = (b"x", b"L", b"1", b"2", b"7" * 11 + b"\0", b"../", b"g")
_JSON = (b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"1e999", b"-1", b'"shape":[1]', b"18446744073709551616")


def _hurt(data: bytes, rng: Rng, words: tuple[bytes, ...]) -> bytes:
    """Random bytes changed, or a word that hurts put in, doubled or over what was there."""
    if not words or rng.random() < 0.5:
        return mutate(data, rng)
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        word, at = words[int(rng.integers(len(words)))], int(rng.integers(len(out) + 1))
        end = at + (len(word) if rng.random() < 0.5 else 0)
        out[at:end] = word
    return bytes(out)


def _line_by_line(words: tuple[bytes, ...]) -> Callable[[bytes, Rng], bytes]:
    """Damage for text: as above, or lines dropped, doubled and swapped."""

    def damage(data: bytes, rng: Rng) -> bytes:
        if rng.random() < 0.6:
            return _hurt(data, rng, words)
        rows = data.split(b"\n")
        for _ in range(int(rng.integers(1, 4))):
            i, j = int(rng.integers(len(rows))), int(rng.integers(len(rows)))
            match int(rng.integers(3)):
                case 0:
                    rows[i], rows[j] = rows[j], rows[i]
                case 1:
                    rows.insert(i, rows[j])
                case _ if len(rows) > 1:
                    del rows[i]
        return b"\n".join(rows)

    return damage


def _checkpoint(data: bytes, rng: Rng) -> bytes:
    """Mostly the header, where everything is declared; half of the time with its length put right again."""
    length = struct.unpack("<Q", data[:8])[0]
    if rng.random() < 0.2:
        return mutate(data, rng)
    header = _hurt(data[8 : 8 + length], rng, _JSON)
    told = len(header) if rng.random() < 0.5 else length
    return struct.pack("<Q", told) + header + data[8 + length :]


def _archive(data: bytes, rng: Rng) -> bytes:
    """Raw bytes, a header with its sum put right, or a manifest with its seal and size put right."""
    way = rng.random()
    if way < 0.3:
        return mutate(data, rng)
    if way < 0.6:
        out = bytearray(data)
        at = 512 * int(rng.integers(len(out) // 512))
        block = bytearray(_hurt(bytes(out[at : at + 512]), rng, _HEADER)[:512])
        block += bytes(512 - len(block))
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        out[at : at + 512] = block
        return bytes(out)
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            files[member.name] = content.read() if content else b""
    name = sorted(n for n in files if n.endswith("manifest.json"))[int(rng.integers(2))]
    body = _hurt(files[name].split(b"\n", 1)[1], rng, _JSON)
    files[name] = b'{"seal": "%s",\n' % hashlib.sha256(body).hexdigest().encode() + body
    return _tar(files)


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


@dataclass(frozen=True)
class Reader:
    """One kind of file: honest ones, how they are damaged, who reads them."""

    suffix: str
    seeds: tuple[bytes, ...]
    damage: Callable[[bytes, Rng], bytes]
    read: Callable[[Path], Any]
    command: tuple[str, ...] = ("import",)
    dies: float = 0.0
    """Share of inputs on which the library below may end its process: the reason that it has one of its own."""

    def input(self, k: int) -> bytes:
        """The k-th input: the same on every machine."""
        rng = np.random.default_rng(k)
        return self.damage(self.seeds[k % len(self.seeds)], rng)


def readers(folder: Path) -> dict[str, Reader]:
    """Every reader of files, with honest files made in `folder`."""
    store = Store(folder / "receiver")
    return {
        "tsplib": Reader(".tsp", (SQUARE.encode(), MATRIX.encode()), _line_by_line(_TSPLIB + _NUMBERS), _tsplib),
        "vrplib": Reader(".vrp", (VAN.encode(),), _line_by_line(_TSPLIB + _NUMBERS), _tsplib),
        "solution": Reader(".sol", (ROUTES.encode(),), _line_by_line(_TSPLIB + _NUMBERS), _solution),
        "csv": Reader(".csv", _TABLES,
                      _line_by_line(_CSV + _NUMBERS), csv.read),
        "hdf5": Reader(".h5", (_hdf5(folder),), mutate, dataset.load, dies=0.01),
        "safetensors": Reader(".safetensors", (_safetensors(folder),), _checkpoint, checkpoint.load),
        "pickle": Reader(".pkl", _pickles(), lambda data, rng: _hurt(data, rng, _PICKLE), sets.read_pickle),
        "toml": Reader(".toml", (starter("cvrp", 20).encode(),), _line_by_line(_TOML + _NUMBERS), load_recipe,
                       ("recipe", "check")),
        "tar": Reader(".tar", (_exported(folder),), _archive, lambda path: store.take_in(path, lambda *_: None)),
    }  # fmt: skip


def _tsplib(path: Path) -> Any:
    item = tsplib.read(path)
    walk = range(item.nodes) if item.demand is None else [v for c in range(1, item.nodes) for v in (0, c)]
    return item.re_cost(list(walk))


def _solution(path: Path) -> Any:
    return tours.read_reference(path, tsplib.parse(VAN, name="van"))


def _hdf5(folder: Path) -> bytes:
    rng = np.random.default_rng(0)
    tour = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    known = Block(
        xy=rng.random((2, 4, 2)), names=("a", "b"), tour=tour, cost=np.ones(2), proved=np.array([True, False])
    )
    plain = Block(xy=rng.random((3, 6, 2)), extra={"ids": np.arange(18).reshape(3, 6)})
    dataset.save(folder / "seed.h5", Dataset("tsp", (known, plain), solver="lkh", attrs={"seed": 1}))
    return (folder / "seed.h5").read_bytes()


def _safetensors(folder: Path) -> bytes:
    import torch

    path = folder / "seed.safetensors"
    checkpoint.save(path, {"a.weight": torch.ones(3, 4), "b": torch.arange(3)}, {"kind": "policy"})
    return path.read_bytes()


def _pickles() -> tuple[bytes, ...]:
    """TSP and CVRP sets, solutions, numpy numbers, torch tensors."""
    import torch

    maps = [[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]] * 2
    vans = [([0.5, 0.5], [[0.1, 0.2], [0.3, 0.4]], [3, 4], 9.0)] * 2
    numbers = [[[np.float64(0.1), np.float64(0.2)], [np.float64(0.3), np.float64(0.4)]]]
    made: list[Any] = [maps, vans, [(1.5, [0, 1, 2])], numbers, torch.rand(2, 3, 2)]
    return tuple(pickle.dumps(value, protocol=p) for value in made for p in (3, 4))


def _exported(folder: Path) -> bytes:
    disk.FAN = 2
    store = Store(folder / "sender")
    first = put(store, 1, folder / "source")
    top = put(store, 2, folder / "source", {"first": first})
    return store.send(top.key, folder / "seed.tar")[0].read_bytes()


def is_refusal(told: str) -> bool:
    """Whether a command's stderr is an error for the user."""
    return bool(re.search(r"^error: (?!this is a bug)", told, re.M)) and "Traceback" not in told


def dump(counts: dict[str, dict[str, Any]]) -> str:
    """The counts, one reader a line."""
    return "\n".join(f"{name:12} {json.dumps(counted)}" for name, counted in counts.items())
