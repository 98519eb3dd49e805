"""Torch checkpoints of the POMO family under our names, and everything else refused with its reason."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats import legacy, legacy_names
from cnf_cli.formats.legacy import Untold
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


def load(tmp_path: Path, content: Any, heads: int | None = 4, norm: str | None = "instance") -> legacy.Checkpoint:
    torch.save(content, tmp_path / "a.pt")
    return legacy.load_checkpoint(tmp_path / "a.pt", Untold(heads, norm))


@pytest.mark.parametrize("problem", ["tsp", "cvrp"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_imported_weights_fit_our_policy_exactly(tmp_path: Path, problem: str, norm: str) -> None:
    """The converted tensors are precisely the state dict of the policy their section describes."""
    found = load(tmp_path, {"model_state_dict": state(problem, statistics=norm == "batch")}, norm=norm)
    sizes = {"width": 16, "layers": 2, "heads": 4, "feed_forward": 24}
    assert (found.problem, found.policy) == (problem, {"kind": "pomo", **sizes, "norm": norm})
    plugin = {"tsp": tsp, "cvrp": cvrp}[problem]
    policy = Policy(Params(**found.policy), plugin.Problem(plugin.Params(kind=problem)))
    missing = policy.load_state_dict(found.models[0], strict=True)
    assert not missing.missing_keys


def test_the_joint_query_of_cvrp_is_split() -> None:
    """Upstream's (d, d+1) query map becomes the node's (d, d) part and the load's (d, 1) column."""
    given = state("cvrp")
    mapped = legacy_names.mapped(given, "a.pt")
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
        found = legacy.load_checkpoint(tmp_path / "a.pt", Untold(4, "instance"))
        assert len(found.models) == count
        assert torch.equal(found.models[0]["layers.1.ff2.weight"], one["encoder.layers.1.feedForward.W2.weight"])
    assert found.known == ""
    assert len(found.sha256) == 64


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Optimizer, logs and distillation heads are not part of a policy, and the result says which were there."""
    content = {
        "model_state_dict": [{**state(), "W_hidden.weight": torch.zeros(2, 2)}],
        "routing_model_state_dict": None,
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
        ({"encoder.layers.0.row_encoding_block.Wq.weight": torch.zeros(2, 2)}, "layers.0.row.ff1.weight is missing"),
        ({"encoder.layers.0.row_encoding_block.W_x.weight": torch.zeros(2, 2)}, "no place in matnet"),
        ({"model_state_dict": state(), "routing_model_state_dict": {"W1.weight": torch.zeros(2)}}, "its router's"),
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
    assert load(tmp_path, state(d=64), heads=None).policy["heads"] == 8
    with pytest.raises(DataError, match="heads") as caught:
        load(tmp_path, state(d=16), heads=None)
    assert "--heads" in str(caught.value.hint)
    with pytest.raises(DataError, match="multiple"):
        load(tmp_path, state(d=16), heads=5)


def test_the_norm_is_asked_for_where_no_weight_tells_it(tmp_path: Path) -> None:
    """Instance, layer and batch norm without statistics look alike, so that the user says which, and it is told on."""
    with pytest.raises(DataError, match="does not tell instance norm from layer norm") as caught:
        load(tmp_path, state(), norm=None)
    assert "--norm" in str(caught.value.hint)
    for norm in ("instance", "layer"):
        found = load(tmp_path, state(), norm=norm)
        assert found.policy["norm"] == norm
        assert found.told == (f"its norm is {norm}",)
    with pytest.raises(DataError, match="batch norm without running statistics"):
        load(tmp_path, state(), norm="batch")


def test_the_norm_is_not_asked_for_where_it_is_known(tmp_path: Path) -> None:
    """Running statistics mean batch norm, and to say another is a contradiction."""
    assert load(tmp_path, state(statistics=True), norm=None).policy["norm"] == "batch"
    with pytest.raises(DataError, match="keeps running statistics"):
        load(tmp_path, state(statistics=True), norm="layer")


def module_scalar(*parts: Any) -> None:
    """Stands in a pickle for the scalar of one version of numpy, until its name is put in its place."""


class Scalar:
    """A number that pickles as numpy's float64 did in one of its versions."""

    def __init__(self, value: float, kind: str = "f8") -> None:
        self.kind, self.data = np.dtype(kind), np.array(value, kind).tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return module_scalar, (self.kind, self.data)


