"""Rollouts and training steps: native engine, torch engine, step-by-step autograd and RL4CO, side by side.

    python -m benchmarks.engine [--quick] [--json] [--only train-tsp20,greedy_x8-tsp100] [--batch 64]

Each engine lives in a process of its own; they take turns on the same instances, so a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENGINES = ("native", "torch", "stepwise", "rl4co")
GRID = [(work, problem, n) for work in ("train", "greedy_x8") for problem in ("tsp", "cvrp") for n in (20, 50, 100)]
ROOT = Path(__file__).resolve().parent.parent


def batch_of(engine: str, work: str, n: int, quick: bool) -> int:
    """64, or less where a peer would need many gigabytes or minutes."""
    if engine == "native":
        return 64
    if quick:
        return {"train": {20: 64, 50: 32, 100: 8}, "greedy_x8": {20: 64, 50: 16, 100: 8}}[work][n]
    if work == "greedy_x8":
        return 64 if n == 20 else 16
    return 64 if n < 100 or engine == "torch" or _memory_gb() > 16 else 16


def _memory_gb() -> float:
    try:
        return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 2**20
    except (OSError, IndexError):
        return 0.0


class Peer:
    """An engine in its own process, or the reason why there is none."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        if engine != "native":
            env["GOMP_SPINCOUNT"] = "300000"  # the default, which suits them: they call many small operations
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", engine],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.missing = self._answer().get("skip", "")

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"skip": "its process died", "error": "its process died"}

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """One run's seconds and peak memory, or an error."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process died"}
        return self._answer()

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def compare(
    peers: list[Peer], grid: list[tuple[str, str, int]], quick: bool, batch: int, say: Any
) -> list[dict[str, Any]]:
    """A row per engine and kind of work: the median of a few runs, engines taking turns; batch 0 is `batch_of`."""
    rows = []
    for work, problem, n in grid:
        orders = {
            peer: {"work": work, "problem": problem, "n": n, "batch": batch or batch_of(peer.engine, work, n, quick)}
            for peer in peers
        }
        runs: dict[Peer, list[dict[str, Any]]] = {peer: [] for peer in peers}
        for _ in range(2 if quick else 5):
            for peer, order in orders.items():
                if not (runs[peer] and "error" in runs[peer][-1]):
                    runs[peer].append(peer.measure(order))
        for peer, order in orders.items():
            good = [run for run in runs[peer] if "error" not in run]
            if len(good) < len(runs[peer]):
                say(f"{peer.engine} failed on {order}: {runs[peer][-1]['error']}")
                continue
            seconds = statistics.median(run["seconds"] for run in good)
            rows.append(
                {
                    **order,
                    "engine": peer.engine,
                    "instances_per_second": order["batch"] / seconds,
                    "instances_per_cpu_second": order["batch"] / statistics.median(run["cpu_seconds"] for run in good),
                    "peak_mb": max(run["peak_mb"] for run in good),
                    "cost": good[-1]["cost"],
                }
            )
        say(line_of(rows, work, problem, n))
    return rows


def line_of(rows: list[dict[str, Any]], work: str, problem: str, n: int) -> str:
    """One line of the table: instances per second of each engine and the native engine's ratio to the others."""
    here = {r["engine"]: r for r in rows if (r["work"], r["problem"], r["n"]) == (work, problem, n)}
    ours = here.get("native")
    cells = [f"{work:<10} {problem + str(n):<8}"]
    for engine in ENGINES:
        row = here.get(engine)
        if row is None:
            cells.append(f"{'-':>26}")
            continue
        ratio = f"{ours['instances_per_second'] / row['instances_per_second']:6.1f}x" if ours else ""
        cells.append(f"{row['instances_per_second']:9.1f}/s {ratio} {row['peak_mb']:6.0f}MB")
    return " ".join(cells)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    from cnf_cli.engine.native import instruction_sets

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        name = Path("/proc/cpuinfo").read_text().split("model name")[1].split(":")[1].split("\n")[0].strip()
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_sets": instruction_sets(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def main() -> None:
    """Measure, talk on stderr, print the table or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs and smaller batches: under six minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which engines, separated by commas")
    parser.add_argument("--only", default="", help="some rows, without the parts: train-tsp20,greedy_x8-cvrp100")
    parser.add_argument("--batch", type=int, default=0, help="instances at a time, the same for every engine")
    args = parser.parse_args()
    grid = [row for row in GRID if not args.only or "{}-{}{}".format(*row) in args.only.split(",")]
    if not grid:
        parser.error(f"no such row: {args.only}; there are {', '.join('{}-{}{}'.format(*row) for row in GRID)}")

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    begin, about = time.perf_counter(), machine()
    say(" ".join(f"{k}={v}" for k, v in about.items()))
    peers, skipped = [], {}
    for engine in args.engines.split(","):
        peer = Peer(engine)
        if peer.missing:
            skipped[engine] = peer.missing
            say(f"{engine} skipped: {peer.missing}")
            peer.close()
        else:
            peers.append(peer)
    say(f"{'':<19}" + " ".join(f"{engine:>26}" for engine in ENGINES) + "   (x: how much faster native is)")
    rows = compare(peers, grid, args.quick, args.batch, say)
    for peer in peers:
        peer.close()
    parts: dict[str, Any] = {}
    if not args.only:
        from benchmarks.parts import measure_parts

        parts = measure_parts(args.quick, say)
    say(f"took {time.perf_counter() - begin:.0f} s")
    if args.json:
        print(json.dumps({"machine": about, "rows": rows, "skipped": skipped, **parts}))


if __name__ == "__main__":
    main()
