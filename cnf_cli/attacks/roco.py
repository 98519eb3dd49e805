"""Halve a few directed edges of a cost matrix, so that the optimum can only improve and the victim gets worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from cnf_cli.attacks.base import Attacked, frozen, measure
from cnf_cli.attacks.roco_actor import Actor, fit_ppo, make_actor
from cnf_cli.attacks.roco_search import Beams, Best, Team, anneal, beam_search, proposer, random_walks
from cnf_cli.attacks.roco_victims import Counted, victim_of
from cnf_cli.engine.base import Engine
from cnf_cli.engine.random import seeds_from
from cnf_cli.errors import RecipeError
from cnf_cli.problems.atsp import with_seed
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import AttackSection, ModeSection


class Params(ModeSection, AttackSection):
    """Keys of `[attack]` for kind = "roco".

    `mode` decides every key that is left out: our own attack, what the published code does, or what the paper says.
    The released actor is uniform (docs/method.md), so mode released has attacker = "beam".
    """

    added: ClassVar[tuple[str, ...]] = ("mode",)
    by_mode: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "attacker": "beam",
            "candidates": "released",
            "choose": "clean",
            "at_least_one": True,
            "augment": 16,
            "propose": "top",
            "reward": "rise",
            "lr": 1e-3,
            "fit_batch": 2,
        },
        "paper": {"candidates": "all", "reward": "rise", "lr": 1e-3},
    }
    kind: str = Field("roco", description="attack plugin: `cnf list attacks`")
    mode: Literal["own", "released", "paper"] = Field("own", description="whose defaults the other keys have")
    attacker: Literal["ppo", "beam", "random", "anneal"] = Field(
        "ppo", description="beam search over a trained network's proposals, over random ones; random walks; annealing"
    )
    steps: int = Field(10, ge=0, le=1000, description="T, most halvings")
    width: int = Field(3, ge=1, le=64, description="matrices kept at each level of a beam search")
    branch: int = Field(3, ge=1, le=64, description="first nodes, and second nodes of each, tried from a kept matrix")
    propose: Literal["sample", "top"] = Field(
        "sample", description="ppo: edges drawn from the network's probabilities, or always the likeliest (released)"
    )
    calls: int = Field(
        0, ge=0, description="most answers asked of a victim per instance; 0 = what the beam search would need"
    )
    candidates: Literal["off_tour", "released", "all"] = Field(
        "off_tour", description="edges that may be halved: off the victim's tour; as in the published code; any"
    )
    choose: Literal["current", "clean"] = Field(
        "current", description="several models: attack the one that is best on the matrix as it is now, or on clean"
    )
    at_least_one: bool = Field(False, description="halve some edge even where none makes the victim worse (released)")
    augment: int = Field(1, ge=1, le=128, description="copies of a matrix in one call of a policy; released 16")
    decode: Literal["greedy", "sample"] = Field("greedy", description="how an attacked policy picks its moves")
    heat: float = Field(0.02, gt=0, le=1, description="anneal: first temperature, as a share of the clean cost")
    heat_end: float = Field(0.001, gt=0, le=1, description="anneal: last temperature")
    refit_epochs: int = Field(10, ge=1, description="ppo: training refits the attackers every so many epochs, E")
    fit_instances: int = Field(50, ge=1, le=100_000, description="ppo: clean instances an attacker is trained on")
    episodes: int = Field(500, ge=1, le=10**6, description="ppo: episodes of T steps")
    fit_batch: int = Field(20, ge=1, le=10_000, description="ppo: episodes per update")
    update_epochs: int = Field(10, ge=1, le=1000, description="ppo: passes over the episodes of an update")
    reward: Literal["upside", "rise"] = Field(
        "upside", description="ppo: rises of the victim's cost only, or falls too (released)"
    )
    lr: float = Field(3e-3, gt=0, le=1, description="ppo: learning rate of Adam; released and paper 1e-3")
    gamma: float = Field(0.95, ge=0, le=1, description="ppo: discount")
    clip: float = Field(0.1, gt=0, le=1, description="ppo: clip of the probability ratio")
    entropy: float = Field(0.01, ge=0, le=10, description="ppo: weight of the entropy bonus")
    hidden: int = Field(32, ge=1, le=1024, description="ppo: width of the attacker's network")

    def identity(self) -> dict[str, Any]:
        """As of any table; results of the published candidates are others since these include cheap tour edges."""
        kept = super().identity()
        return {**kept, "first_level": "any cost"} if self.candidates == "released" else kept


class Attack:
    """ROCO on any victim that answers a matrix with a tour: policies, names of reference solvers, plain callables.

    An attack that must be trained has three methods that others lack. `bind(policies)`: there is one attacker for each,
    and the caller will train them; `modules()`: their networks by name, saved and loaded like a defence's;
    `fit(policies, clean, rng=)`: the attackers of these policies are trained on `clean`, starting from what they know.
    The training stage binds, fits in the first step and then every `params.refit_epochs` epochs. A policy that nobody
    bound gets its attacker at its first attack, trained from `params.seed` and the policy's weights alone.
    """

    def __init__(self, params: Params, problem: Any, engine: Engine) -> None:
        if "matrix" not in problem.movable:
            raise RecipeError(
                f"roco halves entries of a cost matrix, and {problem.kind} has none",
                hint="`cnf list attacks` says what each attack changes",
            )
        self.params, self.problem, self.engine = params, problem, engine
        self._bound: list[Any] = []
        self._actors: list[Actor] = []
        self._fitted: list[bool] = []

    @property
    def budget(self) -> int:
        """Most answers asked about one instance, the clean one's own included."""
        p = self.params
        return 1 + (p.calls or p.branch**2 * (1 + p.width * max(0, p.steps - 1)))

    def draw(self, count: int, rng: torch.Generator) -> Float[Tensor, " b"]:
        """T for each instance."""
        return torch.full((count,), float(self.params.steps))

    def bind(self, policies: Sequence[Any]) -> None:
        """There is one attacker for each policy, in their order; whoever binds also fits, or loads what was fitted."""
        self._bound, self._actors, self._fitted = [], [], []
        if self.params.attacker == "ppo":
            for policy in policies:
                self._fitted[self._add(policy)] = True

    def modules(self) -> dict[str, nn.Module]:
        """The attackers' networks; empty for attackers that learn nothing."""
        return {f"attacker-{j}": actor for j, actor in enumerate(self._actors)}

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learnt."""
        return {f"{name}.{k}": v for name, module in self.modules().items() for k, v in module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The bound attackers are as they were saved."""
        for name, module in self.modules().items():
            module.load_state_dict({k[len(name) + 1 :]: v for k, v in state.items() if k.startswith(f"{name}.")})

    def fit(self, policies: Sequence[Any], clean: Instances, *, rng: torch.Generator) -> dict[str, float]:
        """The attackers of these policies are trained on `clean`; what an episode earned them at first and at last."""
        out: dict[str, float] = {}
        if self.params.attacker != "ppo" or not self.params.steps:
            return out
        clean = with_seed(clean.detach())
        for j, policy in enumerate(policies):
            at = self._place(policy)
            victim = Counted(self._victim(policy, rng))
            with frozen([policy]):
                found = fit_ppo(self._actors[at].to(clean.device), victim, clean, self.params, rng)
            self._fitted[at] = True
            out |= {f"{name}_{j}": value for name, value in found.items()} | {f"calls_{j}": float(victim.calls)}
        return out

    def __call__(
        self,
        policies: Sequence[Any],
        clean: Instances,
        *,
        rng: torch.Generator,
        step: Float[Tensor, " b"] | None = None,
    ) -> Attacked:
        """The hardest matrix found for each instance within T halvings and the budget of calls.

        `step` gives each instance its own T. Several victims: the global attack.
        """
        clean = with_seed(clean.detach())
        alpha = (self.draw(len(clean), rng) if step is None else step).to(clean.device).float()
        if not len(clean):
            return Attacked(clean, {"alpha": alpha})
        with frozen(policies):
            return self._run(policies, clean, rng, alpha)

    def _run(self, policies: Sequence[Any], clean: Instances, rng: torch.Generator, alpha: Tensor) -> Attacked:
        p = self.params
        actors = [self._actor(policy) for policy in policies] if p.attacker == "ppo" and p.steps else None
        team = Team([Counted(self._victim(policy, rng)) for policy in policies], clean)
        assert clean.matrix is not None
        owner = torch.arange(len(clean), device=clean.device)
        tour, costs, which = team.ask_all(clean.matrix, owner)
        before = costs.amin(1)
        best = Best(clean.matrix, before, p.at_least_one)
        start, most = Beams(owner, clean.matrix, tour, before, which), alpha.round().long()
        budget = self.budget + len(policies) - 1
        if p.attacker == "random":
            random_walks(team, start, best, most, budget, rng, p)
        elif p.attacker == "anneal":
            anneal(team, start, best, most, budget, rng, p)
        else:
            beam_search(team, start, best, most, budget, proposer(actors, p, rng), p)
        now = clean.with_(matrix=best.matrix)
        known = torch.minimum(self.problem.cost(now, tour[:, None])[:, 0], best.cost)
        stats = {
            "alpha": alpha,
            "calls": team.calls.float(),
            "edges": (best.matrix != clean.matrix).flatten(1).sum(1).float(),
            "cost_before": before,
            "cost_after": best.cost,
            "hardness": torch.where(known > 1e-9, best.cost / known.clamp_min(1e-9) - 1, torch.zeros_like(known)),
        }
        # Only sampled, plain answers are what a defence would have sampled itself.
        shared = costs if p.decode == "sample" and p.augment == 1 else None
        return Attacked(now, stats | measure(clean, now), which, shared)

    def _victim(self, target: Any, rng: torch.Generator) -> Any:
        seeds = seeds_from(rng, 1) if self.params.decode == "sample" else None
        return victim_of(target, self.problem, self.engine, augment=self.params.augment, seeds=seeds)

    def _place(self, policy: Any) -> int:
        for at, known in enumerate(self._bound):
            if known is policy:
                return at
        return self._add(policy)

    def _add(self, policy: Any) -> int:
        # All first weights are equal: what sets attackers apart is whom they were trained against.
        self._bound.append(policy)
        self._actors.append(make_actor(self.params.seed % 2**62, self.params.hidden))
        self._fitted.append(False)
        return len(self._bound) - 1

    def _actor(self, policy: Any) -> Actor:
        at = self._place(policy)
        if not self._fitted[at]:
            rng = torch.Generator().manual_seed(self.params.seed % 2**62)
            device = next((p.device for p in getattr(policy, "parameters", list)()), torch.device("cpu"))
            self.fit([policy], self.problem.sample(self.params.fit_instances, rng=rng).to(device), rng=rng)
        return self._actors[at]
