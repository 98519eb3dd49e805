"""What the published networks call their parameters, and what each is called here."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from cnf_cli.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

MAX_LAYERS = 256
HINT = "supported: POMO for TSP and CVRP, and MatNet (upstream, AMDKD, CNF), saved with torch.save"
MIX = 16
"""Hidden units that mix attention and cost in each head of MatNet; `policies.matnet` has no other number."""
Shapes = dict[str, tuple[int, ...]]

_BLOCK = {"Wq": "q", "Wk": "k", "Wv": "v", "multi_head_combine": "combine"}
_BLOCK |= {f"{part}.W{k}": f"ff{k}" for part in ("feedForward", "feed_forward") for k in (1, 2)}
_BLOCK |= {
    f"{part}{k}.{norm}": f"norm{k}"
    for part in ("addAndNormalization", "add_n_normalization_")
    for norm in ("norm", "norm_by_EMB")
    for k in (1, 2)
}
_DECODER = {"decoder.Wk": "decoder.k", "decoder.Wv": "decoder.v", "decoder.multi_head_combine": "decoder.combine"}
_POMO = _DECODER | {
    "encoder.embedding": "embed.node",
    "encoder.embedding_depot": "embed.depot",
    "encoder.embedding_node": "embed.node",
    "decoder.Wq_first": "decoder.first",
    "decoder.Wq_last": "decoder.last",
}
_MATNET = _DECODER | {"decoder.Wq_1": "decoder.first", "decoder.Wq_0": "decoder.last"}
_SIDES = {"row_encoding_block": "row", "col_encoding_block": "column"}
_LAYER = re.compile(r"encoder\.layers\.(\d{1,3})\.(.+)")
_SIDE = re.compile(rf"({'|'.join(_SIDES)})\.(.+)")
_KINDS = ("weight", "bias", "running_mean", "running_var")


def mapped(state: dict[str, Tensor], at: str) -> Mapped:
    """The network that a state dict belongs to, its parameters under our names."""
    if "encoder.embedding.weight" in state:
        return Pomo("tsp", state, at)
    if "encoder.embedding_depot.weight" in state:
        return Pomo("cvrp", state, at)
    if any(".row_encoding_block." in name for name in state):
        return MatNet("atsp", state, at)
    raise misfit(f"its first parameter is {next(iter(state))[:80]}, not an embedding of nodes", at)


def misfit(what: str, at: str) -> DataError:
    """The error about a checkpoint that is no supported network."""
    return DataError(f"this checkpoint does not fit: {what}", at=at, hint=HINT)


class Mapped(ABC):
    """One state dict under our names, with what its shapes say about the architecture."""

    kind: str
    """The policy plugin that these weights belong to."""
    heads: int | None = None
    """How many the shapes tell; None where they do not."""
    norms: tuple[str, ...] = ("instance",)
    """What the weights of a norm without statistics may stand for."""

    def __init__(self, problem: str, state: dict[str, Tensor], at: str) -> None:
        self.problem, self.at = problem, at
        self.tensors: dict[str, Tensor] = {}
        self.left_out: list[str] = []
        for name, tensor in state.items():
            ours = self.our_name(name)
            if ours is not None:
                self.tensors[ours] = tensor
            elif name.startswith(("encoder.", "decoder.")) and not name.endswith("num_batches_tracked"):
                raise misfit(f"its parameter {name[:80]} has no place in {self.kind}", at)
            else:
                self.left_out.append(name)
        self.statistics = any(name.endswith("running_mean") for name in self.tensors)
        self.layers = 1 + max([-1, *(int(name.split(".")[1]) for name in self.tensors if name.startswith("layers."))])
        if not 1 <= self.layers <= MAX_LAYERS:
            raise misfit(f"it has {self.layers} layers", at)
        self.read()

    @abstractmethod
    def our_name(self, name: str) -> str | None:
        """Our name for a parameter, None where there is none."""

    @abstractmethod
    def read(self) -> None:
        """Sets `width` and `feed_forward`, and what else the shapes tell."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """The exact table of names and shapes that this architecture has in the file."""

    width: int
    feed_forward: int

    def size(self, name: str, axis: int = 0, rank: int = 2) -> int:
        """The length of one axis of a parameter that must be there."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.ndim != rank:
            raise misfit(f"{name} is missing", self.at)
        return int(tensor.shape[axis])

    def renamed(self, expect: Shapes) -> dict[str, Tensor]:
        """The tensors, checked against the table."""
        odd = sorted(set(expect) ^ set(self.tensors))
        if odd:
            raise misfit(f"{odd[0]} is {'missing' if odd[0] in expect else 'unexpected'}", self.at)
        return checked(self.tensors, expect, self.at)

    def block(self, at: str) -> Shapes:
        """Names and shapes of attention, feed-forward and norms below `at`."""
        d, f = self.width, self.feed_forward
        out: Shapes = {f"{at}{x}.weight": (d, d) for x in ("q", "k", "v", "combine")}
        out |= {f"{at}ff1.weight": (f, d), f"{at}ff1.bias": (f,), f"{at}ff2.weight": (d, f)}
        kinds = ("weight", "bias", *(("running_mean", "running_var") if self.statistics else ()))
        norms = tuple(f"norm{k}.{kind}" for k in (1, 2) for kind in kinds)
        return out | {at + x: (d,) for x in ("combine.bias", "ff2.bias", *norms)}

    def decoder(self) -> Shapes:
        """What every decoder has."""
        d = self.width
        return {f"decoder.{x}.weight": (d, d) for x in ("k", "v", "combine")} | {"decoder.combine.bias": (d,)}


