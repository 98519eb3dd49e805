"""ATSP through the stages: pretrain, attack by ROCO, harden with attackers that are refitted on the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cnf_cli.defences.router import make_router
from cnf_cli.formats import dataset
from cnf_cli.problems import atsp
from cnf_cli.stages.train_cnf import refit_due
from cnf_cli.store import Store
from cnf_cli.training.resume_state import Progress
from tests.helpers import cnf, cnf_json
from tests.integration.test_training import digests, interrupted

KEYS = ["policy.width=16", "policy.heads=4", "policy.layers=1", "policy.feed_forward=16", "pretrain.instances=64"]
KEYS += ["pretrain.batch_size=16", "pretrain.validation_count=4", "attack.kind=roco", "attack.steps=2"]
KEYS += ["attack.calls=6", "attack.episodes=6", "attack.fit_batch=3", "attack.update_epochs=1", "attack.count=12"]
KEYS += ["attack.refit_epochs=1", "train.models=2", "train.instances=48", "train.batch_size=8"]
KEYS += ["train.epoch_instances=16", "train.validation_count=4", "train.router_features=nonlinear"]
SETS = [word for key in KEYS for word in ("--set", key)]


def test_attack_stage_writes_matrices(tmp_path: Path) -> None:
    """`cnf attack atsp` leaves matrices beside their clean ones, each cost equal or halved, and the calls it took."""
    made = cnf_json("attack", "atsp", "--n", "8", *SETS, store=tmp_path)
    block = dataset.load(Store(tmp_path).open(made["id"], "data.h5")).blocks[0]
    assert block.matrix is not None
    assert block.matrix.shape == (12, 8, 8)
    ratio = block.extra["clean_matrix"] / np.where(block.matrix > 0, block.matrix, 1.0)
    assert set(np.log2(ratio[block.matrix > 0]).round(4)) <= {0.0, 1.0, 2.0}
    assert (block.extra["calls"] <= 7).all()
    assert (block.extra["cost_after"] >= block.extra["cost_before"]).all()


def test_training_refits_and_ends(tmp_path: Path) -> None:
    """`cnf train-cnf atsp` runs CNF with attackers of its own and leaves two policies and the router."""
    made = cnf_json("train-cnf", "atsp", "--n", "8", *SETS, store=tmp_path)
    assert {"model-0.safetensors", "model-1.safetensors", "router.safetensors"} <= set(digests(tmp_path, made["id"]))


@pytest.mark.slow
def test_resume_with_refitted_attackers_is_exact(tmp_path: Path) -> None:
    """A run cut off at random moments, attackers refitted every epoch, ends in the bytes of one that ran through."""
    args = ["train-cnf", "atsp", "--n", "8", *SETS, "--set", "train.instances=480", "--set", "train.epoch_instances=48"]
    straight = cnf(*args, store=tmp_path / "a", timeout=400)
    assert straight.returncode == 0, straight.stderr
    key = interrupted(args, tmp_path / "b", seed=3, times=2)
    assert key == straight.stdout.strip()
    assert digests(tmp_path / "a", key) == digests(tmp_path / "b", key)


def test_refits_come_with_the_epochs() -> None:
    """Attackers are fitted in the first step, then in the first step of every E-th epoch, once."""
    section = SimpleNamespace(epoch_instances=20, batch_size=8)
    due = [k for k in range(20) if refit_due(section, Progress(step=k, instances=8 * k), 2)]
    assert due == [0, 5, 10, 15]  # epochs 2, 4 and 6 begin in the steps after 40, 80 and 120 instances


def test_router_reads_matrices_of_any_size() -> None:
    """The nonlinear router is not tied to n, and sees what a halved edge changes."""
    problem = atsp.Problem(atsp.Params(n=20))
    router = make_router(problem.sample(1, rng=torch.Generator().manual_seed(0)), 3, seed=1, features="nonlinear")
    inst = problem.sample(4, rng=torch.Generator().manual_seed(1), n=33)
    logits = router(inst, torch.rand(4, 3))
    assert logits.shape == (4, 3)
    assert inst.matrix is not None
    changed = inst.matrix.clone()
    changed[:, 0, 1:] /= 2
    assert not torch.allclose(router(inst.with_(matrix=changed), torch.rand(4, 3)), logits)
