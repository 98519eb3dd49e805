"""How a stage runs: faster where asked, on several ranks, and the same in what it computes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

from cnf_cli.errors import RecipeError
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.training.machine import Setup, accelerated, network
from tests.conftest import ROOT
from tests.helpers import environment

CPU = torch.device("cpu")
PATIENCE = 600
"""Seconds until a process that should have ended counts as hanging; a busy machine compiles slowly."""


@pytest.mark.parametrize("keys", [{"precision": "bfloat16"}, {"compile": True}])
def test_cuda_options_are_refused_on_a_cpu(keys: dict[str, object]) -> None:
    """Mixed precision and compilation are a clear error on a CPU, where bfloat16 can end the whole process."""
    with pytest.raises(RecipeError, match="CUDA"):
        accelerated(torch.nn.Identity(), RuntimeSection.model_validate(keys), CPU)


def test_plain_options_leave_the_policy_alone() -> None:
    """By default, and on one rank, the policy itself is trained."""
    policy, setup = torch.nn.Identity(), Setup(CPU, engine=None)  # type: ignore[arg-type]
    assert accelerated(policy, RuntimeSection(), CPU) is policy
    assert network(policy, RuntimeSection(), setup) is policy


def started(given: dict[str, Any], **variables: str) -> subprocess.Popen[str]:
    """A fresh process that runs the kit."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.setup_kit", json.dumps(given)],
        env={**environment(None), **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str], timeout: float = PATIENCE) -> Any:
    """What the kit found."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out)


# The default backend, inductor, compiles C++ for a minute: the quick test has torch's graphs without it.
COMPILED = [
    ("tsp", "aot_eager", [4]),
    ("tsp", "inductor", [4, 6]),
    ("cvrp", "inductor", [4]),
    ("atsp", "aot_eager", [4]),
]


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    ("kind", "backend", "sizes"),
    [pytest.param(*case, marks=pytest.mark.slow if i else ()) for i, case in enumerate(COMPILED)],
)
def test_a_compiled_encoder_computes_the_same(kind: str, backend: str, sizes: list[int]) -> None:
    """torch.compile takes the encoder in one graph, and its tables and gradients are the plain ones within 1e-5."""
    got = printed(started({"kind": kind, "backend": backend, "sizes": sizes, "compile": True}))
    assert got["graphs"] > 0
    assert got["breaks"] == 0
    assert len(got["found"]) == len(sizes)
    for one in got["found"]:
        assert max(one["tables"], one["gradients"]) <= 1e-5


def test_mixed_precision_computes_nearly_the_same() -> None:
    """The bfloat16 encoder's tables are float32 and within 2% of the plain ones, but not equal to them."""
    process = started({"kind": "cvrp", "backend": "eager", "sizes": [4, 6], "precision": "bfloat16"})
    process.wait(timeout=250)
    if process.returncode == -signal.SIGILL:
        pytest.skip("this processor's bfloat16 products end the process, with oneDNN switched off too")
    for one in printed(process)["found"]:
        assert one["types"] == ["torch.float32"]
        assert 1e-5 < one["tables"] < 0.02
        assert one["gradients"] > 1e-5


def on_two_ranks(*, compiled: bool) -> list[Any]:
    """What each of two ranks found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [started({"compiled": compiled}, RANK=rank, LOCAL_RANK=rank, **names) for rank in "01"]
    try:
        return [printed(process, timeout=250) for process in processes]
    finally:
        for process in processes:
            process.kill()


def assert_shared(found: dict[str, Any], limit: float) -> None:
    assert found["averaged_by"] == "DistributedDataParallel"
    assert max(found["together"]) <= limit
    assert min(found["alone"]) > 0.01, "a rank's own gradient is another one"


def test_ranks_share_gradients_and_buffers_through_torch() -> None:
    """After one backward pass through DistributedDataParallel each rank has the mean of all ranks' gradients.

    Batch statistics are rank 0's on every rank, and encoding without gradients waits for nobody.
    """
    for rank in on_two_ranks(compiled=False):
        for kind in ("tsp", "cvrp", "atsp"):
            assert_shared(rank[kind], limit=1e-6)
        assert rank["buffers"] < 100


@pytest.mark.slow
def test_ranks_share_gradients_of_a_compiled_encoder() -> None:
    """Compilation inside DistributedDataParallel: the gradients' mean is that of the plain encoder."""
    for rank in on_two_ranks(compiled=True):
        assert rank["graphs"] > 0
        assert_shared(rank["tsp"], limit=1e-5)
