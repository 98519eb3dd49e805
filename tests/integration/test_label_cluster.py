"""Labelling through an existing cluster engine: the same artifact as with local processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnf_cli.store import Store
from tests.helpers import cnf, cnf_json


def test_dask_gives_the_same_artifact(tmp_path: Path) -> None:
    """`cnf label --executor dask` starts a local cluster, and its result has the same id and bytes."""
    pytest.importorskip("distributed")
    found = {}
    for executor in ("processes", "dask"):
        store = tmp_path / executor
        data = cnf_json("data", "generate", "tsp", "--n", "9", "--count", "6", store=store)["id"]
        done = cnf("label", data, "--solver", "descent", "--jobs", "2", "--executor", executor, "-q", store=store)
        assert done.returncode == 0, done.stderr
        manifest = Store(store).find(done.stdout.strip())
        assert manifest is not None
        found[executor] = (manifest.key, manifest.digest)
    assert found["dask"] == found["processes"]
