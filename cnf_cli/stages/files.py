"""Files inside a stage's work folder: written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnf_cli.formats.files import replacing


def write_atomic(path: Path, data: bytes) -> None:
    """The file holds exactly `data`, also after a crash at any point."""
    with replacing(path) as temp:
        temp.write_bytes(data)


class Metrics:
    """metrics.jsonl: one JSON object per line; a resumed run first drops what it will write again."""

    def __init__(self, path: Path, keep_until: int) -> None:
        """Lines whose `instances` are at most `keep_until` stay."""
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _instances(line) <= keep_until]
        write_atomic(path, "".join(line + "\n" for line in kept).encode())

    def add(self, values: Mapping[str, Any]) -> None:
        """One more line; floats are shortened to what they are worth."""
        short = {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(short) + "\n")


def _instances(line: str) -> float:
    try:
        return int(json.loads(line)["instances"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