def with_numpy_scalars(path: Path, log: Any, module: str = "numpy.core.multiarray") -> None:
    """A checkpoint of the authors' trainer, its log beside the weights; `Scalar`s come from `module`."""
    buffer = io.BytesIO()
    content = {"epoch": 3, "model_state_dict": state(), "result_log": log}
    torch.save(content, buffer, _use_new_zipfile_serialization=True)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                data = data.replace(f"c{__name__}\nmodule_scalar\n".encode(), f"c{module}\nscalar\n".encode())
            new.writestr(name, data)


def test_a_trainers_log_may_hold_float64_scalars_of_both_numpys(tmp_path: Path) -> None:
    """The log of the authors' trainer holds numpy.float64 under the name before numpy 2, since, or both: all load."""
    new = np.float64(7.25)
    assert type(new).__reduce__(new)[0].__module__ == "numpy._core.multiarray"
    log = ({"train_score", "val_gap"}, {"train_score": [[1, Scalar(7.5)], [2, new]], "val_gap": [[1, Scalar(0.5)]]})
    with_numpy_scalars(tmp_path / "both.pt", log)
    data = (tmp_path / "both.pt").read_bytes()
    assert b"numpy.core.multiarray\nscalar" in data
    assert b"numpy._core.multiarray\nscalar" in data
    found = legacy.load_checkpoint(tmp_path / "both.pt", Untold(4, "instance"))
    assert found.left_out == ("epoch", "result_log")
    content = legacy._torch_load(data, "both.pt")
    assert content["result_log"][1] == {"train_score": [[1, 7.5], [2, 7.25]], "val_gap": [[1, 0.5]]}


@pytest.mark.parametrize(
    "log",
    [
        [np.float32(1)],
        [np.int64(1)],
        [np.zeros(2)],
        [np.datetime64(1, "s")],
        [np.dtype("O")],
        [Scalar(1.0, ">f8")],
        [np.float64],
    ],
)
def test_no_other_numpy_object_is_read(tmp_path: Path, log: Any) -> None:
    """What numpy can pickle beside a float64 scalar stays refused."""
    with_numpy_scalars(tmp_path / "a.pt", log)
    with pytest.raises(DataError, match="refused"):
        legacy.load_checkpoint(tmp_path / "a.pt", Untold(4, "instance"))


PUBLIC = (*(f"amdkd-pomo-{problem}{n}.pt" for problem in ("cvrp", "tsp") for n in (20, 50, 100)),)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_weights(shared: Path, name: str) -> None:
    """Each of the six AMDKD files loads, is recognised, and its distillation heads are named."""
    path = shared / "weights" / name
    if not path.exists():
        pytest.skip(f"{name} is not in the public data")
    found = legacy.load_checkpoint(path)
    assert found.problem == ("cvrp" if "cvrp" in name else "tsp")
    assert found.policy == {
        "kind": "pomo", "width": 64, "layers": 6, "heads": 8, "feed_forward": 512, "norm": "instance",
    }  # fmt: skip
    assert found.left_out == ("W_embed.weight", "W_hidden.weight")
    assert found.known.lower() == path.stem.replace("-pomo-", " ")
    group = {"cvrp": ("embed.depot.weight", (64, 2)), "tsp": ("decoder.first.weight", (64, 64))}[found.problem]
    assert tuple(found.models[0][group[0]].shape) == group[1]
