"""A process that holds one engine and measures what it is told on standard input, one JSON line per order."""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def peak_mb() -> float:
    """The most memory this process has had resident since `forget_peak`, in MB."""
    try:
        text = Path("/proc/self/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def forget_peak() -> None:
    """Give freed memory back and start counting the peak anew, where the system can."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return


class Bench:
    """The engine's work, kept between orders; before the first of its kind a quarter of it warms up."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.key: tuple[Any, ...] = ()
        self.work: Any = None

    def measure(self, order: dict[str, Any]) -> dict[str, float]:
        """Seconds of one run, on the clock and of processor time, its peak memory and the cost it reached."""
        from benchmarks.peers import make

        key = tuple(order[k] for k in ("work", "problem", "n", "batch"))
        if key != self.key:
            self.work = None
            forget_peak()
            make(self.engine, *key[:-1], max(1, order["batch"] // 4))()
            self.work, self.key = make(self.engine, *key), key
        begin, cpu = time.perf_counter(), time.process_time()
        cost = self.work()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return {"seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak_mb(), "cost": cost}


def main() -> None:
    """Answer orders until the input ends."""
    bench = Bench(sys.argv[1])
    answers = sys.stdout
    sys.stdout = sys.stderr  # peers print
    try:
        if sys.argv[1] == "rl4co":
            import rl4co  # noqa: F401
        if sys.argv[1] == "native":
            from cnf_cli.engine import get_engine

            get_engine("native")
    except Exception as error:
        print(json.dumps({"skip": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = bench.measure(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
