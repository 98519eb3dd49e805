"""Routing strategies: from logits and costs to the rows of the pool that each model trains on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.defences import shares
from cnf_cli.engine.random import seeds_from

CLEAN, LOCAL, GLOBAL = 0, 1, 2


@dataclass(frozen=True)
class Question:
    """What a strategy may look at; N rows in the pool, m models."""

    cost: Float[Tensor, "N m"]
    """R: the lowest sampled cost of each model on each row."""
    kind: Int[Tensor, " N"]
    """CLEAN, LOCAL or GLOBAL."""
    maker: Int[Tensor, " N"]
    """The model whose local attack made the row; -1 for clean and global rows."""
    top_k: int
    """K, rows per model (model choice)."""
    rng: torch.Generator
    logits: Float[Tensor, "N m"] | None = None
    instance_top_k: int = 1
    """Models per row (instance choice)."""
    temperature: float = 1.0
    overlapping_slices: bool = False
    """`random` with the published code's slices."""
    ties: str = "first"
    """Who gets a row that several models solve equally well: the "first", a "draw"n or the "least-loaded" one."""


@dataclass(frozen=True)
class Selection:
    """Which rows each model trains on, and which entries of the router's output answer for it."""

    trained: list[Int[Tensor, " _"]]
    """Per model: the rows of its training batch, ascending; may be empty."""
    routed: list[Int[Tensor, " _"]] = field(default_factory=list)
    """Per model: the rows the router chose, a subset of `trained`; empty without a router."""
    log_prob: Float[Tensor, "N m"] | None = None
    """log of the softmaxed logits, with the router's graph."""
    axis: int = 0
    """What the softmax runs over: 0 = rows (model choice), 1 = models (instance choice)."""


def m_topk(q: Question) -> Selection:
    """Each model takes the K rows with the largest probability, softmax over rows: exactly K each."""
    log_prob = _log_prob(q, 0)
    rows = [_top(log_prob[:, j].detach(), q.top_k) for j in range(q.cost.shape[1])]
    return Selection(rows, rows, log_prob)


def m_sample(q: Question) -> Selection:
    """Each model draws K rows without replacement from its softmax over rows."""
    log_prob = _log_prob(q, 0)
    noisy = log_prob.detach() + _gumbel(q)
    rows = [_top(noisy[:, j], q.top_k) for j in range(q.cost.shape[1])]
    return Selection(rows, rows, log_prob)


def i_topk(q: Question) -> Selection:
    """Each row goes to the model(s) with the largest probability, softmax over models: loads may differ."""
    log_prob = _log_prob(q, 1)
    rows = _by_model(log_prob.detach(), q.instance_top_k)
    return Selection(rows, rows, log_prob, axis=1)


def i_sample(q: Question) -> Selection:
    """Each row draws its model(s) without replacement from its softmax over models."""
    log_prob = _log_prob(q, 1)
    rows = _by_model(log_prob.detach() + _gumbel(q), q.instance_top_k)
    return Selection(rows, rows, log_prob, axis=1)


