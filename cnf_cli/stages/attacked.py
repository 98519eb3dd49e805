"""Instances of every size against groups of models, ten at a time; what is finished survives an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cnf_cli.pipeline.job import Job, derived_seed
from cnf_cli.problems.instances import Instances, concatenate
from cnf_cli.training.resume_state import save_sealed, sealed_part

CHUNK = 10
"""Instances attacked together, as for the published test sets: the released step size is divided by it."""


def attack_all(
    job: Job, attack: Any, groups: Sequence[Sequence[Any]], clean: Sequence[Instances], seed: int
) -> list[tuple[Instances, dict[str, torch.Tensor]]]:
    """For each entry of `clean`, all of it against every group of models, group by group, and the attack's numbers.

    Ten instances of a size at a time; finished tens survive an interruption.
    """
    total = sum(map(len, clean))
    made: list[list[_Part]] = [[] for _ in clean]
    with job.bars.bar("attacking", total * len(groups), "instances") as bar:
        for g, policies in enumerate(groups):
            steps = attack.draw(total, torch.Generator().manual_seed(derived_seed(seed, "attack steps", g)))
            at = 0
            for inst, parts in zip(clean, made, strict=True):
                for low in range(0, len(inst), CHUNK):
                    few = inst[low : low + CHUNK].to(_device(policies))
                    rng = torch.Generator().manual_seed(derived_seed(seed, "attack", g, at))
                    kept = job.work / f"part-{g}-{at}.safetensors"
                    parts.append(_part(kept, attack, policies, few, rng, steps[at : at + len(few)]))
                    at += len(few)
                    bar.advance(len(few))
                    job.pause_point()
    return [_whole(parts) for parts in made]


class _Part(NamedTuple):
    inst: Instances
    stats: dict[str, torch.Tensor]


def _part(
    kept: Path, attack: Any, policies: Sequence[Any], few: Instances, rng: torch.Generator, steps: torch.Tensor
) -> _Part:
    """A few instances attacked, from the file where an earlier run has left them."""
    tensors = sealed_part(kept)
    if tensors is None:
        attacked = attack(policies, few, rng=rng, step=steps)
        fields = {f"inst.{k}": v.cpu() for k, v in vars(attacked.instances).items() if v is not None}
        numbers = {f"stat.{k}": v.float().cpu() for k, v in attacked.stats.items()}
        tensors = {**fields, **numbers}
        save_sealed(kept, tensors, {"kind": "part"})
    inst = Instances(**{k[5:]: v for k, v in tensors.items() if k.startswith("inst.")})
    return _Part(inst, {k[5:]: v for k, v in tensors.items() if k.startswith("stat.")})


def _whole(parts: Sequence[_Part]) -> tuple[Instances, dict[str, torch.Tensor]]:
    stats = {name: torch.cat([part.stats[name] for part in parts]) for name in parts[0].stats}
    return concatenate([part.inst for part in parts]), stats


def _device(policies: Sequence[Any]) -> torch.device:
    device: torch.device = next(policies[0].parameters()).device
    return device
