"""The native engine at the edges: extreme scores, equal nodes, threads, bad input, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from cnf_cli.engine.base import Tables, World
from cnf_cli.engine.native import NativeEngine, instruction_sets
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import DataError
from tests.conftest import ROOT
from tests.unit.native_kit import TIE, differences, leaves, needs_native, random_case, relative

pytestmark = needs_native


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("depot", [False, True])
@pytest.mark.parametrize("isa", instruction_sets())
def test_scores_of_hundreds(isa: str, depot: bool, biased: bool) -> None:
    """With attention scores of +-200 the exponentials underflow; tours, log p and gradients still agree with torch."""
    tables, world = random_case(3, 16, depot=depot, scale=50.0, biased=biased)
    assert float((tables.last.view(3, 16, 8, 16) * tables.key.view(3, 16, 8, 16)).sum(-1).abs().max() / 4) > 200
    ours, theirs = NativeEngine(instruction_set=isa), TorchEngine()
    gaps = differences(tables, world, ours.rollout(tables, world), theirs.rollout(tables, world))
    assert all(gap <= TIE for gap in gaps)
    tours = theirs.rollout(tables, world, torch.arange(3))
    weight = torch.ones(tours.shape[:2])
    exact = tables.with_(**{name: x.double() for name, x in tables.tensors()})
    (local, mine), (local_2, other) = leaves(tables), leaves(exact)
    total, log_prob = ours.score(local, world, tours, weight)
    total_2, log_prob_2 = theirs.score(local_2, world, tours, weight.double())
    total.sum().backward()
    total_2.sum().backward()
    # Float32 scores of hundreds are themselves only good to 1e-5, and a near-hard softmax passes that on.
    assert float((log_prob - log_prob_2).abs().max()) <= 5e-3
    for name, leaf in mine.items():
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        assert relative(leaf.grad, other[name].grad) <= 1e-3, name


@pytest.mark.parametrize("clip", [10.0, 100.0])
@pytest.mark.parametrize("depot", [False, True])
def test_equal_nodes(depot: bool, clip: float) -> None:
    """When all nodes are the same, tours are valid, each choice is as likely as any other and gradients are finite."""
    tables, world = random_case(2, 10, depot=depot)
    same = {name: x if x.ndim == 1 else x[:, :1].expand_as(x).contiguous() for name, x in tables.tensors()}
    same["pointer"] = same["pointer"] * 30  # saturates the tanh
    tables = Tables(**same, heads=tables.heads, clip=clip)
    local, named = leaves(tables)
    for seeds in (None, torch.arange(2)):
        tours = NativeEngine().rollout(tables, world, seeds)
        total, log_prob = NativeEngine().score(local, world, tours, torch.ones(tours.shape[:2]))
        expected = TorchEngine().score(tables, world, tours, torch.ones(tours.shape[:2]))[1]
        assert float((log_prob - expected).abs().max()) <= 1e-4
        total.sum().backward()
        assert all(torch.isfinite(leaf.grad).all() for leaf in named.values() if leaf.grad is not None)
        if not depot:
            assert torch.equal(tours.sort(-1).values, torch.arange(10).expand(2, 10, -1))


def test_lowest_of_equal_scores_wins() -> None:
    """Exact ties go to the lowest node, as in torch."""
    tables, world = random_case(1, 7)
    flat = tables.with_(pointer=torch.zeros(1, 7, 128), bias=torch.zeros(1, 7))
    assert NativeEngine().rollout(flat, world)[0, 3].tolist() == [3, 0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("depot", [False, True])
def test_threads_chunks_and_starts_change_nothing(depot: bool, biased: bool) -> None:
    """Tours, log p and gradients are bit-equal for 1, 2 and 5 threads, any batch and any subset of starts."""
    tables, world = random_case(5, 18, depot=depot, biased=biased)
    seeds = torch.tensor([9, -3, 2**40, 0, 17])
    tours = NativeEngine(threads=1).rollout(tables, world, seeds)
    weight = torch.randn(tours.shape[:2], generator=torch.Generator().manual_seed(0))
    values = []
    for threads in (1, 2, 5):
        engine = NativeEngine(threads=threads)
        assert torch.equal(engine.rollout(tables, world, seeds), tours)
        local, named = leaves(tables)
        total, log_prob = engine.score(local, world, tours, weight)
        total.sum().backward()
        values.append([total.detach(), log_prob, *(leaf.grad for leaf in named.values())])
    assert all(torch.equal(a, b) for other in values[1:] for a, b in zip(values[0], other, strict=True))
    one = tables.with_(**{name: x if x.ndim == 1 else x[3:4] for name, x in tables.tensors()})
    few = World(world.starts[4:9], None if world.demand is None else world.demand[3:4])
    alone = NativeEngine(threads=3).rollout(one, few, seeds[3:4])
    assert torch.equal(alone[0], tours[3, 4:9, : alone.shape[-1]])
    assert tours[3, 4:9, alone.shape[-1] :].sum() == 0


def test_rollouts_that_share_a_start() -> None:
    """Two rollouts from the same node draw the same tour and both count in the gradient."""
    tables, _ = random_case(1, 9)
    world = World(torch.tensor([2, 2, 5]))
    tours = NativeEngine().rollout(tables, world, torch.tensor([1]))
    assert torch.equal(tours[0, 0], tours[0, 1])
    grads = []
    for engine in (NativeEngine(), TorchEngine()):
        local, named = leaves(tables)
        engine.score(local, world, tours, torch.tensor([[1.0, 2.0, 3.0]]))[0].sum().backward()
        grads.append(named)
    assert all(relative(grads[0][k].grad, grads[1][k].grad) <= 1e-4 for k in grads[0])


def test_load_without_demand() -> None:
    """A load vector has no part in a problem without demands: its gradient is zero, as in torch."""
    tables, world = random_case(2, 6)
    local, named = leaves(tables.with_(load=torch.ones(128)))
    tours = NativeEngine().rollout(local, world)
    assert torch.equal(tours, NativeEngine().rollout(tables, world))
    NativeEngine().score(local, world, tours, torch.ones(2, 6))[0].sum().backward()
    assert named["load"].grad is not None
    assert torch.equal(named["load"].grad, torch.zeros(128))


def test_small_instances() -> None:
    """One or two nodes leave nothing to choose: log p is 0 and gradients vanish."""
    for n in (1, 2):
        tables, world = random_case(2, n)
        local, named = leaves(tables)
        tours = NativeEngine().rollout(tables, world)
        total, log_prob = NativeEngine().score(local, world, tours, torch.ones(2, n))
        assert log_prob.abs().max() == 0
        total.sum().backward()
        assert all(leaf.grad is not None and leaf.grad.abs().max() == 0 for leaf in named.values())


def test_bad_input_is_refused() -> None:
    """Tours that are not tours, starts that are no nodes and demands no vehicle carries raise; nothing crashes."""
    engine = NativeEngine()
    tables, world = random_case(2, 8)
    tours = engine.rollout(tables, world)
    for wrong in (tours.clone().fill_(3), tours - 1, tours * 1000, tours.flip(1)):
        with pytest.raises(ValueError, match="tour"):
            engine.score(tables, world, wrong, torch.ones(2, 8))
    with pytest.raises(ValueError, match="start"):
        engine.rollout(tables, World(torch.tensor([8])))
    tables, world = random_case(2, 8, depot=True)
    assert world.demand is not None
    with pytest.raises(DataError, match="cannot finish"):
        engine.rollout(tables, World(world.starts, world.demand + 1))


def test_training_memory() -> None:
    """A training step on 64 instances of TSP100 peaks below 1.5 GB of resident memory, Python and torch included."""
    code = (
        "import resource, torch\n"
        "from cnf_cli import plugins\n"
        "from cnf_cli.engine import get_engine\n"
        "from cnf_cli.policies.pomo import Params, Policy\n"
        "from cnf_cli.policies.run import reinforce_loss\n"
        "module = plugins.load('problems', 'tsp')\n"
        "problem = module.Problem(module.Params(n=100))\n"
        "policy = Policy(Params(), problem)\n"
        "inst = problem.sample(64, rng=torch.Generator().manual_seed(0))\n"
        "reinforce_loss(policy, problem, inst, get_engine('native'), torch.arange(64))[0].backward()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 1.5e9


def test_python_runs_meanwhile() -> None:
    """Another Python thread keeps counting while a rollout of about a second is under way."""
    tables, world = random_case(24, 100)
    ticks, stop = [], threading.Event()

    def count() -> None:
        while not stop.wait(0.005):
            ticks.append(time.perf_counter())

    other = threading.Thread(target=count)
    other.start()
    begin = time.perf_counter()
    NativeEngine(threads=1).rollout(tables, world)
    end = time.perf_counter()
    stop.set()
    other.join()
    during = [t for t in ticks if begin < t < end]
    assert len(during) >= 3


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_interrupt_ends_a_rollout() -> None:
    """Ctrl-C during a rollout that would take minutes raises KeyboardInterrupt in the middle of it."""
    code = (
        "import signal, torch\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started to ignore it\n"
        "from tests.unit.native_kit import random_case\n"
        "from cnf_cli.engine.native import NativeEngine\n"
        "tables, world = random_case(2, 1500, d=64)\n"
        "print('go', flush=True)\n"
        "try:\n"
        "    NativeEngine(threads=1).rollout(tables, world)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "go\n"
    time.sleep(0.7)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "stopped\n"  # nothing would be printed by a rollout that went on to its end
    assert child.wait(60) == 0
