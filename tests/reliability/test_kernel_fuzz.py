"""Every kernel's entry, called with anything: it answers soundly or refuses, and the process goes on."""

from __future__ import annotations

import pytest

from cnf_cli.engine import native
from tests.reliability.kernel_fuzz import fuzz


@pytest.mark.skipif(not native.available(), reason=f"the extension is not built: {native.why_not()}")
@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_answer_or_refuse_whatever_they_are_given(seed: int) -> None:
    """Of 400 calls with odd shapes, counts and numbers every kernel answers some, refuses some, and breaks at none."""
    done = fuzz(400, seed)
    assert done.total() == 400
    assert {name for name, times in done.items() if times > 3} == {
        f"{kernel} {end}"
        for kernel in ("rollout", "score", "layers", "layers_backward", "mixed", "tours", "routes")
        for end in ("answered", "refused")
    }
