"""Training stages: they learn, resume exactly, and share work between processes (promises 14, 15)."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.formats import checkpoint
from cnf_cli.store import Store
from tests.conftest import ROOT
from tests.helpers import cnf, cnf_json, environment

SMALL = ["--set", "policy.width=16", "--set", "policy.layers=2", "--set", "policy.feed_forward=32"]
SMALL += [
    "--set",
    "pretrain.batch_size=16",
    "--set",
    "pretrain.epoch_instances=160",
    "--set",
    "pretrain.validation_count=20",
]
PRETRAIN = ["pretrain", "tsp", "--n", "8", *SMALL, "--set", "pretrain.instances=960"]
HARDEN = ["train-cnf", "tsp", "--n", "8", *SMALL, "--set", "pretrain.instances=160", "--set", "train.instances=960"]
HARDEN += ["--set", "train.batch_size=16", "--set", "train.epoch_instances=160", "--set", "train.validation_count=10"]


def digests(store: Path, key: str) -> dict[str, str]:
    manifest = Store(store).find(key)
    assert manifest is not None
    return {name: out.sha256 for name, out in manifest.outputs.items()}


def metrics(store: Path, key: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Store(store).open(key, "metrics.jsonl").read_text().splitlines()]


def interrupted(args: list[str], store: Path, seed: int, times: int) -> str:
    """The artifact's id after `times` interruptions at random moments of the training, then a full run."""
    rng, cut, span = random.Random(seed), 0, 0.3
    while cut < times:
        process = subprocess.Popen(
            [sys.executable, "-m", "cnf_cli", *args],
            env=environment(store),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        before = {p: p.stat().st_mtime_ns for p in store.glob("work/*/state.safetensors")}
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if any(p.stat().st_mtime_ns != before.get(p) for p in store.glob("work/*/state.safetensors")):
                break
            time.sleep(0.01)
        time.sleep(rng.random() * span)
        process.send_signal(signal.SIGKILL if cut % 2 else signal.SIGINT)
        process.communicate(timeout=60)
        if process.returncode != 0:
            cut += 1
        elif cut:
            break
        else:  # a fast machine was done before the first signal: anew, with less time
            span /= 2
            shutil.rmtree(store)
            assert span > 0.01, "at least one run must be cut off"
    done = cnf(*args, store=store)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("args", [PRETRAIN, [*HARDEN, "--set", "train.keep=best"]], ids=["pretrain", "train-cnf"])
def test_resume_is_exact(args: list[str], tmp_path: Path) -> None:
    """A run cut off at random moments ends in the same bytes as one that ran straight through."""
    straight = cnf(*args, store=tmp_path / "a")
    assert straight.returncode == 0, straight.stderr
    key = interrupted(args, tmp_path / "b", seed=3, times=3)
    assert key == straight.stdout.strip()
    assert digests(tmp_path / "a", key) == digests(tmp_path / "b", key)


def test_same_key_same_bytes_in_fresh_processes(tmp_path: Path) -> None:
    """A fresh process and one of other descent give equal digests for every output of every stage."""
    keys = [cnf(*HARDEN, store=tmp_path / name, fresh=name == "b").stdout.strip() for name in ("a", "b")]
    assert keys[0] == keys[1]
    stores = [Store(tmp_path / name) for name in ("a", "b")]
    found = [{m.key: m.digest for m in store.manifests()} for store in stores]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_the_best_models_are_kept(tmp_path: Path) -> None:
    """At a rate that makes them worse, what is kept is what the validation with the lowest cost saw."""
    args = [*HARDEN, "--set", "train.lr=0.05", "--set", "train.decay_last=0"]
    best = cnf_json(*args, "--set", "train.instances=640", "--set", "train.keep=best", store=tmp_path)
    costs = {row["instances"]: row["clean_cost"] + row["adversarial_cost"] for row in metrics(tmp_path, best["id"])}
    at = min(costs, key=lambda instances: costs[instances])
    assert best["checks"]["kept_at"] == at < 640, "the test needs a run that gets worse"
    short = cnf_json(*args, "--set", f"train.instances={at}", store=tmp_path)
    assert "kept_at" not in short["checks"]
    for j in range(3):  # the rate never falls: a shorter run is the beginning of the longer one
        kept, last = (digests(tmp_path, made["id"])[f"model-{j}.safetensors"] for made in (best, short))
        assert kept == last
    refused = cnf(*args, "--set", "train.keep=best", "--set", "train.validation_count=0", store=tmp_path)
    assert refused.returncode == 2
    assert "needs train.validation_count" in refused.stderr


def test_training_learns(tmp_path: Path) -> None:
    """A few seconds of training on TSP20 lower the validation cost, and the metrics say so line by line."""
    args = [
        *PRETRAIN,
        "--set",
        "problem.n=20",
        "--set",
        "pretrain.instances=4800",
        "--set",
        "pretrain.lr=0.002",
        "--set",
        "policy.width=32",
    ]
    key = cnf_json(*args, store=tmp_path)["id"]
    rows = metrics(tmp_path, key)
    assert [row["instances"] for row in rows] == list(range(160, 4801, 160))
    assert rows[-1]["validation_cost"] < rows[0]["validation_cost"] * 0.99
    assert rows[-1]["lr"] == pytest.approx(0.0002)
    assert rows[0]["lr"] == pytest.approx(0.002)


def test_size_curriculum_and_starting_from_another_artifact(tmp_path: Path) -> None:
    """A curriculum over sizes runs, and another run starts from its weights."""
    first = cnf_json(*PRETRAIN, "--set", "pretrain.sizes=[5, 8]", store=tmp_path)["id"]
    shown = cnf_json(*PRETRAIN, "--init", first, "--set", "pretrain.lr=1e-9", store=tmp_path)["id"]
    tree = cnf_json("show", shown, store=tmp_path)["lineage"]
    assert tree["inputs"]["init"]["id"] == first


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def under_torchrun(args: list[str], store: Path) -> Any:
    """What two processes working together print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    # torchrun's own parser trips over --n, so the size is given the long way.
    given = [args[0], "tsp", "--set", "problem.n=8", *args[4:], "--json"]
    command += ["--master-port", str(free_port()), "-m", "cnf_cli", *given]
    done = subprocess.run(command, env=environment(store), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_ranks_train_like_one(tmp_path: Path) -> None:
    """Two processes under torchrun with the same total batch reach the same validation costs; rank 0 writes.

    What they write has the names and shapes of what one process writes.
    """
    one = cnf_json(*PRETRAIN, store=tmp_path / "one")["id"]
    two = under_torchrun(PRETRAIN, tmp_path / "two")["id"]
    assert two == one
    manifest = Store(tmp_path / "two").find(two)
    assert manifest is not None
    assert manifest.provenance["world_size"] == 2
    ours, theirs = metrics(tmp_path / "one", one), metrics(tmp_path / "two", two)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert b["validation_cost"] == pytest.approx(a["validation_cost"], rel=2e-3)
    saved = [checkpoint.load(Store(tmp_path / name).open(one, "model.safetensors"))[0] for name in ("one", "two")]
    assert {k: v.shape for k, v in saved[0].items()} == {k: v.shape for k, v in saved[1].items()}


def test_two_ranks_harden_an_ensemble(tmp_path: Path) -> None:
    """train-cnf runs under torchrun, missing pretraining included, and every model has moved from the start."""
    made = under_torchrun([*HARDEN, "--set", "train.instances=160"], tmp_path)
    assert (made["checks"]["models"], made["checks"]["instances"]) == (3, 160)
    outputs = digests(tmp_path, made["id"])
    assert len({outputs[f"model-{j}.safetensors"] for j in range(3)}) == 3
    assert Store(tmp_path).verify(deep=True).problems == []
