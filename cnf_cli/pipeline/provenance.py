"""Where a result comes from: code, versions, machine, time, command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import cnf_cli
from cnf_cli.pipeline import ranks

_PACKAGES = ("torch", "numpy", "h5py", "safetensors", "pydantic", "typer")


def provenance(command: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Facts about this run, for the manifest; none of them enters a key."""
    return {
        "cnf": cnf_cli.__version__,
        "git": git_commit(),
        "versions": versions(),
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "cpu": cpu_name(), "cores": os.cpu_count()},
        "world_size": ranks.world(),
        "command": list(command),
        # To the millisecond: small stages that follow each other within a second stay in order.
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "seconds": round(seconds, 3),
    }


def moment(finished: str | None) -> str:
    """A recorded time as a person reads it: to the second, and in which zone; "-" where there is none."""
    return f"{finished[:19].replace('T', ' ').removesuffix('Z')} UTC" if finished else "-"


def versions() -> dict[str, str]:
    """The installed versions of the packages that results depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def git_commit() -> str | None:
    """The commit of the source tree this package runs from, marked when there are local changes."""
    root = Path(cnf_cli.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


@cache
def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
