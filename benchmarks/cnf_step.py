"""Time one CNF step on TSP50 (M = 3, T = 1, B = 64) beside the plain, unshared yardstick.

    python -m benchmarks.cnf_step [--quick] [--json]

Every row is a fresh process that takes one small step to warm up, then the timed ones; peak memory is that process's.
Both sides start from the same weights and see instances of the same size; the bars are a sixth of the time and 2.5 GB.
The ratio is of wall times; CPU seconds stand beside them because a busy machine spoils the former more.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BARS = {"ratio": 6.0, "peak_mb": 2500.0}


def ours(n: int, width: int, routing: str, mode: str, engine: str) -> Callable[[int], Any]:
    """A function that takes one step of `cnf_cli.defences.cnf` with that many clean instances."""
    import torch
    from torch.optim import Adam

    from cnf_cli.attacks import attribute
    from cnf_cli.defences import cnf
    from cnf_cli.defences.base import Clock
    from cnf_cli.engine import get_engine

    problem, models = _start(n, width)
    chosen = get_engine(engine, "cpu")
    attack = attribute.Attack(attribute.Params(), problem, chosen)
    keys: dict[str, Any] = {"mode": mode, "routing": routing, "batch_size": 64}
    if mode == "tours":
        keys |= {"mode": "efficient", "reuse_tours": True}
    defence = cnf.Defence(cnf.Params(**keys), problem=problem, engine=chosen, attack=attack)
    optimizers = [Adam(m.parameters(), lr=1e-4, weight_decay=1e-6, fused=True) for m in models]
    rng = torch.Generator().manual_seed(1)
    defence.setup(models, "cpu", rng)

    def step(batch: int) -> Any:
        clean = problem.sample(batch, rng=rng)
        return defence.step(models, optimizers, clean, clock=Clock(0, 0, 0.0), rng=rng)

    return step


def plain(n: int, width: int, routing: str) -> Callable[[int], Any]:
    """A function that takes one step of the yardstick with that many clean instances."""
    import torch

    from benchmarks.plain_cnf import PlainCnf, copy_policy

    _, models = _start(n, width)
    yardstick = PlainCnf([copy_policy(m) for m in models], routing)
    torch.manual_seed(1)
    return lambda batch: yardstick.step(torch.rand(batch, n, 2), float(torch.randint(1, 101, ())), 64)


def _start(n: int, width: int) -> tuple[Any, list[Any]]:
    import torch

    from cnf_cli.policies import pomo
    from cnf_cli.problems import tsp

    problem = tsp.Problem(tsp.Params(n=n))
    seeds = [torch.Generator().manual_seed(j) for j in range(3)]
    return problem, [pomo.Policy(pomo.Params(width=width), problem).init(rng) for rng in seeds]


def child(args: argparse.Namespace) -> dict[str, Any]:
    """Measured in this process: seconds of each timed step and the peak of resident memory."""
    if args.child == "plain":
        step = plain(args.n, args.width, args.routing)
    else:
        step = ours(args.n, args.width, args.routing, args.child, args.engine)
    step(4)
    seconds, cpu = [], []
    for _ in range(args.steps):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        step(args.batch)
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return {
        "seconds": statistics.median(seconds),
        "cpu_seconds": statistics.median(cpu),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit),
    }


def run(args: argparse.Namespace, who: str, routing: str, steps: int) -> dict[str, Any]:
    """One row, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.cnf_step", "--child", who, "--routing", routing]
    command += ["--n", str(args.n), "--batch", str(args.batch), "--width", str(args.width), "--steps", str(steps)]
    command += ["--engine", args.engine]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{who} {routing} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return {"work": "cnf_step", "who": who, "routing": routing, "problem": "tsp", "n": args.n, "batch": args.batch} | {
        "seconds": round(found["seconds"], 3),
        "cpu_seconds": round(found["cpu_seconds"], 3),
        "peak_mb": found["peak_mb"],
        "steps": steps,
    }


def table(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows; ours before and after the yardstick, so that a drifting machine shows."""
    rows = []
    for routing in ("topk-with-best",) if args.quick else ("topk-with-best", "m-topk"):
        few, many = (1, 3) if args.quick else (2, 5)
        first = run(args, "efficient", routing, many)
        yardstick = run(args, "plain", routing, few)
        rows += [first, yardstick]
        again = [run(args, who, routing, many) for who in ("efficient", *(() if args.quick else ("released", "tours")))]
        rows += again
        for row in (first, *again):
            row["ratio"] = round(yardstick["seconds"] / row["seconds"], 2)
    return rows


def main() -> None:
    """Print the table, or one JSON object with `rows` and `ok`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one routing, one yardstick step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--engine", default="auto", choices=("auto", "native", "torch"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--routing", default="topk-with-best", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args)))
        return
    rows = table(args)
    mine = [row for row in rows if row["who"] == "efficient"]
    ok = all(row["ratio"] >= BARS["ratio"] and row["peak_mb"] <= BARS["peak_mb"] for row in mine)
    if args.json:
        print(json.dumps({"rows": rows, "bars": BARS, "ok": ok}))
        return
    print(f"one CNF step, TSP{args.n}, M=3, T=1, B={args.batch}, width {args.width}")
    print(f"{'who':<10} {'routing':<15} {'s/step':>8} {'CPU s':>8} {'ratio':>7} {'peak MB':>8}")
    for row in rows:
        numbers = f"{row['seconds']:>8} {row['cpu_seconds']:>8} {row.get('ratio', 1.0):>7} {row['peak_mb']:>8}"
        print(f"{row['who']:<10} {row['routing']:<15} {numbers}")
    print(f"bars: ratio >= {BARS['ratio']:g}, peak <= {BARS['peak_mb']:g} MB: {'met' if ok else 'MISSED'}")


if __name__ == "__main__":
    main()