def random(q: Question) -> Selection:
    """Rows are dealt out at random in equal shares.

    With `overlapping_slices` as the published code does it: slice j of a shuffled pool begins at j times the whole part
    of N/3 and always runs to the end, whatever the number of models: three get N, about 2N/3 and about N/3 rows, a
    fourth what the division left over.
    """
    total, m = q.cost.shape
    order = torch.randperm(total, generator=q.rng, device=q.rng.device).to(q.cost.device)
    if q.overlapping_slices:
        return Selection([order[j * (total // 3) :].sort().values for j in range(m)])
    return Selection([part.sort().values for part in order.tensor_split(m)])


def self_training(q: Question) -> Selection:
    """Each model trains on the adversarial rows its own local attack made."""
    return Selection([(q.maker == j).nonzero()[:, 0] for j in range(q.cost.shape[1])])


def best(q: Question) -> Selection:
    """Each row trains the one model that solves it best now; `ties` settles which, where several are equally good."""
    return _of(shares.winners(q.cost, q.ties, None if q.ties == "first" else _lots(q)), q.cost.shape[1])


def balanced(q: Question) -> Selection:
    """Every model gets its equal share of the rows, so that the rows' costs under their models add up to the least."""
    return _of(shares.balanced(q.cost, _lots(q)), q.cost.shape[1])


def topk_with_best(q: Question) -> Selection:
    """M-TopK, plus for each model all rows it solves best (the published code's default)."""
    chosen, own = m_topk(q), best(q)
    trained = [distinct(torch.cat([a, b])) for a, b in zip(chosen.routed, own.trained, strict=True)]
    return Selection(trained, chosen.routed, chosen.log_prob)


STRATEGIES: dict[str, Callable[[Question], Selection]] = {
    "m-topk": m_topk,
    "m-sample": m_sample,
    "i-topk": i_topk,
    "i-sample": i_sample,
    "random": random,
    "self-training": self_training,
    "topk-with-best": topk_with_best,
    "best": best,
    "balanced": balanced,
}
NEEDS_ROUTER = frozenset({"m-topk", "m-sample", "i-topk", "i-sample", "topk-with-best"})
NEEDS_COST = NEEDS_ROUTER | {"best", "balanced"}


def statistics(chosen: Selection, kind: Int[Tensor, " N"]) -> dict[str, float]:
    """Rows per model, what kinds they are (shares of each model's own rows), and how much the models' rows overlap."""
    out: dict[str, float] = {}
    for j, rows in enumerate(chosen.trained):
        out[f"load_{j}"] = float(len(rows))
        for name, code in (("clean", CLEAN), ("local", LOCAL), ("global", GLOBAL)):
            out[f"share_{name}_{j}"] = float((kind[rows] == code).float().mean()) if len(rows) else 0.0
    out["overlap"] = overlap(chosen.trained)
    covered = distinct(torch.cat(list(chosen.trained))) if chosen.trained else kind[:0]
    out["covered"] = len(covered) / max(1, len(kind))
    if chosen.log_prob is not None:
        out["router_entropy"] = entropy(chosen)
        out |= preference(chosen, kind)
    return out


def overlap(trained: Sequence[Int[Tensor, " _"]]) -> float:
    """Mean over pairs of models of |both| / |either|: 0 = nothing shared, 1 = the same rows."""
    sets = [set(rows.tolist()) for rows in trained]
    pairs = [(a, b) for i, a in enumerate(sets) for b in sets[i + 1 :] if a or b]
    return sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs) if pairs else 0.0


def entropy(chosen: Selection) -> float:
    """Mean entropy of the router's distributions, as a share of the uniform one's."""
    assert chosen.log_prob is not None
    log_p = chosen.log_prob.detach()
    most = math.log(max(2, log_p.shape[chosen.axis]))
    return float(-(log_p.exp() * log_p).sum(chosen.axis).mean() / most)


def preference(chosen: Selection, kind: Int[Tensor, " N"]) -> dict[str, float]:
    """How likely the router gives model j a row of each kind, in multiples of an even hand (1 = no preference)."""
    assert chosen.log_prob is not None
    times = chosen.log_prob.detach().exp() * chosen.log_prob.shape[chosen.axis]
    out: dict[str, float] = {}
    for name, code in (("clean", CLEAN), ("local", LOCAL), ("global", GLOBAL)):
        rows = times[kind == code]
        out |= {f"router_{name}_{j}": float(rows[:, j].mean()) for j in range(times.shape[1]) if len(rows)}
    return out


def distinct(rows: Int[Tensor, " k"]) -> Int[Tensor, " u"]:
    """Every row once, ascending."""
    out: Tensor = torch.unique(rows)
    return out


def _of(model: Int[Tensor, " N"], models: int) -> Selection:
    """Each row to the one model named for it."""
    return Selection([(model == j).nonzero()[:, 0] for j in range(models)])


def _lots(q: Question) -> Float[Tensor, "N m"]:
    return shares.lots(seeds_from(q.rng, 1), *q.cost.shape).to(q.cost.device)


def _log_prob(q: Question, dim: int) -> Float[Tensor, "N m"]:
    assert q.logits is not None, "this strategy asks the router"
    return (q.logits / q.temperature).log_softmax(dim)


def _gumbel(q: Question) -> Float[Tensor, "N m"]:
    """Noise that turns "the K largest log-probabilities" into K draws without replacement."""
    noise = torch.empty(q.cost.shape, device=q.rng.device).exponential_(generator=q.rng)
    return -noise.clamp_min(1e-30).log().to(q.cost.device)


def _top(score: Float[Tensor, " N"], k: int) -> Int[Tensor, " k"]:
    return score.topk(min(k, len(score))).indices.sort().values


def _by_model(score: Float[Tensor, "N m"], k: int) -> list[Int[Tensor, " _"]]:
    chosen = torch.zeros_like(score, dtype=torch.bool).scatter(
        1, score.topk(min(k, score.shape[1]), dim=1).indices, True
    )
    return [chosen[:, j].nonzero()[:, 0] for j in range(score.shape[1])]
