"""What a forward pass needs of the memory is known before it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.engine import get_engine, memory
from cnf_cli.errors import DataError
from cnf_cli.policies.pomo import Params, Policy
from cnf_cli.policies.run import solve
from tests.conftest import ROOT


def small(n: int) -> tuple[Policy, object]:
    module = plugins.load("problems", "tsp")
    problem = module.Problem(module.Params(n=n))
    policy = Policy(Params(width=16, heads=4, layers=1, feed_forward=16), problem)
    return policy.init(torch.Generator().manual_seed(0)), problem


def test_an_instance_that_cannot_fit_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """900,000 stops are an error at once that says how much memory they need and how much there is."""
    policy, problem = small(5)
    monkeypatch.setattr(policy, "encode", lambda *_, **__: pytest.fail("work began"))
    inst = problem.sample(1, rng=torch.Generator().manual_seed(0), n=900_000)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"900,000 nodes needs about \d+ TB of memory here, and .* are free") as caught:
        solve([policy], problem, inst, get_engine())  # type: ignore[arg-type]
    assert "cnf solvers" in (caught.value.hint or "")


def test_little_free_memory_makes_smaller_pieces_and_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all copies fit at once they go one by one: the same tours and costs."""
    policy, problem = small(12)
    inst = problem.sample(3, rng=torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
    plain = solve([policy], problem, inst, get_engine(), augment=8)  # type: ignore[arg-type]
    rows, encode = [], policy.encode
    monkeypatch.setattr(policy, "encode", lambda few, **more: (rows.append(len(few)), encode(few, **more))[1])
    room = memory.needed(12, 1, torch.get_num_threads()) / memory.SHARE
    monkeypatch.setattr(memory, "free", lambda device: int(room) + 100)
    tight = solve([policy], problem, inst, get_engine(), augment=8)  # type: ignore[arg-type]
    assert rows == [1] * 24
    assert torch.equal(plain.cost, tight.cost)
    assert torch.equal(plain.tour, tight.tour)


def test_a_control_group_bounds_what_is_free(tmp_path: Path) -> None:
    """In a container the group's limit counts, less what is in use, plus cached files that can be dropped."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    assert memory._group(tmp_path) == 350_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._group(tmp_path) is None
    assert memory._group(tmp_path / "none") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_what_is_needed_is_not_estimated_too_low(kind: str) -> None:
    """Solving 1,000 nodes takes no more than was said before, and no less than a sixth of it."""
    code = (
        "import re, torch\n"
        "from pathlib import Path\n"
        "from cnf_cli import plugins\n"
        "from cnf_cli.engine import get_engine, memory\n"
        "from cnf_cli.policies.pomo import Params, Policy\n"
        "from cnf_cli.policies.run import solve\n"
        "torch.set_num_threads(1)\n"
        f"module = plugins.load('problems', '{kind}')\n"
        "problem = module.Problem(module.Params(n=999))\n"
        "policy = Policy(Params(width=16, heads=4, layers=1, feed_forward=16), problem)\n"
        "rng = torch.Generator().manual_seed(0)\n"
        "solve([policy], problem, problem.sample(1, rng=rng, n=9), get_engine(), augment=1)\n"
        "def held(name):\n"
        "    return 1024 * int(re.search(name + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "inst = problem.sample(1, rng=rng)\n"
        "Path('/proc/self/clear_refs').write_text('5')  # the peak begins anew\n"
        "before = held('VmRSS')\n"
        "solve([policy], problem, inst, get_engine(), augment=1)\n"
        "print(held('VmHWM') - before, memory.needed(inst.nodes, 1, 1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    taken, said = (int(v) for v in done.stdout.split())
    assert said / 6 < taken < said, (taken, said)
