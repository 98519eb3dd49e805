"""What a step of training descends: each loss is a sum of log-probabilities of tours with weights.

Letters: P rollouts p of one instance, cost c_p, log-probability L_p, mean cost m.

    reinforce   sum_p (c_p - m) / P  L_p
    leader      the same, with the best rollout's weight times `leader_weight`
    preference  - 1 / P^2  sum over pairs with c_p < c_q of  log sigmoid(scale (L_p - L_q))
    likelihood  - mean over the given tours of L_p
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from cnf_cli.engine.base import Engine, Tables, World
from cnf_cli.policies.run import SAME, Encoder, Sampled, advantage
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import LossSection


def rollout_loss(
    section: LossSection,
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    seeds: Int[Tensor, " b"],
    starts: Int[Tensor, " p"] | None = None,
) -> tuple[Float[Tensor, ""], Sampled]:
    """The recipe's loss on tours that the policy samples, meaned over the instances, and what was sampled."""
    losses, sampled = rollout_losses(section, policy, problem, inst, engine, seeds, starts)
    return losses.mean(), sampled


def rollout_losses(
    section: LossSection,
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    seeds: Int[Tensor, " b"],
    starts: Int[Tensor, " p"] | None = None,
) -> tuple[Float[Tensor, " b"], Sampled]:
    """The recipe's loss of each instance on tours that the policy samples, and what was sampled."""
    tables, world = policy.encode(inst, engine=engine), problem.world(inst, starts)
    with torch.no_grad():
        log_prob = None
        if section.loss == "preference":
            tours, log_prob = engine.sample(tables, world, seeds)
        else:
            tours = engine.rollout(tables, world, seeds)
        cost = problem.cost(inst, tours)
    losses, log_prob = tour_losses(section, engine, tables, world, tours, cost, log_prob)
    return losses, Sampled(tours, cost, log_prob)


def tour_losses(
    section: LossSection,
    engine: Engine,
    tables: Tables,
    world: World,
    tours: Int[Tensor, "b p t"],
    cost: Float[Tensor, "b p"],
    log_prob: Float[Tensor, "b p"] | None = None,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
    """(the recipe's loss of each instance on tours sampled before, their log-probabilities now).

    `log_prob` spares a preference loss a pass over the tours, where the sampling gave them.
    """
    value = None
    with torch.no_grad():
        if section.loss == "preference":
            if log_prob is None:
                _, log_prob = engine.score(tables, world, tours, torch.zeros_like(cost))
            value, weight = preference(cost, log_prob, section.preference_scale)
        else:
            weight = advantage(cost)
            if section.loss == "leader":
                weight = lead(weight, section.leader_weight)
    losses, log_prob = engine.score(tables, world, tours, weight)
    if value is not None:
        losses = losses - losses.detach() + value  # the gradient of the weighted sum, the value of the loss
    return losses, log_prob


def likelihood_loss(
    policy: Encoder,
    problem: BaseProblem,
    inst: Instances,
    engine: Engine,
    tours: Int[Tensor, "b p t"],
    good: Bool[Tensor, "b p"],
) -> tuple[Float[Tensor, ""], Sampled]:
    """Minus the log-probability of given tours, one per start, meaned over an instance's `good` ones, then over all."""
    tables, world = policy.encode(inst, engine=engine), problem.world(inst)
    weight = -good.to(tables.key.dtype) / good.sum(1, keepdim=True).clamp_min(1)
    losses, log_prob = engine.score(tables, world, tours, weight)
    with torch.no_grad():
        cost = problem.cost(inst, tours).masked_fill(~good, torch.inf)
    return losses.mean(), Sampled(tours, cost, log_prob)


def lead(weight: Float[Tensor, "b p"], times: float) -> Float[Tensor, "b p"]:
    """The most negative weight of each instance, that of its best rollout, is multiplied."""
    best = weight.argmin(1, keepdim=True)
    return weight.scatter(1, best, times * weight.gather(1, best))


def preference(
    cost: Float[Tensor, "b p"], log_prob: Float[Tensor, "b p"], scale: float
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
    """(the loss of each instance, its derivative by each log-probability).

    Costs that differ by rounding only are one tour begun elsewhere, and no preference.
    """
    better = cost[:, :, None] < cost[:, None, :] * (1 - SAME)
    ahead = scale * (log_prob[:, :, None] - log_prob[:, None, :])
    pairs = cost.shape[1] ** 2
    loss = -(logsigmoid(ahead) * better).sum((1, 2)) / pairs
    pull = torch.sigmoid(-ahead) * better * (scale / pairs)
    return loss, pull.sum(1) - pull.sum(2)
