"""Equal recipes give equal bytes with any number of threads, and a result says what its bytes depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.engine import native
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, data, pretrain, train_cnf
from cnf_cli.store import Manifest, Store
from cnf_cli.training.machine import set_up
from cnf_cli.training.stored_policies import make_policy, make_problem

RUN = {"instances": 48, "batch_size": 16, "epoch_instances": 48, "validation_count": 0}


def made(folder: Path, kind: str, threads: int) -> list[Manifest]:
    """A small policy, an attack on it and an ensemble hardened from it, by that many threads."""
    tables: dict[str, Any] = {
        "problem": {"kind": kind, "n": 20},
        "policy": {"width": 32, "layers": 2, "heads": 4, "feed_forward": 64},
        "pretrain": RUN,
        "attack": {"kind": "attribute", "count": 12},
        "train": {"defence": "cnf", "models": 2, **RUN},
    }
    recipe, store = finish("steady", tables, {}), Store(folder / str(threads))
    runner = Runner(store, RuntimeSection(threads=threads))
    policy = pretrain.task(recipe)
    clean = data.task(recipe.problem, 12, 5)
    return [runner.run(t) for t in (policy, attack.task(recipe, policy, clean), train_cnf.task(recipe, policy))]


@pytest.mark.skipif(not native.available(), reason="the native engine is not built here")
@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_threads_change_no_byte(tmp_path: Path, kind: str) -> None:
    """A policy, an attacked set and an ensemble are the same, byte for byte, with one, two and three threads."""
    runs = [made(tmp_path, kind, threads) for threads in (1, 2, 3)]
    for stage in zip(*runs, strict=True):
        assert len({one.outputs[name].sha256 for one in stage for name in one.outputs if "metrics" not in name}) == len(
            [name for name in stage[0].outputs if "metrics" not in name]
        )
        for one in stage:
            depends = one.provenance["bytes_depend_on"]
            assert depends["threads"] == "any"
            assert {"processor", "vectors", "torch", "ranks"} <= depends.keys()


def test_torch_adds_up_on_one_thread_while_the_kernels_use_all() -> None:
    """From `steady` to the end of `set_up` torch has one thread, the engine those asked for; MatNet keeps torch's."""
    before = torch.get_num_threads()
    for kind, alone in (("tsp", native.available()), ("atsp", False)):
        recipe = finish("one", {"problem": {"kind": kind, "n": 8}}, {})
        policy = make_policy(recipe.policy, make_problem(recipe.problem))
        with set_up(RuntimeSection(threads=3)) as setup:
            depends = setup.steady(policy)
            assert torch.get_num_threads() == (1 if alone else 3)
            assert depends["threads"] == ("any" if alone else 3)
            assert getattr(setup.engine, "threads", 3) == 3
    assert torch.get_num_threads() == before


def test_other_norms_depend_on_threads() -> None:
    """A policy whose layers no kernel has says so: its sums are torch's, on all threads."""
    recipe = finish("one", {"problem": {"kind": "tsp", "n": 8}, "policy": {"norm": "layer"}}, {})
    policy = make_policy(recipe.policy, make_problem(recipe.problem))
    with set_up(RuntimeSection(threads=2)) as setup:
        assert setup.steady(policy)["threads"] == 2
