"""Many processes at random on one store: train, evaluate, import, gc, verify, kill -9, full disk, flipped bytes.

    python -m tests.reliability.chaos --seconds 600 --seed 1

Afterwards every artifact equals one made alone, `verify --deep` is clean and nothing temporary is left.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cnf_cli.store import Store
from tests.conftest import ROOT
from tests.helpers import environment
from tests.reliability.moments import SETS, left_in
from tests.reliability.test_orphans import marked

SLOTS = 4
ACCEPTED = {0, 1, 2, 3, 75, -signal.SIGKILL}
"""Done; a check failed; a file could not be read or written; damage was found; another was at work; killed."""
UPKEEP = (["verify"], ["verify", "--deep"], ["gc", "--yes"], ["ls"], ["du"])


@dataclass
class Tally:
    """What was done, and what went wrong."""

    done: collections.Counter[str] = field(default_factory=collections.Counter)
    codes: collections.Counter[int] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)
    artifacts: int = 0


class Ground:
    """One store in its folder, and the commands that fill it."""

    def __init__(self, root: Path, name: str, makes: int, only: Collection[str] = ()) -> None:
        self.root, self.store, self.temp = root, root / name, root / f"{name}-temp"
        self.temp.mkdir()
        self.mark = f"TMPDIR={self.temp}"
        self.makes = [args for k in range(makes) for args in self._makes(k) if not only or args[0] in only]

    def _makes(self, k: int) -> list[list[str]]:
        """Commands whose results do not depend on what else is in the store."""
        stops = self.root / f"stops{k}.csv"
        stops.write_text("x,y\n" + "".join(f"{i * 0.37 % 1:.6f},{i * 0.73 % 1:.6f}\n" for i in range(1, 12 + k)))
        drawn, beside = f"data/tsp{9 + k}-uniform-4321", ["--solver", "nearest", "--jobs", "1"]
        trains = ["--set", f"pretrain.seed={k}", "--set", "pretrain.instances=192"]
        trains += ["--set", "pretrain.epoch_instances=32"]
        return [
            ["import", str(stops)],
            ["data", "generate", "tsp", "--n", str(9 + k), "--count", "6"],
            ["label", drawn, "--solver", "nearest", "--jobs", "1"],
            ["selftest", "--numbers", str(60 + k), "--pause", "0.005"],
            ["pretrain", "tsp", "--n", "8", *SETS, *trains, "--as", f"chaos/p{k}"],
            ["evaluate", "--data", drawn, "--with", f"chaos/p{k}", "--reference", "descent", *beside],
        ]

    def begin(self, args: list[str], cap: int | None = None) -> subprocess.Popen[str]:
        """The command as a process; with a cap, a write beyond so many bytes fails as on a full disk."""
        env = {**environment(self.store), "TMPDIR": str(self.temp)}

        def limited() -> None:
            if cap is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (cap, cap))

        command = [sys.executable, "-m", "cnf_cli", *args, "-q"]
        files = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=env, cwd=ROOT, text=True, preexec_fn=limited, **files)  # type: ignore[call-overload]

    def all_made(self) -> list[str]:
        """Every command has run, one after the other; what was said by those that failed."""
        failed = []
        for args in self.makes:
            process = self.begin(args)
            _, talk = process.communicate()
            if process.returncode:
                failed.append(f"{' '.join(args)[:200]} -> {process.returncode}: {talk[-800:]}")
        return failed

    def outputs(self) -> dict[str, dict[str, str]]:
        """The content of every artifact, by key."""
        return {made.key: {n: out.sha256 for n, out in made.outputs.items()} for made in Store(self.store).manifests()}


def flip(ground: Ground, rng: random.Random) -> bool:
    """One byte of one file of the store is another; its format, which only says how to read it, stays."""
    files = [path for top in ("objects", "stages", "refs", "work") for path in (ground.store / top).rglob("*")]
    files = [path for path in files if path.is_file() and not path.is_symlink() and path.suffix != ".lock"]
    if not files:
        return False
    try:
        path = rng.choice(files)
        path.chmod(0o644)
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << rng.randrange(8))]))
    except (OSError, ValueError, IndexError):  # gone, or empty
        return False
    return True


def storm(ground: Ground, rng: random.Random, tally: Tally, seconds: float) -> None:
    """Random commands, some of them killed or short of space, and flipped bytes between them."""
    running: list[tuple[list[str], subprocess.Popen[str], float]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or running:
        if time.monotonic() < until and len(running) < SLOTS:
            args = rng.choice(UPKEEP) if rng.random() < 0.2 else rng.choice(ground.makes)
            cap = int(10 ** rng.uniform(2, 5)) if rng.random() < 0.1 else None
            ends = time.monotonic() + (rng.uniform(0.1, 8) if rng.random() < 0.3 else 300)
            running.append((args, ground.begin(args, cap), ends))
            tally.done[args[0] + (" short of space" if cap else "")] += 1
        if rng.random() < 0.02:
            tally.done["flip"] += flip(ground, rng)
        for entry in list(running):
            args, process, ends = entry
            if process.poll() is None and time.monotonic() > ends:
                process.kill()
                tally.done["kill -9"] += 1
            if process.poll() is not None:
                running.remove(entry)
                assert process.stderr is not None
                judge(args, process.returncode, process.stderr.read(), tally)
                process.stderr.close()
        time.sleep(0.05)


def judge(args: list[str], code: int, talk: str, tally: Tally) -> None:
    """A command may fail, but with a word and the right code."""
    tally.codes[code] += 1
    if code not in ACCEPTED or "Traceback" in talk or "bug in cnf" in talk:
        tally.faults.append(f"{' '.join(args)[:200]} -> {code}: {talk[-800:]}")


def settle(ground: Ground, tally: Tally) -> None:
    """The damage is looked for, every command is run once more, and old leftovers are collected."""
    ground.begin(["verify", "--deep"]).communicate()
    tally.faults += [f"in the end {text}" for text in ground.all_made()]
    old = time.time() - 30 * 86400
    for path in ground.store.rglob("*"):
        if path.suffix in (".tmp", ".bad"):
            os.utime(path, (old, old), follow_symlinks=False)
    ground.begin(["gc", "--yes"]).communicate()


def leftovers(ground: Ground) -> list[str]:
    """What should not be there any more."""
    until = time.monotonic() + 10
    while marked(ground.mark) and time.monotonic() < until:
        time.sleep(0.05)
    found = [f"process {pid}" for pid in marked(ground.mark)]
    found += left_in(ground.temp)
    found += [str(path) for path in (ground.store / "work").iterdir()]
    return found + [str(path) for path in ground.store.rglob("*") if path.suffix in (".tmp", ".bad")]


def run(seconds: float, seed: int, root: Path, makes: int = 2, only: Collection[str] = ()) -> Tally:
    """The storm, the calm after it, and the comparison with a store in which every command ran alone."""
    rng, tally = random.Random(seed), Tally()
    ground, alone = Ground(root, "store", makes, only), Ground(root, "alone", makes, only)
    with ThreadPoolExecutor(1) as beside:
        apart = beside.submit(alone.all_made)
        storm(ground, rng, tally, seconds)
        tally.faults += [f"alone: {text}" for text in apart.result()]
    settle(ground, tally)
    report = Store(ground.store).verify(deep=True)
    tally.faults += [f"verify: {problem.what} {problem.path}" for problem in report.problems]
    tally.faults += [f"left behind: {what}" for what in leftovers(ground)]
    there, wanted = ground.outputs(), alone.outputs()
    tally.artifacts = len(there)
    tally.faults += [f"missing: {key}" for key in wanted.keys() - there.keys()]
    tally.faults += [f"not as made alone: {key}" for key in there if there[key] != wanted.get(key)]
    return tally


def main() -> int:
    """Prints what was done and seen; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        tally = run(asked.seconds, asked.seed, Path(folder))
    told = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "done": dict(sorted(tally.done.items())),
        "codes": dict(sorted(tally.codes.items())),
        "artifacts": tally.artifacts,
        "faults": tally.faults,
    }
    print(json.dumps(told, indent=1))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
