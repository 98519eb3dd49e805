"""Torch checkpoints of the POMO family under our names, and everything else refused with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats import legacy
from cnf_cli.policies.pomo import Params, Policy
from cnf_cli.problems import cvrp, tsp

State = dict[str, torch.Tensor]


def state(
    problem: str = "tsp", d: int = 16, layers: int = 2, f: int = 24, statistics: bool = False, seed: int = 1
) -> State:
    """A state dict with upstream POMO's names, filled at random."""
    vrp = problem == "cvrp"
    norm, ff = ("add_n_normalization_{}.norm", "feed_forward") if vrp else ("addAndNormalization{}.norm", "feedForward")
    shapes: dict[str, tuple[int, ...]] = {}
    if vrp:
        shapes |= {"encoder.embedding_depot.weight": (d, 2), "encoder.embedding_depot.bias": (d,)}
        shapes |= {"encoder.embedding_node.weight": (d, 3), "encoder.embedding_node.bias": (d,)}
    else:
        shapes |= {
            "encoder.embedding.weight": (d, 2),
            "encoder.embedding.bias": (d,),
            "decoder.Wq_first.weight": (d, d),
        }
    for i in range(layers):
        at = f"encoder.layers.{i}."
        shapes |= {f"{at}{w}.weight": (d, d) for w in ("Wq", "Wk", "Wv", "multi_head_combine")}
        shapes |= {f"{at}multi_head_combine.bias": (d,), f"{at}{ff}.W1.weight": (f, d), f"{at}{ff}.W1.bias": (f,)}
        shapes |= {f"{at}{ff}.W2.weight": (d, f), f"{at}{ff}.W2.bias": (d,)}
        kinds = ("weight", "bias", *(("running_mean", "running_var") if statistics else ()))
        shapes |= {f"{at}{norm.format(k)}.{kind}": (d,) for k in (1, 2) for kind in kinds}
    shapes |= {f"decoder.{w}.weight": (d, d) for w in ("Wk", "Wv", "multi_head_combine")}
    shapes |= {"decoder.multi_head_combine.bias": (d,), "decoder.Wq_last.weight": (d, d + vrp)}
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=rng) + 0.1 for name, shape in shapes.items()}


def load(tmp_path: Path, content: Any, heads: int | None = 4) -> legacy.Checkpoint:
    torch.save(content, tmp_path / "a.pt")
    return legacy.load_checkpoint(tmp_path / "a.pt", heads=heads)


