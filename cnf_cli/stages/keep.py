"""What a training may end with instead of its last weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from cnf_cli.formats import checkpoint
from cnf_cli.stages import ranks
from cnf_cli.stages.training import fill


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
