"""A disk that fills up under a stage or an export is an error with its mount and the bytes needed, never a crash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import DataError
from cnf_cli.formats import checkpoint, dataset
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.regular_files import add_line, write_atomic
from cnf_cli.store import Store
from tests.helpers import cnf, cnf_json
from tests.reliability.store_kit import tmpfs


def large() -> Dataset:
    """About 3 MB that do not shrink when packed."""
    return Dataset("tsp", (Block(xy=np.random.default_rng(0).random((2000, 100, 2))),))


def test_exporting_a_data_set_to_a_full_disk_names_mount_and_bytes(tmp_path: Path) -> None:
    """HDF5 into 1 MB: exit 2 with the mount and the bytes needed; what was there stays, nothing half-done is left."""
    store = tmp_path / "store"
    made = cnf_json("data", "generate", "tsp", "--n", "100", "--count", "2000", store=store)["id"]
    with tmpfs(tmp_path / "mount", 1) as mount:
        (mount / "a.h5").write_bytes(b"mine")
        done = cnf("data", "export", made, str(mount / "a.h5"), "--force", store=store)
        assert done.returncode == 2, done.stderr
        assert f"no space left on {mount}: a.h5 needs" in done.stderr
        assert int(done.stderr.split("needs ")[1].split(" bytes")[0].replace(",", "")) > 1 << 20
        assert [p.name for p in mount.iterdir()] == ["a.h5"]
        assert (mount / "a.h5").read_bytes() == b"mine"


def test_a_stage_on_a_full_disk_is_an_error_and_goes_on_with_more_space(tmp_path: Path) -> None:
    """Drawing 3 MB into a store of 1 MB names the mount; the store stays sound, and more space is all it takes."""
    command = ("data", "generate", "tsp", "--n", "100", "--count", "2000")
    with tmpfs(tmp_path / "mount", 1) as mount:
        done = cnf(*command, store=mount / "store")
        assert done.returncode in (2, 3), done.stderr
        assert f"no space left on {mount}:" in done.stderr
        assert Store(mount / "store").verify(deep=True).ok
        subprocess.run(["mount", "-o", "remount,size=32m", str(mount)], check=True)
        assert cnf(*command, store=mount / "store").returncode == 0
        assert Store(mount / "store").verify(deep=True).ok


def test_a_line_of_metrics_on_a_full_disk_is_whole_or_absent(tmp_path: Path) -> None:
    """Lines are added until 1 MB is full: an error that names the mount, and every line of the file is whole."""
    with tmpfs(tmp_path / "mount", 1) as mount:
        path, line = mount / "metrics.jsonl", "x" * 5000
        while shutil.disk_usage(mount).free > 8192:
            add_line(path, line)
        add_line(path, line)
        with pytest.raises(DataError, match=f"no space left on {mount}: metrics.jsonl needs 900,001 bytes"):
            add_line(path, "y" * 900_000)
        assert set(path.read_text().splitlines()) == {line}
        assert path.read_text().endswith("\n")


def test_every_writer_leaves_what_was_there_when_the_disk_is_full(tmp_path: Path) -> None:
    """Data sets, checkpoints and pages: the old file is whole, no temporary one is left."""
    import torch

    with tmpfs(tmp_path / "mount", 1) as mount:
        for name, write in {
            "a.h5": lambda path: dataset.save(path, large()),
            "a.safetensors": lambda path: checkpoint.save(path, {"a": torch.zeros(1 << 20)}, {}),
            "a.html": lambda path: write_atomic(path, bytes(2 << 20)),
        }.items():
            (mount / name).write_bytes(b"old")
            with pytest.raises(DataError, match="no space left on"):
                write(mount / name)
            assert [(p.name, p.read_bytes()) for p in mount.iterdir()] == [(name, b"old")]
            (mount / name).unlink()


def test_a_full_temporary_folder_is_named_when_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's own folder has no room: an error that says so, not that the user's file is damaged."""
    rows = "".join(f"{x},{y}\n" for x in range(300) for y in range(300))
    (tmp_path / "a.csv").write_text(rows)
    with tmpfs(tmp_path / "mount", 1) as mount:
        monkeypatch.setenv("TMPDIR", str(mount))
        (mount / "filler").write_bytes(bytes(600_000))
        done = cnf("import", str(tmp_path / "a.csv"), store=tmp_path / "store", fresh=True)
        assert done.returncode == 2, done.stderr
        assert f"no space left on {mount}:" in done.stderr
        (mount / "filler").write_bytes(bytes((1 << 20) - 8192))
        done = cnf("import", str(tmp_path / "a.csv"), store=tmp_path / "store", fresh=True)
        assert done.returncode == 2, done.stderr
        assert f"no space left on {mount}" in done.stderr