@pytest.mark.parametrize("problem", ["tsp", "cvrp"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_imported_weights_fit_our_policy_exactly(tmp_path: Path, problem: str, norm: str) -> None:
    """The converted tensors are precisely the state dict of the policy their section describes."""
    found = load(tmp_path, {"model_state_dict": state(problem, statistics=norm == "batch")})
    assert (found.problem, found.width, found.layers, found.feed_forward, found.norm) == (problem, 16, 2, 24, norm)
    plugin = {"tsp": tsp, "cvrp": cvrp}[problem]
    policy = Policy(Params(**found.policy), plugin.Problem(plugin.Params(kind=problem)))
    missing = policy.load_state_dict(found.models[0], strict=True)
    assert not missing.missing_keys


def test_the_joint_query_of_cvrp_is_split() -> None:
    """Upstream's (d, d+1) query map becomes the node's (d, d) part and the load's (d, 1) column."""
    given = state("cvrp")
    mapped = legacy._Mapped(given, "a.pt")
    found = mapped.renamed(mapped.shapes())
    joint = given["decoder.Wq_last.weight"]
    assert torch.equal(torch.cat([found["decoder.last.weight"], found["decoder.load.weight"]], 1), joint)


@pytest.mark.parametrize("zipped", [True, False])
def test_every_container_of_the_family_is_understood(tmp_path: Path, zipped: bool) -> None:
    """A bare dict, a wrapped one, the paper's list of M, data-parallel names, in torch's new and old file format."""
    one, two = state(seed=1), state(seed=2)
    parallel = {f"module.{name}": tensor for name, tensor in one.items()}
    cases = [
        (one, 1),
        ({"model_state_dict": one}, 1),
        ({"model_state_dict": [one, two]}, 2),
        ([one, two], 2),
        (parallel, 1),
    ]
    for content, count in cases:
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        found = legacy.load_checkpoint(tmp_path / "a.pt", heads=4)
        assert len(found.models) == count
        assert torch.equal(found.models[0]["layers.1.ff2.weight"], one["encoder.layers.1.feedForward.W2.weight"])
    assert found.known == ""
    assert len(found.sha256) == 64


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Router, optimizer and distillation heads are not part of a policy, and the result says which were there."""
    content = {
        "model_state_dict": [{**state(), "W_hidden.weight": torch.zeros(2, 2)}],
        "routing_model_state_dict": {"x": torch.zeros(1)},
        "optimizer_state_dict": [{"lr": 0.1}],
        "epoch": 7,
    }
    assert load(tmp_path, content).left_out == (
        "W_hidden.weight",
        "epoch",
        "optimizer_state_dict",
        "routing_model_state_dict",
    )


def changed(name: str, value: torch.Tensor | None) -> State:
    out = state()
    if value is None:
        del out[name]
    else:
        out[name] = value
    return out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("decoder.Wk.weight", None), "decoder.k.weight is missing"),
        (changed("decoder.Wk.weight", torch.zeros(16, 8)), "decoder.k.weight is torch.float32"),
        (changed("decoder.Wk.weight", torch.zeros(16, 16).double()), "float64"),
        (changed("decoder.Wk.weight", torch.full((16, 16), float("nan"))), "NaN"),
        (changed("decoder.Wq_1.weight", torch.zeros(16, 16)), "decoder.Wq_1.weight has no place"),
        (changed("encoder.layers.9.Wq.weight", torch.zeros(16, 16)), "missing"),
        ([state(), state(d=8)], "expected float32"),
        ({"encoder.layers.0.row_encoding_block.Wq.weight": torch.zeros(2, 2)}, "MatNet"),
        ({"fc.weight": torch.zeros(2, 2)}, "fc.weight"),
        ({"a": 1}, "no state dict"),
        ([], "no state dict"),
        (torch.zeros(3), "no state dict"),
    ],
)
def test_another_architecture_is_refused_with_the_reason(tmp_path: Path, content: Any, message: str) -> None:
    """A checkpoint that does not fit names the first parameter that shows it."""
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, content)
    assert caught.value.hint


def test_heads_must_be_known(tmp_path: Path) -> None:
    """Weights do not tell the number of heads: 8 for the published widths, asked for otherwise."""
    assert load(tmp_path, state(d=64), heads=None).heads == 8
    with pytest.raises(DataError, match="heads") as caught:
        load(tmp_path, state(d=16), heads=None)
    assert "--heads" in str(caught.value.hint)
    with pytest.raises(DataError, match="multiple"):
        load(tmp_path, state(d=16), heads=5)


def test_public_weights(shared: Path) -> None:
    """All six AMDKD files load, are recognised, and their distillation heads are named."""
    files = sorted((shared / "weights").glob("*.pt"))
    assert len(files) == 6
    for path in files:
        found = legacy.load_checkpoint(path)
        assert found.problem == ("cvrp" if "cvrp" in path.name else "tsp")
        assert found.policy == {
            "kind": "pomo", "width": 64, "layers": 6, "heads": 8, "feed_forward": 512, "norm": "instance",
        }  # fmt: skip
        assert found.left_out == ("W_embed.weight", "W_hidden.weight")
        assert found.known.lower() == path.stem.replace("-pomo-", " ")
        group = {"cvrp": ("embed.depot.weight", (64, 2)), "tsp": ("decoder.first.weight", (64, 64))}[found.problem]
        assert tuple(found.models[0][group[0]].shape) == group[1]
