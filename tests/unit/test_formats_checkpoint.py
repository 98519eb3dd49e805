"""Checkpoints: equal content gives equal bytes, and only what was expected is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.errors import ArtifactError
from cnf_cli.formats import checkpoint

META = {"kind": "policy", "problem": "tsp", "policy": {"width": 8, "heads": 2}}


def tensors() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        "b.weight": torch.randn(3, 4, generator=rng),
        "a": torch.arange(5),
        "empty": torch.zeros(0, 2),
        "s": torch.tensor(1.5),
    }


def test_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    """Tensors and metadata come back, and the order of keys does not change a byte."""
    checkpoint.save(tmp_path / "a", tensors(), META)
    checkpoint.save(tmp_path / "b", dict(reversed(tensors().items())), dict(reversed(META.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found, meta = checkpoint.load(tmp_path / "a", expect={k: tuple(v.shape) for k, v in tensors().items()})
    assert meta == {**META, "format": 1}
    assert set(found) == set(tensors())
    assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in tensors().items())


def test_shared_and_strided_tensors_are_saved_by_value(tmp_path: Path) -> None:
    """Views of one memory are written as tensors of their own."""
    base = torch.randn(4, 4)
    checkpoint.save(tmp_path / "a", {"x": base, "y": base.t(), "z": base[:, 1]}, META)
    found, _ = checkpoint.load(tmp_path / "a")
    assert torch.equal(found["y"], base.t())
    assert torch.equal(found["z"], base[:, 1])


@pytest.mark.parametrize(
    "bad", [torch.tensor([float("nan")]), torch.tensor([float("inf")]), torch.zeros(2, dtype=torch.float64)]
)
def test_useless_tensors_are_not_saved(tmp_path: Path, bad: torch.Tensor) -> None:
    """NaN, infinity and other number types never become a checkpoint."""
    with pytest.raises(ArtifactError):
        checkpoint.save(tmp_path / "a", {"x": bad}, META)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"a": (5,)}, "has unknown b.weight and 2 more"),
        ({"a": (5,), "b.weight": (3, 4), "empty": (0, 2), "s": (), "c": (1,)}, "lacks c"),
        ({"a": (5,), "b.weight": (4, 3), "empty": (0, 2), "s": ()}, r"b.weight has shape \(3, 4\), expected \(4, 3\)"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, expect: dict[str, tuple[int, ...]], message: str) -> None:
    """Missing, unknown and differently shaped tensors are named, with a next step."""
    checkpoint.save(tmp_path / "a", tensors(), META)
    with pytest.raises(ArtifactError, match=message) as caught:
        checkpoint.load(tmp_path / "a", expect)
    assert caught.value.hint


def raw(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


OK = {"__metadata__": {"cnf": '{"format":1}'}}
F4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"<!DOCTYPE html><html>", "not a safetensors"),
        (struct.pack("<Q", 2**60) + b"{}", "not a safetensors"),
        (struct.pack("<Q", 2 << 20) + b"{" * (3 << 20), "not a safetensors"),
        (raw(b"[1]"), "damaged"),
        (raw(b"[" * 100_000), "damaged"),
        (raw(b'{"a":1,"a":2}'), "damaged"),
        (raw({}), "not written by cnf"),
        (raw({"__metadata__": {"cnf": "{}", "x": "y"}}), "not written by cnf"),
        (raw({"__metadata__": {"cnf": "{}"}}), "metadata"),
        (raw({"__metadata__": {"cnf": '{"format":2}'}}), "format 2"),
        (raw(OK, b"1234"), "too many"),
        (raw({**OK, "x": {**F4, "dtype": "F64"}}, b"1234"), "type F64"),
        (raw({**OK, "x": {**F4, "shape": [2]}}, b"1234"), "unlike its size"),
        (raw({**OK, "x": {**F4, "shape": [-1]}}, b"1234"), "wrong shape"),
        (raw({**OK, "x": {**F4, "shape": [True]}}, b"1234"), "wrong shape"),
        (raw({**OK, "x": {**F4, "data_offsets": [4, 8]}}, b"12345678"), "hole"),
        (raw({**OK, "x": F4, "y": F4}, b"1234"), "overlap"),
        (raw({**OK, "x": {**F4, "data_offsets": [0, 2**62], "shape": [2**60]}}, b"1234"), "wrong shape"),
        (raw({**OK, "x": F4}, b"12"), "outside"),
        (raw({**OK, "x": {**F4, "more": 1}}, b"1234"), "described wrongly"),
        (raw({**OK, "x": F4}, struct.pack("<f", float("nan"))), "NaN"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """Each kind of damage is an ArtifactError that names it and the file."""
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ArtifactError, match=message) as caught:
        checkpoint.load(tmp_path / "a")
    assert caught.value.at == str(tmp_path / "a")


def test_a_missing_file_is_an_artifact_error(tmp_path: Path) -> None:
    """No file, no traceback."""
    with pytest.raises(ArtifactError, match="cannot read"):
        checkpoint.load(tmp_path / "none")
