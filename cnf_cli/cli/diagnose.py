"""The facts `cnf doctor` shows."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from typing import TYPE_CHECKING, Any

import cnf_cli
from cnf_cli import plugins
from cnf_cli.errors import CnfError
from cnf_cli.pipeline.provenance import cpu_name, versions

if TYPE_CHECKING:
    from cnf_cli.store import Store


def diagnose(store: Store) -> dict[str, dict[str, Any]]:
    """Everything a maintainer would ask for, and what is missing with the command that brings it."""
    import platform

    return {
        "cnf": {"version": cnf_cli.__version__, "python": platform.python_version(), "system": platform.platform()},
        "packages": versions(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "memory": _memory(), **_devices()},
        "engine": _engines(),
        "store": _store(store),
        "zoo": _zoo(),
        "solvers": {kind: solver_state(kind) for kind in plugins.kinds("solvers")},
        "extras": {name: _extra(name) for name in ("tensorboard", "rl4co")},
    }


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (OSError, ValueError):
        return "unknown"


def _devices() -> dict[str, Any]:
    import torch

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"torch threads": torch.get_num_threads(), "cuda": ", ".join(cuda) or "none"}


def _engines() -> dict[str, str]:
    from cnf_cli.engine import get_engine, native

    missing = f"not built ({native.why_not()}): install a C++ compiler and reinstall; torch does the work meanwhile"
    built = f"built, kernels for {', '.join(native.instruction_sets())}"
    return {"auto on cpu": get_engine("auto", "cpu").name, "native": built if native.available() else missing}


def _store(store: Store) -> dict[str, Any]:
    try:
        report = store.verify()
        free = shutil.disk_usage(store.root if store.root.exists() else ".").free
    except CnfError as error:
        return {"path": str(store.root), "state": error.message}
    state = "sound" if not report.problems else f"{len(report.problems)} problems: `cnf verify`"
    return {
        "path": str(store.root),
        "artifacts": len(list(store.manifests())),
        "state": state,
        "free disk": f"{free / 2**30:.1f} GiB",
    }


def _zoo() -> dict[str, str]:
    """Every policy inside the package: whether its bytes are what its card says."""
    from cnf_cli.zoo.cards import card, weight_files
    from cnf_cli.zoo.place import names

    found = {}
    for name in names():
        try:
            found[name] = f"sound, {len(weight_files(card(name)))} models"
        except CnfError as error:
            found[name] = error.message
    return found


def solver_state(kind: str) -> str:
    """The solver's version, or how to get it."""
    solver = plugins.load("solvers", kind).Solver()
    version = solver.available()
    return f"{version} ({solver.licence})" if version else f"missing: {solver.package}"


def _extra(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        extra = {"rl4co": "bench"}.get(name, name)
        return f'missing: pip install "cnf-cli[{extra}]"'