class Pomo(Mapped):
    """POMO for TSP or CVRP."""

    kind = "pomo"
    norms = ("instance", "layer")

    def our_name(self, name: str) -> str | None:
        stem, _, kind = name.rpartition(".")
        if kind not in _KINDS:
            return None
        if layer := _LAYER.fullmatch(stem):
            ours = _BLOCK.get(layer[2])
            return f"layers.{int(layer[1])}.{ours}.{kind}" if ours else None
        return f"{_POMO[stem]}.{kind}" if stem in _POMO else None

    def read(self) -> None:
        self.width = self.size("embed.node.weight")
        self.feed_forward = self.size("layers.0.ff1.weight")

    def shapes(self) -> Shapes:
        d, depot = self.width, self.problem == "cvrp"
        out: Shapes = {"embed.node.weight": (d, 3 if depot else 2), "embed.node.bias": (d,)}
        if depot:
            out |= {"embed.depot.weight": (d, 2), "embed.depot.bias": (d,)}
        for i in range(self.layers):
            out |= self.block(f"layers.{i}.")
        out |= self.decoder() | {"decoder.last.weight": (d, d + depot)}
        return out if depot else out | {"decoder.first.weight": (d, d)}

    def renamed(self, expect: Shapes) -> dict[str, Tensor]:
        """The tensors, checked against the table; CVRP's joint query map is split into node and load."""
        out = super().renamed(expect)
        if self.problem == "cvrp":
            joint = out["decoder.last.weight"]
            out["decoder.last.weight"] = joint[:, :-1].clone().contiguous()
            out["decoder.load.weight"] = joint[:, -1:].clone().contiguous()
        return out


class MatNet(Mapped):
    """MatNet for ATSP."""

    kind = "matnet"

    def our_name(self, name: str) -> str | None:
        stem, _, kind = name.rpartition(".")
        if layer := _LAYER.fullmatch(stem):
            side = _SIDE.fullmatch(layer[2])
            if side is None:
                return None
            at = f"layers.{int(layer[1])}.{_SIDES[side[1]]}"
            if side[2] == "mixed_score_MHA" and kind.startswith(("mix1_", "mix2_")):
                return f"{at}.{kind}"
            ours = _BLOCK.get(side[2])
            return f"{at}.{ours}.{kind}" if ours and kind in _KINDS else None
        return f"{_MATNET[stem]}.{kind}" if stem in _MATNET and kind in _KINDS else None

    def read(self) -> None:
        if self.statistics:
            raise misfit("its batch norm keeps statistics, and matnet normalises each instance", self.at)
        self.width = self.size("layers.0.row.q.weight")
        self.feed_forward = self.size("layers.0.row.ff1.weight")
        self.heads = self.size("layers.0.row.mix1_bias")

    def shapes(self) -> Shapes:
        out: Shapes = {}
        h = self.heads or 0
        mix: Shapes = {
            "mix1_weight": (h, 2, MIX),
            "mix1_bias": (h, MIX),
            "mix2_weight": (h, MIX, 1),
            "mix2_bias": (h, 1),
        }
        for i in range(self.layers):
            for side in _SIDES.values():
                at = f"layers.{i}.{side}."
                out |= self.block(at) | {at + name: shape for name, shape in mix.items()}
        return out | self.decoder() | {f"decoder.{x}.weight": (self.width, self.width) for x in ("first", "last")}

    def renamed(self, expect: Shapes) -> dict[str, Tensor]:
        """The tensors, checked against the table; the mixing's last axis of length one goes."""
        out = super().renamed(expect)
        return {k: v[..., 0].contiguous() if ".mix2_" in k else v for k, v in out.items()}


def router_names(state: dict[str, Tensor], problem: str, models: int, at: str) -> dict[str, Tensor]:
    """The published router's weights under our names: node or matrix, costs, query, key and models."""
    inputs = {"tsp": ("node",), "cvrp": ("depot", "node"), "atsp": ("flat",)}[problem]
    ours = [f"embed.{name}" for name in inputs] + ["embed_cost"]
    names = {f"W{k}": name for k, name in enumerate(ours, start=1)} | {"Wq": "Wq", "Wk": "Wk", "expert": "experts"}
    found = {f"{names.get(n.rpartition('.')[0], '?')}.{n.rpartition('.')[2]}": tensor for n, tensor in state.items()}
    width = found["experts.weight"].shape[-1] if "experts.weight" in found else 0
    features = {"embed.node": 3 if problem == "cvrp" else 2, "embed.depot": 2, "embed_cost": models}
    if problem == "atsp" and "embed.flat.weight" in found:
        features["embed.flat"] = int(found["embed.flat.weight"].shape[-1])
    expect: Shapes = {f"{name}.weight": (width, features.get(name, 0)) for name in ours}
    expect |= {f"{name}.bias": (width,) for name in ours}
    expect |= {"Wq.weight": (width, 2 * width), "Wk.weight": (width, width), "experts.weight": (models, width)}
    odd = sorted(set(expect) ^ set(found))
    if odd:
        raise misfit(f"its router's {odd[0]} is {'missing' if odd[0] in expect else 'unexpected'}", at)
    return checked(found, expect, at)


def checked(tensors: dict[str, Tensor], expect: Shapes, at: str) -> dict[str, Tensor]:
    """Copies of the tensors, each of them plain, finite float32 of its expected shape."""
    import torch

    for name, shape in expect.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise misfit(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected float32 {shape}", at)
        if tensor.layout != torch.strided or not bool(torch.isfinite(tensor).all()):
            raise misfit(f"{name} holds NaN or infinite values", at)
    return {name: tensors[name].detach().clone().contiguous() for name in sorted(expect)}
