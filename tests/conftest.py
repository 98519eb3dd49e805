"""Shared by all tests: where the public data is, no network, jaxtyping checks on."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import jaxtyping
import pytest

if _built := os.environ.get("CNF_TEST_BUILT"):  # `make sanitize`: the extensions as they were built there
    for _name in ("cnf_cli.engine._native", "cnf_cli.search._search"):
        (_file,) = Path(_built).glob(_name.replace(".", "/") + "*.so")
        _spec = importlib.util.spec_from_file_location(_name, _file)
        assert _spec is not None
        assert _spec.loader is not None
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])

# Declared tensor shapes are checked wherever tests run the code; users do not pay for it.
_SHAPED = [f"cnf_cli.{name}" for name in ("problems", "engine", "policies", "attacks", "defences")]
jaxtyping.install_import_hook(_SHAPED, "beartype.beartype")

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("CNF_SHARED", ROOT.parent / "shared"))
os.environ.setdefault("MPLBACKEND", "Agg")
for _own in ("CNF_STORE", "CNF_DEVICE", "CNF_ZOO", "CNF_BENCH_DIR"):  # the user's own settings are not the tests'
    os.environ.pop(_own, None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public instances and weights; tests that need it skip without it."""
    if not (SHARED / "data").is_dir():
        pytest.skip("the public data folder is not there (CNF_SHARED)")
    return SHARED


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only addresses of this machine can be reached (promise 19)."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> object:
        host = address[0] if isinstance(address, tuple) else "local"
        if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to reach {address}")
        return connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
