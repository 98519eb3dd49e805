"""Where the native engine's time goes: share of the machine's matmul peak, growth with n and with threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers import problem_of
from cnf_cli.engine import get_engine
from cnf_cli.policies import matnet
from cnf_cli.policies.pomo import Params, Policy

D, LAYERS, FEED_FORWARD = 128, 6, 512


def best(work: Callable[[], object], runs: int = 3) -> float:
    """Seconds of the fastest of a few runs; the first may warm up."""
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def matmul_peak() -> float:
    """Floating-point operations per second of a large float32 matrix product."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best(lambda: a @ b, 7)


def operations(n: int, rollouts: int, steps: int, keys: float) -> dict[str, float]:
    """Useful multiply-adds times two of each part, per instance; `keys` is the mean number of open nodes of a step."""
    layer = 4 * n * D * D + 2 * n * D * FEED_FORWARD + 2 * n * n * D
    encode = 2.0 * (LAYERS * layer + 5 * n * D * D)
    step = 2.0 * rollouts * steps * keys * D
    # A step reads values and pointers once; its gradient does so again and adds two outer and one inner product.
    return {"encode": encode, "encode_backward": 2 * encode, "rollout": 2 * step, "score": 6 * step}


def parts_of(kind: str, n: int, batch: int, runs: int = 3) -> dict[str, Any]:
    """Seconds per instance of each part of a training step, and its operations."""
    problem, engine = problem_of(kind, n), get_engine("native")
    policy = Policy(Params(), problem)
    inst, seeds = problem.sample(batch, rng=torch.Generator().manual_seed(0)), torch.arange(batch)
    tables, world = policy.encode(inst, engine=engine), problem.world(inst)
    tours = engine.rollout(tables, world, seeds)
    weight = torch.ones(tours.shape[:2])
    total = engine.score(tables, world, tours, weight)[0].sum()
    seconds = {
        "encode": best(lambda: policy.encode(inst, engine=engine), runs),
        "rollout": best(lambda: engine.rollout(tables, world, seeds), runs),
        "cost": best(lambda: problem.cost(inst, tours), runs),
        "score": best(lambda: engine.score(tables, world, tours, weight), runs),
        "encode_backward": best(lambda: total.backward(retain_graph=True), runs),
    }
    steps = float((tours[..., 1:] != tours[..., :-1]).sum(-1).float().mean())
    work = operations(inst.nodes, tours.shape[1], int(steps), n / 2)
    return {name: {"seconds": s / batch, "operations": work.get(name, 0.0)} for name, s in seconds.items()}


MATNETS = {
    "the paper's": matnet.Params(),
    "recipes/atsp20.toml's": matnet.Params(width=64, layers=3, heads=8, feed_forward=256),
}


def matnet_encoding(params: matnet.Params, n: int, batch: int) -> dict[str, float]:
    """Seconds per instance of MatNet's encoder and its gradient, with and without the kernel for its attention."""
    problem = problem_of("atsp", n)
    policy = matnet.Policy(params, problem)
    inst = problem.sample(batch, rng=torch.Generator().manual_seed(0))

    def both_ways(name: str) -> Callable[[], None]:
        engine = get_engine(name)
        return lambda: sum(table.sum() for _, table in policy.encode(inst, engine=engine).tensors()).backward()  # type: ignore[union-attr]

    return {name: best(both_ways(name)) / batch for name in ("native", "torch")}


def measure_parts(quick: bool, say: Any) -> dict[str, Any]:
    """Prints and returns the shares of the peak, the growth with n and with threads, and MatNet's encoder."""
    threads = torch.get_num_threads()
    peak = matmul_peak()
    say(f"\nmatmul peak {peak / 1e9:.0f} GFLOP/s on {threads} threads; parts of a training step:")
    shares = {}
    for kind in ("tsp", "cvrp"):
        parts = parts_of(kind, 100, 32)
        whole = sum(part["seconds"] for part in parts.values())
        shares[kind] = {}
        for name, part in parts.items():
            share = part["operations"] / part["seconds"] / peak
            shares[kind][name] = {**part, "share_of_time": part["seconds"] / whole, "share_of_peak": share}
            of_peak = f"{share:5.0%} of peak" if share else ""
            each, of_time = part["seconds"] * 1e3, part["seconds"] / whole
            say(f"  {kind}100 {name:<16} {each:7.2f} ms/instance {of_time:5.0%} of time {of_peak}")
    say("MatNet's encoder and its gradient (ATSP20, ms per instance: native, torch):")
    encodings = {name: matnet_encoding(params, 20, 16 if quick else 64) for name, params in MATNETS.items()}
    for name, found in encodings.items():
        ratio = found["torch"] / found["native"]
        say(f"  {name:<22} {found['native'] * 1e3:9.2f} {found['torch'] * 1e3:9.2f} {ratio:6.1f}x")
    say("growth with n (TSP, ms per instance: encode, rollout, score):")
    growth = []
    for n, batch in ((20, 128), (50, 64), (100, 16), (200, 4), (500, 2)):
        parts = parts_of("tsp", n, batch, 1 if quick and n > 200 else 3)
        row = {"n": n, **{name: part["seconds"] for name, part in parts.items()}}
        growth.append(row)
        say(f"  n={n:<4}" + " ".join(f"{row[k] * 1e3:9.2f}" for k in ("encode", "rollout", "score")))
    say("growth with threads (TSP100, instances per second: encode, rollout, score):")
    rows = []
    for count in sorted({1, threads} | {2**k for k in range(1, 7) if 2**k < threads}):
        torch.set_num_threads(count)
        parts = parts_of("tsp", 100, 16)
        rows.append({"threads": count, **{name: 1 / part["seconds"] for name, part in parts.items()}})
        say(f"  {count:2d} threads " + " ".join(f"{rows[-1][k]:9.1f}" for k in ("encode", "rollout", "score")))
    torch.set_num_threads(threads)
    return {"matmul_flops": peak, "parts": shares, "matnet": encodings, "growth_n": growth, "growth_threads": rows}
