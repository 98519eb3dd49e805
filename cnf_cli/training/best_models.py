"""What a training may end with instead of its last weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cnf_cli.errors import ArtifactError
from cnf_cli.pipeline import ranks
from cnf_cli.training.resume_state import BEFORE, NEXT, NOW, fill, load_sealed, save_sealed, set_aside


class Best:
    """The models as they were when a validation found them best, in a file beside the saved state.

    A run that goes on from before its last validation finds the same numbers again, so the file stays as it is.
    """

    def __init__(self, path: Path, models: Sequence[nn.Module], say: Callable[[str], None]) -> None:
        """A damaged file is set aside with the states that know of it: the run starts again from the beginning."""
        self.path, self.models = path, models
        if ranks.rank() == 0 and path.exists():
            try:
                self._load()
            except ArtifactError as error:
                say(f"{path.name} is damaged ({error.message}): set aside, and starting again from the beginning")
                for name in (path.name, NEXT, NOW, BEFORE):
                    if path.with_name(name).exists():
                        set_aside(path.with_name(name))

    def _load(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return load_sealed(self.path, {"kind", "cost", "instances"})

    def offer(self, cost: float, instances: int) -> None:
        """They are in the file if they cost less than those in it."""
        if ranks.rank() == 0 and not (self.path.exists() and self._load()[1]["cost"] <= cost):
            tensors = {f"{j}/{k}": v for j, model in enumerate(self.models) for k, v in model.state_dict().items()}
            save_sealed(self.path, tensors, {"kind": "best", "cost": cost, "instances": instances})

    def restore(self) -> int | None:
        """The models are those in the file; after how many instances they were, None without any validation."""
        if not self.path.exists():
            return None
        tensors, meta = self._load()
        fill({str(j): model for j, model in enumerate(self.models)}, tensors)
        return int(meta["instances"])
