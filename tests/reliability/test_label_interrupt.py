"""Ctrl-C while solvers work: exit at once, nothing lost, nothing left running (promise 17)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.helpers import cnf, cnf_json, environment


def test_labelling_stops_politely_and_goes_on(tmp_path: Path) -> None:
    """In the middle of slow instances: exit code 130, answers kept, the rerun asks for the rest and nothing else."""
    store = tmp_path / "store"
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "12", "-q", store=store).stdout.strip()
    args = ["label", data, "--solver", "tests.unit.faulty_solver", "--param", "pause_seconds=0.5", "--jobs", "1"]
    command = [sys.executable, "-m", "cnf_cli", *args]
    process = subprocess.Popen(command, env=environment(store), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(store.glob("work/*/answers-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk
    assert "run the same command again to continue" in talk
    kept = [line for line in next(store.glob("work/*/answers-*.jsonl")).read_text().splitlines() if line]
    assert 1 <= len(kept) < 12
    done = cnf_json(*args, store=store)
    assert done["checks"]["solved"] == {"tests.unit.faulty_solver": 12}
    # How long each took is told of the one time it was asked: those kept were not asked again.
    told = cnf_json("show", done["id"], store=store)["provenance"]["seconds_each"]
    assert [told[one["i"]] for one in map(json.loads, kept)] == [round(json.loads(one)["seconds"], 4) for one in kept]
    assert not list(store.glob("work/*/answers-*.jsonl"))
