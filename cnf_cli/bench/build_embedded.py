"""Make embedded.h5 from the packages that embedded.toml names, unpacked in a folder; a maintainer's tool."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np

from cnf_cli.bench.embedded import pack
from cnf_cli.bench.libraries import HERE, LIBRARIES, digest
from cnf_cli.formats import dataset, tsplib
from cnf_cli.formats.item import Item

MOST_BYTES = 300_000


def build(folder: Path, out: Path) -> int:
    """Writes the embedded set and returns its size; every instance must be the library's own."""
    found: list[Item] = []
    for source in tomllib.loads((HERE / "embedded.toml").read_text(encoding="utf-8"))["source"]:
        for file in source["files"]:
            item = read(folder / source["folder"] / file)
            known = LIBRARIES[source["library"]].known[item.name]
            if digest(item) != known.sha256:
                raise SystemExit(f"{file} of {source['package']} is not the library's {item.name}")
            found.append(item)
    dataset.save(out, pack(found))
    size = out.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{size} bytes, more than {MOST_BYTES}")
    return size


def read(path: Path) -> Item:
    """A TSPLIB file, or one of deap's JSON files with a distance matrix."""
    if path.suffix != ".json":
        return tsplib.read(path)
    matrix = np.array(json.loads(path.read_text(encoding="utf-8"))["DistanceMatrix"], dtype=np.float64)
    np.fill_diagonal(matrix, 0.0)
    return Item("tsp", "explicit", path.stem, matrix=matrix)


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]), HERE / 'embedded.h5')} bytes\n")
