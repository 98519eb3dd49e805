"""Rollouts and their gradients: one interface, a torch engine for any device and a native one for CPUs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cnf_cli.errors import MissingDependency

if TYPE_CHECKING:
    import torch

    from cnf_cli.engine.base import Engine


def get_engine(name: str = "auto", device: torch.device | str = "cpu", threads: int | None = None) -> Engine:
    """The engine of that name; `auto` is the native one on a CPU where it was built, else torch.

    The native one uses `threads` threads, or as many as torch does at each call.
    """
    if name == "torch":
        return _torch()
    if name not in ("auto", "native"):
        raise ValueError(f"no engine {name!r}")
    on_cpu = str(device).startswith("cpu")
    native = _if_built(threads) if on_cpu else None
    if native is not None:
        return native
    if name == "auto":
        return _torch()
    if not on_cpu:
        raise MissingDependency(
            f"the native engine runs on the CPU, not on {device}", hint="use --set runtime.engine=torch"
        )
    raise MissingDependency(
        "the native engine was not built when this package was installed",
        hint="reinstall with a C++ compiler (`pip install --force-reinstall --no-deps cnf-cli`),"
        " or use --set runtime.engine=torch",
    )


def _torch() -> Engine:
    from cnf_cli.engine.torch import TorchEngine

    return TorchEngine()


def _if_built(threads: int | None) -> Engine | None:  # `_native` is the extension module's name
    try:
        native = import_module("cnf_cli.engine.native")
    except ImportError:
        return None
    engine: Engine | None = native.NativeEngine(threads) if native.available() else None
    return engine
