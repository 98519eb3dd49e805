"""How a stage runs."""

from __future__ import annotations

import pytest
import torch

from cnf_cli.errors import RecipeError
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages.setup import accelerated


@pytest.mark.parametrize("keys", [{"precision": "bfloat16"}, {"compile": True}])
def test_cuda_options_are_refused_on_a_cpu(keys: dict[str, object]) -> None:
    """Mixed precision and compilation are a clear error on a CPU, where bfloat16 can end the whole process."""
    with pytest.raises(RecipeError, match="CUDA"):
        accelerated(torch.nn.Identity(), RuntimeSection.model_validate(keys), torch.device("cpu"))


def test_plain_options_leave_the_policy_alone() -> None:
    """By default the policy itself is used."""
    policy = torch.nn.Identity()
    assert accelerated(policy, RuntimeSection(), torch.device("cpu")) is policy
