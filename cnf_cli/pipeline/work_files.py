"""Files inside a stage's work folder: written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnf_cli.regular_files import add_line, write_atomic

__all__ = ["Metrics", "write_atomic"]


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
        add_line(self.path, json.dumps(short))


def _instances(line: str) -> float:
    try:
        return int(json.loads(line)["instances"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
