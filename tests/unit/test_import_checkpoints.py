"""Checkpoints through `cnf import`: MatNet, the router beside its models, and weights that cannot answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.defences.router import Router
from cnf_cli.engine import get_engine
from cnf_cli.errors import DataError
from cnf_cli.formats import checkpoint, legacy
from cnf_cli.formats.legacy import Untold
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.runner import Runner
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import imported
from cnf_cli.store import Store
from cnf_cli.training.stored_policies import load_models
from tests.unit.published_kit import EXACT, N, far, fill, golden, policy_of, problem_of
from tests.unit.test_formats_legacy import state

State = dict[str, torch.Tensor]


def published_matnet(policy: Any) -> State:
    """A MatNet's weights under the names of the published network."""
    out: State = {}
    for name, tensor in policy.state_dict().items():
        at = name
        for ours, theirs in (("row", "row_encoding_block"), ("column", "col_encoding_block")):
            at = at.replace(f".{ours}.", f".{theirs}.")
        at = f"encoder.{at}" if at.startswith("layers.") else at
        at = at.replace("mix1_", "mixed_score_MHA.mix1_").replace("mix2_", "mixed_score_MHA.mix2_")
        for ours, theirs in (("q", "Wq"), ("k", "Wk"), ("v", "Wv"), ("combine", "multi_head_combine")):
            at = at.replace(f".{ours}.", f".{theirs}.")
        for k in "12":
            at = at.replace(f".norm{k}.", f".add_n_normalization_{k}.norm.").replace(f".ff{k}.", f".feed_forward.W{k}.")
        at = at.replace("decoder.first", "decoder.Wq_1").replace("decoder.last", "decoder.Wq_0")
        out[at] = tensor[..., None] if "mix2_" in name else tensor
    return out


def published_router(router: Router, problem: str) -> State:
    """A router's weights under the names of the published one."""
    inputs = {"tsp": ["node"], "cvrp": ["depot", "node"], "atsp": ["flat"]}[problem]
    names = {f"embed.{name}": f"W{k}" for k, name in enumerate(inputs, 1)}
    names |= {"embed_cost": f"W{len(inputs) + 1}", "Wq": "Wq", "Wk": "Wk", "experts": "expert"}
    return {f"{names[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}": t for n, t in router.state_dict().items()}


def take(tmp_path: Path, content: Any, **options: Any) -> Artifact:
    """The artifact that `cnf import` makes of a checkpoint."""
    torch.save(content, tmp_path / "checkpoint.pt")
    store = Store(tmp_path / "store")
    key = Runner(store, RuntimeSection(threads=1)).run(imported.task([tmp_path / "checkpoint.pt"], **options)).key
    found = store.find(key)
    assert found is not None
    return Artifact(store, found)


def test_a_published_matnet_answers_as_before(tmp_path: Path, shared: Path) -> None:
    """Imported under the published names, MatNet gives the published greedy tours."""
    file = golden(shared, "matnet_atsp")
    content = {"epoch": 1, "model_state_dict": published_matnet(policy_of("atsp", "small", EXACT).float())}
    artifact = take(tmp_path, content, one_hot_seeds=N)
    policy, problem = load_models(artifact).policies[0].double(), problem_of("atsp")
    inst = Instances(matrix=file.tensor("matrix", torch.float64), seed=file.tensor("instance_seed"))
    with torch.no_grad():
        tours = get_engine("torch").rollout(policy.encode(inst), problem.world(inst))
    assert torch.equal(tours.long(), file.tensor("small/greedy/tours"))
    warnings = artifact.manifest.checks["warnings"]
    assert any("taken on your word" in line and "20 one-hot seeds" in line for line in warnings)


def test_matnets_one_hot_seeds_are_asked_for(tmp_path: Path) -> None:
    """No weight tells how many nodes a MatNet has vectors for, except those of a router that read its matrices."""
    weights = published_matnet(policy_of("atsp", "small", EXACT).float())
    torch.save(weights, tmp_path / "a.pt")
    with pytest.raises(DataError, match="one-hot seeds") as caught:
        legacy.load_checkpoint(tmp_path / "a.pt")
    assert "--one-hot-seeds" in str(caught.value.hint)
    with pytest.raises(DataError, match="do not fit into a width of 32"):
        legacy.load_checkpoint(tmp_path / "a.pt", Untold(one_hot_seeds=33))
    example = Instances(matrix=torch.zeros(1, N, N))
    router = published_router(Router(example, 1, width=8), "atsp")
    torch.save({"model_state_dict": [weights], "routing_model_state_dict": router}, tmp_path / "a.pt")
    found = legacy.load_checkpoint(tmp_path / "a.pt")
    assert found.policy == {
        "kind": "matnet", "width": 32, "layers": 2, "heads": 2, "feed_forward": 64, "one_hot_seeds": N,
    }  # fmt: skip


