"""How long a kernel that works on 3,000 nodes takes to hear Ctrl-C: `python -m tests.reliability.kernel_moments 20`."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from cnf_cli.engine.native import NativeEngine
from cnf_cli.search import ils
from cnf_cli.solvers.base import Instance
from tests.reliability.moments import middle_and_last
from tests.unit.native_kit import random_case
from tests.unit.test_engine_layers import batch, stack

NODES = 3000


def works() -> dict[str, Callable[[], object]]:
    """What takes long enough to be interrupted in the middle."""
    engine = NativeEngine(threads=1)
    tables, world = random_case(1, NODES)
    one = type(world)(world.starts[:1])
    tours, weight = engine.rollout(tables, one), torch.ones(1, 1)
    h, layers = batch(1, NODES, 128), stack(128, 8)
    points = Instance("tsp", np.random.default_rng(0).random((NODES, 2)))
    distances = points.distances()
    walk = np.random.default_rng(1).permutation(NODES).tolist()
    return {
        "rollout": lambda: engine.rollout(tables, world),
        "score": lambda: [engine.score(tables, one, tours, weight) for _ in range(1000)],
        "layers": lambda: [engine.through(layers, h) for _ in range(100)],
        "search": lambda: ils._tours(points, distances, walk, 0, 60.0, 1),
    }


def heard(work: Callable[[], object], dice: random.Random) -> float | None:
    """Seconds from Ctrl-C at a random moment to its exception; None where the work was done before."""
    sent = [0.0]

    def send() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(dice.uniform(0.05, 2.0), send)
    timer.start()
    try:
        work()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    timer.cancel()
    return None


def main(times: int) -> None:
    """Prints the median and the longest for each kernel."""
    dice, told = random.Random(1), {}
    for name, work in works().items():
        found: list[float] = []
        while len(found) < times:
            took = heard(work, dice)
            found += [] if took is None else [took]
        told[name] = middle_and_last(found)
    print(json.dumps({"times": times, "median_and_longest_seconds": told}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
