"""Which weights a training keeps: those of its last step, running means of them, or what validation liked most."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from cnf_cli.formats import checkpoint
from cnf_cli.stages import ranks
from cnf_cli.stages.training import fill


class Average:
    """Running means of models' weights: where the training is, without most of the noise of its last steps."""

    def __init__(self, models: Sequence[nn.Module], steps: int) -> None:
        self.models, self.steps = models, steps
        self.means = [deepcopy(model).requires_grad_(False) for model in models]

    def follow(self, step: int) -> None:
        """One more step counts: the mean is over all of them until there were `steps`, then it forgets the oldest.

        `step` is the number of steps before this one. What is no fraction, a counter of a norm, is copied.
        """
        weight = 1 / min(step + 1, self.steps)
        for mean, model in zip(self.means, self.models, strict=True):
            pairs = list(zip(mean.state_dict().values(), model.state_dict().values(), strict=True))
            floats = [pair for pair in pairs if pair[0].is_floating_point()]
            torch._foreach_lerp_([m for m, _ in floats], [w for _, w in floats], weight)
            for m, w in pairs:
                if not m.is_floating_point():
                    m.copy_(w)

    def modules(self) -> dict[str, nn.Module]:
        """What is saved with the training's state."""
        return {f"average-{j}": mean for j, mean in enumerate(self.means)}


class Best:
    """The models as they were when a validation found them best, in a file beside the saved state.

    A run that goes on from before its last validation finds the same numbers again, so the file stays as it is.
    """

    def __init__(self, path: Path, models: Sequence[nn.Module]) -> None:
        self.path, self.models = path, models

    def offer(self, cost: float, instances: int) -> None:
        """They are in the file if they cost less than those in it."""
        if ranks.rank() == 0 and not (self.path.exists() and checkpoint.load(self.path)[1]["cost"] <= cost):
            tensors = {f"{j}/{k}": v for j, model in enumerate(self.models) for k, v in model.state_dict().items()}
            checkpoint.save(self.path, tensors, {"kind": "best", "cost": cost, "instances": instances})

    def restore(self) -> int | None:
        """The models are those in the file; after how many instances they were, None without any validation."""
        if not self.path.exists():
            return None
        tensors, meta = checkpoint.load(self.path)
        fill({str(j): model for j, model in enumerate(self.models)}, tensors)
        return int(meta["instances"])
