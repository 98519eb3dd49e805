"""One training step and one greedy x8 evaluation for every engine, on the same instances and widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cnf_cli import plugins
from cnf_cli.engine import get_engine
from cnf_cli.policies.pomo import Params, Policy
from cnf_cli.policies.run import reinforce_loss, solve

Work = Callable[[], float]


def problem_of(kind: str, n: int) -> Any:
    """The problem plugin for n cities or customers."""
    module = plugins.load("problems", kind)
    return module.Problem(module.Params(n=n))


def make(engine: str, work: str, kind: str, n: int, batch: int) -> Work:
    """A function that does the work once and returns the mean cost of its best tours."""
    inst = problem_of(kind, n).sample(batch, rng=torch.Generator().manual_seed(n))
    builder = {"native": _ours, "torch": _ours, "stepwise": _stepwise, "rl4co": _rl4co}[engine]
    return builder(engine, work, kind, n, inst)


def _ours(engine_name: str, work: str, kind: str, n: int, inst: Any) -> Work:
    problem, engine = problem_of(kind, n), get_engine(engine_name)
    policy = Policy(Params(), problem)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)  # as `cnf pretrain` has it
    seeds = torch.arange(len(inst))

    def train() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss, sampled = reinforce_loss(policy, problem, inst, engine, seeds)
        loss.backward()
        optimizer.step()
        return float(sampled.best.mean())

    def greedy() -> float:
        return float(solve([policy], problem, inst, engine, augment=8).cost.mean())

    return train if work == "train" else greedy


def _stepwise(_: str, work: str, kind: str, n: int, inst: Any) -> Work:
    from benchmarks.stepwise import Stepwise

    model = Stepwise(depot=inst.demand is not None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    copies = problem_of(kind, n).augment(inst, 8)

    def train() -> float:
        optimizer.zero_grad(set_to_none=True)
        cost, log_prob = model(inst.xy, inst.demand, True)
        ((cost - cost.mean(1, keepdim=True)).detach() * log_prob).mean().backward()
        optimizer.step()
        return float(cost.amin(1).mean())

    @torch.no_grad()
    def greedy() -> float:
        cost, _ = model(copies.xy, copies.demand, False)
        return float(cost.amin(1).view(-1, 8).amin(1).mean())

    return train if work == "train" else greedy


def _rl4co(_: str, work: str, kind: str, n: int, inst: Any) -> Work:
    import logging

    logging.disable(logging.WARNING)
    from rl4co.data.transforms import StateAugmentation
    from rl4co.envs import CVRPEnv, TSPEnv
    from rl4co.models.zoo.am import AttentionModelPolicy
    from rl4co.utils.ops import unbatchify
    from tensordict import TensorDict

    env = {"tsp": TSPEnv, "cvrp": CVRPEnv}[kind](generator_params={"num_loc": n}, check_solution=False)
    # The arguments with which its POMO model builds the policy; the trainer around it is left out, in its favour.
    policy = AttentionModelPolicy(
        env_name=env.name, num_encoder_layers=6, normalization="instance", use_graph_context=False
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    batch = {"locs": inst.xy}
    if inst.demand is not None:
        batch = {
            "locs": inst.xy[:, 1:],
            "depot": inst.xy[:, 0],
            "demand": inst.demand[:, 1:],
            "capacity": inst.capacity[:, None],
        }
    data = TensorDict(batch, batch_size=[len(inst)])
    grow = StateAugmentation(num_augment=8, augment_fn="dihedral8", first_aug_identity=True)

    def train() -> float:
        optimizer.zero_grad(set_to_none=True)
        out = policy(env.reset(data.clone()), env, phase="train", decode_type="multistart_sampling", num_starts=n)
        reward, log_prob = unbatchify(out["reward"], n), unbatchify(out["log_likelihood"], n)
        (-(reward - reward.mean(1, keepdim=True)) * log_prob).mean().backward()
        optimizer.step()
        return float(-reward.amax(1).mean())

    @torch.no_grad()
    def greedy() -> float:
        out = policy(grow(env.reset(data.clone())), env, phase="test", decode_type="multistart_greedy", num_starts=n)
        return float(-unbatchify(out["reward"], (8, n)).amax((1, 2)).mean())

    return train if work == "train" else greedy
