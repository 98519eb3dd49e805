"""Policies as artifacts: one safetensors file per model, each saying what problem and network it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cnf_cli import plugins
from cnf_cli.errors import ArtifactError
from cnf_cli.formats import checkpoint
from cnf_cli.pipeline.job import Artifact
from cnf_cli.policies.biased import Rates, biased
from cnf_cli.problems.base import BaseProblem
from cnf_cli.recipe.build import build_section
from cnf_cli.recipe.sections import PolicySection, ProblemSection


@dataclass(frozen=True)
class Ensemble:
    """One or more policies of one problem, ready to use."""

    problem: BaseProblem
    policies: list[Any]
    problem_section: ProblemSection
    policy_section: PolicySection

    def biased(self, rates: Rates) -> Ensemble:
        """The same policies with a bias at decoding; unchanged without rates."""
        return replace(self, policies=biased(self.policies, self.problem, rates)) if rates else self


def make_problem(section: ProblemSection) -> BaseProblem:
    """The problem a recipe describes."""
    problem: BaseProblem = plugins.create("problems", section)
    return problem


def make_policy(section: PolicySection, problem: BaseProblem) -> Any:
    """An untrained policy for that problem; call its `init` or load weights into it."""
    return plugins.create("policies", section, problem)


def save_models(
    folder: Path, models: Sequence[nn.Module], problem: ProblemSection, policy: PolicySection
) -> dict[str, Path]:
    """Output name -> file, one per model."""
    files = {}
    meta = {"kind": "policy", "problem": problem.identity(), "policy": policy.identity()}
    for i, model in enumerate(models):
        name = "model.safetensors" if len(models) == 1 else f"model-{i}.safetensors"
        checkpoint.save(folder / name, dict(model.state_dict()), meta)
        files[name] = folder / name
    return files


def load_models(artifact: Artifact, device: torch.device | str = "cpu") -> Ensemble:
    """The artifact's policies, in order, in evaluation mode on `device`."""
    names = [name for name in artifact.names(".safetensors") if name.startswith("model")]
    if not names:
        raise ArtifactError(
            f"artifact {artifact.manifest.key[:12]} ({artifact.manifest.stage}) holds no policy",
            hint="`cnf ls` lists artifacts; pretrain, train-cnf and import make policies.",
        )
    names.sort(key=lambda name: int("0" + "".join(c for c in name if c.isdigit())))
    found = [load_model(artifact.path(name), device) for name in names]
    first = found[0]
    return Ensemble(first.problem, [f.policies[0] for f in found], first.problem_section, first.policy_section)


def load_model(path: Path, device: torch.device | str = "cpu") -> Ensemble:
    """The policy in one checkpoint file."""
    tensors, meta = checkpoint.load(path)
    try:
        problem_section = build_section("problem", _mapping(meta["problem"]))
        policy_section = build_section("policy", _mapping(meta["policy"]))
    except KeyError as error:
        raise ArtifactError(f"the checkpoint does not say which {error} it belongs to", at=str(path)) from None
    assert isinstance(problem_section, ProblemSection)
    assert isinstance(policy_section, PolicySection)
    problem = make_problem(problem_section)
    policy = make_policy(policy_section, problem)
    fit(policy, tensors, str(path))
    return Ensemble(problem, [policy.to(device).eval()], problem_section, policy_section)


def fit(policy: nn.Module, tensors: Mapping[str, torch.Tensor], at: str) -> None:
    """The policy has these weights; anything that does not fit is named."""
    wanted = {name: tuple(t.shape) for name, t in policy.state_dict().items()}
    have = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in [*wanted, *have]:
        if wanted.get(name) != have.get(name):
            told = f"the policy has {wanted.get(name, 'none')}, the file {have.get(name, 'none')}"
            raise ArtifactError(
                f"the checkpoint does not fit the policy: {name}: {told}",
                at=at,
                hint="another problem, width or number of layers? `cnf show ID` prints what made it.",
            )
    policy.load_state_dict(dict(tensors))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"kind": value}
