"""What a forward pass will need of the memory there is: asked before, because nothing can be mended afterwards."""

from __future__ import annotations

from pathlib import Path

import torch

from cnf_cli.errors import DataError

PAIR_BYTES = 160
"""Bytes per pair of nodes of one row: legs and their costs in both precisions, tours, one head's attention."""
SCORE_BYTES = 4 * 16
"""Bytes per pair of nodes of a thread: the decoder's attention scores, of up to 16 heads."""
NODE_BYTES = 4 * 40 * 128
"""Bytes per node of one row: embeddings, the layers' own rows and the decoder's tables, 128 wide."""
SHARE = 0.8
"""Of the free memory, what one call may take."""


def needed(nodes: int, rows: int, threads: int) -> int:
    """Bytes for `rows` instances or copies that go through an encoder and are rolled out from every node."""
    pairs = nodes * nodes
    return rows * (PAIR_BYTES * pairs + NODE_BYTES * nodes) + SCORE_BYTES * pairs * threads


def free(device: torch.device) -> int | None:
    """Bytes this process may still take, by the system and by its control group; None where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [value for value in (_system(), _group()) if value is not None]
    return min(found) if found else None


def rows_that_fit(nodes: int, rows: int, device: torch.device) -> int:
    """As many of `rows` as fit into the free memory together; `DataError` where not even one does."""
    have, threads = free(device), torch.get_num_threads()
    if have is None:
        return rows
    while rows > 1 and needed(nodes, rows, threads) > SHARE * have:
        rows //= 2
    least = needed(nodes, rows, threads)
    if least > SHARE * have:
        raise DataError(
            f"an instance of {nodes:,} nodes needs about {_size(least)} of memory here, and {_size(have)} are free",
            hint="split it into regions, or use a solver of `cnf solvers`: their memory does not grow with the pairs",
        )
    return rows


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("MB", "GB", "TB"):
        amount /= 1e6 if unit == "MB" else 1e3
        if amount < 1000:
            break
    return f"{amount:,.0f} {unit}"


def _system() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control group leaves of its limit; cached files that can be dropped do not count as in use."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return None if limit == "max" else max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