@pytest.mark.parametrize("change", ["heads", "norm", "statistics", "shape"])
def test_a_matnet_that_is_another_is_refused(tmp_path: Path, change: str) -> None:
    """Other heads than its mixing weights tell, another norm, statistics, or a shape of its own: named and refused."""
    weights = published_matnet(policy_of("atsp", "small", EXACT).float())
    said = Untold(one_hot_seeds=N, heads=4 if change == "heads" else None, norm="layer" if change == "norm" else None)
    at = "encoder.layers.0.row_encoding_block."
    if change == "statistics":
        weights |= {f"{at}add_n_normalization_1.norm.running_mean": torch.zeros(32)}
    if change == "shape":
        weights |= {f"{at}mixed_score_MHA.mix1_weight": torch.zeros(2, 2, 8)}
    torch.save(weights, tmp_path / "a.pt")
    with pytest.raises(DataError, match={"heads": "2 heads", "norm": "instance norm only"}.get(change, "does not fit")):
        legacy.load_checkpoint(tmp_path / "a.pt", said)


@pytest.mark.parametrize("problem", ["tsp", "cvrp"])
def test_the_router_is_imported_with_its_models(tmp_path: Path, problem: str) -> None:
    """The weights of the published router come along under our names and give the same logits as before."""
    inst = problem_of(problem).sample(5, rng=torch.Generator().manual_seed(1))
    router = fill(Router(inst, 3, width=16), 5)
    models = [state(problem, d=16, seed=j) for j in range(3)]
    small = {name: tensor * 0.1 for name, tensor in models[0].items()}
    content = {"model_state_dict": [small] * 3, "routing_model_state_dict": published_router(router, problem)}
    artifact = take(tmp_path, content, heads=4, norm="instance")
    assert len(load_models(artifact).policies) == 3
    tensors, meta = checkpoint.load(artifact.path("router.safetensors"))
    assert meta["kind"] == "router"
    again = Router(inst, 3, width=16)
    again.load_state_dict(tensors)
    cost = torch.rand(5, 3)
    assert torch.equal(again(inst, cost), router(inst, cost))
    assert not any("routing_model" in line for line in artifact.manifest.checks["warnings"])


def test_the_imported_router_gives_the_published_logits(tmp_path: Path, shared: Path) -> None:
    """From the golden weights, through a checkpoint and the import, to the golden logits."""
    file = golden(shared, "router_hac_random").below("router")
    xy = file.tensor("xy", torch.float32)[:, 1:]
    inst, cost = Instances(xy), file.tensor("R", torch.float32)
    router = fill(Router(inst, 3), 61)
    content = {"model_state_dict": [state()] * 3, "routing_model_state_dict": published_router(router, "tsp")}
    torch.save(content, tmp_path / "a.pt")
    found = legacy.load_checkpoint(tmp_path / "a.pt", Untold(heads=4, norm="instance"))
    assert found.left_out == ()
    again = Router(inst, 3).double()
    again.load_state_dict({name: tensor.double() for name, tensor in found.router.items()})
    logits = again(Instances(xy.double()), cost.double())
    assert far(logits, file.tensor("tsp/logits")) <= 1e-6


@pytest.mark.parametrize("problem", ["tsp", "cvrp"])
def test_a_policy_that_answers_no_number_is_refused_by_name(tmp_path: Path, problem: str) -> None:
    """Weights that are finite and so large that its scores on a small map are not: the file is named, nothing kept."""
    huge = {name: torch.full_like(tensor, 1e29) for name, tensor in state(problem).items()}
    with pytest.raises(DataError, match="cannot answer") as caught:
        take(tmp_path, huge, heads=4, norm="instance")
    assert "checkpoint.pt" in str(caught.value.at)
    assert not list(Store(tmp_path / "store").manifests())


def test_what_the_user_said_is_told(tmp_path: Path) -> None:
    """A norm that was taken on the user's word stands in the artifact's warnings, and in its identity."""
    weights = {name: 0.1 * tensor for name, tensor in state().items()}
    artifact = take(tmp_path, weights, heads=4, norm="layer")
    assert any("its norm is layer" in line for line in artifact.manifest.checks["warnings"])
    section = artifact.manifest.sections["import"]
    assert section["norm"] == "layer"
    other = take(tmp_path, weights, heads=4, norm="instance")
    assert other.manifest.key != artifact.manifest.key
