"""The attention router: which model should train on which instance, judged by the instance and the models' costs."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cnf_cli.problems.instances import Instances

CLIP = 10.0


class Router(nn.Module):
    """Logits P (N instances, m models) = 10 tanh(Q K^T / sqrt(h)), Q = Wq [F_I ; F_R], K = Wk Emb(m).

    F_R = Linear(R), the raw cost rows. F_I, the instance feature, depends on `features`:
        paper      mean over nodes of a linear map of each node, i.e. an affine map of the centroid (as published;
                   with a depot the mean runs over the depot and the customers together)
        separate   as the paper's text has it for problems with a depot: the features of the depot and of the demands
                   are concatenated to the query instead of entering the mean
        nonlinear  a ReLU before the mean, so that the shape of the map is seen, not only its centre
    Instances without coordinates are read from their cost matrix: flattened (fixed n) as published, or, nonlinear,
    node by node (any n).
    """

    def __init__(self, example: Instances, models: int, *, width: int = 128, features: str = "paper") -> None:
        super().__init__()
        self.features, self.width = features, width
        self.embed = nn.ModuleDict(_embeddings(example, width, features))
        self.embed_cost = nn.Linear(models, width)
        parts = 2 + sum(name in ("depot_alone", "demand_alone") for name in self.embed)
        self.Wq = nn.Linear(parts * width, width, bias=False)
        self.Wk = nn.Linear(width, width, bias=False)
        self.experts = nn.Embedding(models, width)

    def forward(self, inst: Instances, cost: Float[Tensor, "N m"]) -> Float[Tensor, "N m"]:
        """The logits of every instance for every model."""
        query = self.Wq(torch.cat([*self._instance(inst), self.embed_cost(cost)], dim=-1))
        key = self.Wk(self.experts.weight)
        return CLIP * torch.tanh(query @ key.T / math.sqrt(self.width))

    def _instance(self, inst: Instances) -> list[Float[Tensor, "N h"]]:
        bend = torch.relu if self.features == "nonlinear" else nn.Identity()
        if inst.xy is None:
            assert inst.matrix is not None
            if "flat" in self.embed:
                return [self.embed["flat"](inst.matrix.flatten(1))]
            return [bend(self.embed["node"](_matrix_nodes(inst.matrix))).mean(1)]
        if inst.demand is None:
            return [bend(self.embed["node"](inst.xy)).mean(1)]
        depot, nodes, demand = inst.xy[:, :1], inst.xy[:, 1:], inst.demand[:, 1:, None].to(inst.xy.dtype)
        if "depot_alone" in self.embed:
            alone = [self.embed["depot_alone"](depot[:, 0]), self.embed["demand_alone"](demand).mean(1)]
            return [self.embed["node"](nodes).mean(1), *alone]
        both = [self.embed["depot"](depot), self.embed["node"](torch.cat([nodes, demand], -1))]
        return [bend(torch.cat(both, 1)).mean(1)]


def _embeddings(example: Instances, width: int, features: str) -> dict[str, nn.Module]:
    if example.xy is None:
        if features == "nonlinear":
            return {"node": nn.Linear(4, width)}
        return {"flat": nn.Linear(example.nodes**2, width)}
    if example.demand is None:
        return {"node": nn.Linear(2, width)}
    if features == "separate":
        return {
            "node": nn.Linear(2, width),
            "depot_alone": nn.Linear(2, width),
            "demand_alone": nn.Linear(1, width),
        }
    return {"depot": nn.Linear(2, width), "node": nn.Linear(3, width)}


def _matrix_nodes(matrix: Float[Tensor, "N n n"]) -> Float[Tensor, "N n 4"]:
    """Per node: mean and smallest cost of leaving it and of reaching it (the diagonal left out)."""
    n = matrix.shape[-1]
    away = matrix + torch.eye(n, device=matrix.device) * 1e9
    mean = 1 / max(1, n - 1)
    return torch.stack([matrix.sum(2) * mean, matrix.sum(1) * mean, away.amin(2), away.amin(1)], -1)


def make_router(example: Instances, models: int, *, seed: int, width: int = 128, features: str = "paper") -> Router:
    """A router whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Router(example, models, width=width, features=features)
