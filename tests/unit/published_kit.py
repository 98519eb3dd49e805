"""Numbers of the published code (the golden files of the public data): its weights, instances and policies here."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cnf_cli.engine import get_engine, native
from cnf_cli.plugins import load
from cnf_cli.problems.instances import Instances

SIZES = {
    "small": {"width": 32, "layers": 2, "heads": 2, "feed_forward": 64},
    "paper": {"width": 128, "layers": 6, "heads": 8, "feed_forward": 512},
}
MATNET = {"small": SIZES["small"], "paper": {"width": 256, "layers": 5, "heads": 16, "feed_forward": 512}}
N, CAPACITY = 20, 30


@dataclass(frozen=True)
class Side:
    """An engine and a precision, and how close they must come (README.txt of the golden files has the numbers)."""

    engine: str
    dtype: torch.dtype

    def pick(self, exact: float, single: float) -> float:
        """The tolerance of this side."""
        return exact if self.dtype == torch.float64 else single


EXACT, SINGLE = Side("torch", torch.float64), Side("native", torch.float32)
SIDES = [
    pytest.param(EXACT, id="torch-float64"),
    pytest.param(SINGLE, id="native-float32", marks=pytest.mark.skipif(not native.available(), reason="not built")),
]


class Golden(Mapping[str, Any]):
    """The arrays of one golden file below a prefix."""

    def __init__(self, arrays: Any, at: str = "") -> None:
        self.arrays, self.at = arrays, at

    def __getitem__(self, name: str) -> Any:
        return self.arrays[self.at + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.at) for name in self.arrays.files if name.startswith(self.at))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def below(self, part: str) -> Golden:
        return Golden(self.arrays, f"{self.at}{part}/")

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        value = torch.from_numpy(np.asarray(self[name]))
        return value.to(dtype or (value.dtype if value.dtype.is_floating_point else torch.int64))


def golden(shared: Path, name: str) -> Golden:
    """One golden file; a test that needs it skips where it is not."""
    path = shared / "data" / "golden" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in the public data")
    return Golden(np.load(path, allow_pickle=False))


def drawn(name: str, shape: tuple[int, ...], seed: int, fan: int = 0) -> Tensor:
    """A parameter by the recipe that the golden numbers were made with; `fan` of its map where the shape misleads."""
    u = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).uniform(-1, 1, size=shape)
    if ".norm" in name and name.endswith("weight"):
        u = 1 + 0.5 * u
    elif "mix1" in name or "mix2" in name:
        u = u * (0.5**0.5 if "mix1" in name else 0.25)
    else:
        u = u * ((3 / (fan or shape[1])) ** 0.5 if len(shape) >= 2 else 0.5)
    return torch.from_numpy(u.astype(np.float32))


def fill(module: nn.Module, seed: int) -> nn.Module:
    """The module with the golden weights."""
    state = module.state_dict()
    # The published CVRP network has one map for the last node and the load together.
    joint = state["decoder.last.weight"].shape[1] + 1 if "decoder.load.weight" in state else 0
    for name, tensor in state.items():
        fan = joint if name in ("decoder.last.weight", "decoder.load.weight") else 0
        tensor.copy_(drawn(name, tuple(tensor.shape), seed, fan))
    return module


def problem_of(kind: str) -> Any:
    module = load("problems", kind)
    return module.Problem(module.Params(kind=kind, n=N))


def policy_of(kind: str, size: str, side: Side, seed: int = 7) -> Any:
    """The golden policy in this side's precision."""
    module = load("policies", "matnet" if kind == "atsp" else "pomo")
    sizes: dict[str, Any] = MATNET[size] | {"one_hot_seeds": N} if kind == "atsp" else dict(SIZES[size])
    policy = module.Policy(module.Params(**sizes), problem_of(kind))
    return fill(policy, seed).to(side.dtype).eval()


def check_sum(policy: nn.Module) -> list[float]:
    """(sum of all weights, sum of their absolute values), as the files have it."""
    flat = torch.cat([p.double().flatten() for p in policy.state_dict().values()])
    return [float(flat.sum()), float(flat.abs().sum())]


def instances(given: Golden, side: Side, at: str = "") -> Instances:
    """The file's maps (`xy`, `demand_units`) in this side's precision."""
    xy = given.tensor(f"{at}xy", side.dtype)
    if f"{at}demand_units" not in given:
        return Instances(xy)
    units = given.tensor(f"{at}demand_units", side.dtype)
    if units.shape[1] < xy.shape[1]:
        units = torch.cat([torch.zeros_like(units[:, :1]), units], 1)
    return Instances(xy, units / CAPACITY, torch.full((len(xy),), float(CAPACITY), dtype=side.dtype))


@contextmanager
def precision(side: Side) -> Iterator[Any]:
    """(this side's engine); tensors that are made anew have its precision meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(side.dtype)
    try:
        yield get_engine(side.engine)
    finally:
        torch.set_default_dtype(before)


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference."""
    return float((got.detach().double() - want.double()).abs().max())


def relative(got: Tensor, want: Tensor) -> float:
    """The length of the difference over the length of what it should be, or itself where that is 0."""
    return float((got.double() - want.double()).norm()) / (float(want.double().norm()) or 1.0)


def slices(given: Golden, prefix: str) -> dict[str, Tensor]:
    """Parameter name -> the stored leading rows."""
    return {name.removeprefix(prefix): given.tensor(name) for name in given if name.startswith(prefix)}


def tensor_of(policy: nn.Module, name: str, gradient: bool = False) -> Tensor:
    """A parameter, or its gradient, as the published network has it: CVRP's last map with the load's column."""
    own = dict(policy.named_parameters())
    wanted = [own[name]]
    if name == "decoder.last.weight" and "decoder.load.weight" in own:
        wanted.append(own["decoder.load.weight"])
    found = [p.grad if gradient else p.detach() for p in wanted]
    return torch.cat(found, 1) if len(found) > 1 else found[0]  # type: ignore[arg-type, return-value]
