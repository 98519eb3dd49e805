"""Signals at random moments of seven commands: exit code, time to end, no process and no folder left.

python -m tests.reliability.moments --moments 200 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT
from tests.helpers import environment
from tests.reliability.test_orphans import marked

TINY = "policy.width=16 policy.layers=1 policy.heads=2 policy.feed_forward=16 pretrain.batch_size=16"
TINY += " pretrain.validation_count=0 train.batch_size=16 train.validation_count=0 attack.count=200"
SETS = [word for pair in TINY.split() for word in ("--set", pair)]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass
class Tally:
    """What was seen."""

    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    slow: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Ground:
    """A store with what the commands read, and a place for their temporary files."""

    def __init__(self, root: Path) -> None:
        self.store, self.temp, self.root = root / "store", root / "temp", root
        self.temp.mkdir()
        self.mark = f"CNF_MOMENTS={root}"
        stops = "".join(f"{k * 0.37 % 1:.6f},{k * 0.73 % 1:.6f}\n" for k in range(1, 300_000))
        (root / "stops.csv").write_text("x,y\n" + stops)
        (root / "large.csv").write_text("x,y\n" + "".join(stops.splitlines(keepends=True)[:3000]))
        self.data = self.made("data", "generate", "tsp", "--n", "20", "--count", "400")
        self.policy = self.made("pretrain", "tsp", "--n", "20", *SETS, "--set", "pretrain.instances=32")

    def env(self) -> dict[str, str]:
        return {**environment(self.store), "TMPDIR": str(self.temp), "CNF_MOMENTS": str(self.root)}

    def made(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cnf_cli", *args, "-q"], env=self.env(), cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commands(self, number: int) -> dict[str, list[str]]:
        """Seven commands with work for a few seconds and more; the number keeps them from being hits."""
        seeds, solver = ["--set", f"pretrain.seed={number}"], "tests.unit.faulty_solver"
        hardens = ["--set", f"train.seed={number}", "--set", "train.instances=4000"]
        return {
            "import": ["import", str(self.root / "stops.csv"), "--force"],
            "pretrain": ["pretrain", "tsp", "--n", "20", *SETS, *seeds, "--set", "pretrain.instances=20000"],
            "train-cnf": ["train-cnf", "tsp", "--n", "20", *SETS, *hardens, "--init", self.policy],
            "attack": ["attack", "tsp", "--n", "20", *SETS, "--with", self.policy, "--force"],
            "evaluate": ["evaluate", "--data", self.data, "--with", self.policy, "--reference", "descent", "--force"],
            "solve": ["solve", str(self.root / "large.csv"), "--with", self.policy],
            "label": ["label", self.data, "--solver", solver, "--param", "pause_seconds=0.3", "--force", "--jobs", "2"],
        }

    def left(self, seconds: float = 10.0) -> str:
        """What of the last command is still there, once it had time to go."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not marked(self.mark) and not left_in(self.temp):
                return ""
            time.sleep(0.02)
        return f"processes {marked(self.mark)}, folders {left_in(self.temp)}"


def left_in(temp: Path) -> list[str]:
    """What lies in a folder for temporary files, but for the cache that torch keeps there for each user."""
    return sorted(path.name for path in temp.iterdir() if not path.name.startswith("torchinductor_"))


def listens(pid: int) -> bool:
    """Whether the program itself has begun to answer signals, not only its interpreter."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def interpreters_own(talk: str) -> bool:
    """Whether Python answered Ctrl-C itself, before the first line of the program."""
    return "KeyboardInterrupt" in talk and "cnf_cli/" not in talk


def one(ground: Ground, name: str, args: list[str], rng: random.Random, tally: Tally, span: float) -> bool:
    """One signal at a random moment; False where the command was done before."""
    signum = rng.choice(SIGNALS)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "cnf_cli", *args]
    process = subprocess.Popen(command, env=ground.env(), cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
    # A third of the signals come while the program starts, the others at any time later.
    begun = rng.random() * (1.0 if rng.random() < 0.33 else span)
    time.sleep(begun)
    process.send_signal(signum)
    sent = time.monotonic()
    try:
        _, talk = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        _, talk = process.communicate()
    took = time.monotonic() - sent
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    where = f"{name}: {signum.name} -> {code} after {took:.2f} s"
    if code == 0:
        ground.left()
        return False
    tally.codes[f"{name} {signum.name} {code}"] += 1
    tally.seconds[name].append(took)
    if took > 2:
        tally.slow.append(f"{where}, sent {begun:.1f} s after its start: {talk[-300:]}")
    if not interpreters_own(talk):
        if code != 128 + signum:
            tally.faults.append(f"{where}: wrong code: {talk[-600:]}")
        if re.search(r"Traceback|Exception ignored|bug in cnf", talk):
            tally.faults.append(f"{where}: {talk[-1500:]}")
    left = ground.left()
    if left:
        tally.faults.append(f"{where}: left behind: {left}")
        for pid in marked(ground.mark):
            os.kill(pid, signal.SIGKILL)
    return True


def run(moments: int, seed: int, root: Path, span: float = 9.0, only: Collection[str] = ()) -> Tally:
    """So many signals, the commands in turn, all or only some."""
    rng, tally, ground = random.Random(seed), Tally(), Ground(root)
    done = number = 0
    while done < moments:
        number += 1
        names = [name for name in ground.commands(number) if not only or name in only]
        name = names[number % len(names)]
        done += one(ground, name, ground.commands(number)[name], rng, tally, span)
        print(f"{done} of {moments} moments, {len(tally.faults)} faults", *tally.faults[-1:], file=sys.stderr)
        if number > 3 * moments + 20:
            tally.faults.append(f"only {done} of {number} commands were still at work when their signal came")
            break
    return tally


def middle_and_last(seconds: list[float]) -> tuple[float, float]:
    """The median of some times, and the longest."""
    ordered = sorted(seconds)
    return round(ordered[len(ordered) // 2], 3), round(ordered[-1], 3)


def main() -> int:
    """Prints what was seen; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moments-") as folder:
        tally = run(asked.moments, asked.seed, Path(folder))
    told = {
        "moments": sum(map(len, tally.seconds.values())),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "median_and_slowest_seconds": {name: middle_and_last(took) for name, took in sorted(tally.seconds.items())},
        "over_2_seconds": tally.slow,
        "codes": dict(sorted(tally.codes.items())),
        "faults": tally.faults,
    }
    print(json.dumps(told, indent=1))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
