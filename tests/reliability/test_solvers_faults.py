"""A solver that crashes, hangs, lies or errs costs one instance: the run completes and names it (promises 19, 20)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import MissingDependency, RecipeError
from cnf_cli.solvers.base import Answer, Failure, Instance, SolverError
from cnf_cli.solvers.pool import solve_all
from cnf_cli.solvers.run import solve_one
from tests.conftest import ROOT

BAD = """
import ctypes, os, signal, time
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found

class Params(Section):
    pass

class Solver:
    problems, licence, package, exact, least = ("tsp",), "test", "test", False, 0
    def available(self):
        return "1"
    def solve(self, instance, params):
        n = instance.nodes
        what = round(float(instance.xy[0, 0]))  # the instance says what goes wrong
        good = list(range(n))
        print("noise on stdout" * 1000, flush=True)
        if what == 1:
            ctypes.string_at(0)
        if what == 2:
            time.sleep(1000)
        if what == 3:
            return Found(good, claimed=instance.cost(good) * 0.9)
        if what == 4:
            return Found([*good[:-1], 0])
        if what == 5:
            raise RuntimeError("broken inside")
        if what == 6:
            os._exit(3)
        if what == 7:
            return Found("not a tour")
        if what == 8:
            os.kill(os.getpid(), signal.SIGABRT)
        return Found(good, claimed=instance.cost(good))
"""
SAID = {1: "SIGSEGV", 2: "stopped after", 3: "says its tour costs", 4: "infeasible", 5: "RuntimeError: broken inside"}
SAID |= {6: "exit code 3", 7: "infeasible", 8: "SIGABRT"}


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a solver that does what the instance's first coordinate says."""
    package = tmp_path / "bad_solvers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "moody.py").write_text(BAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "bad_solvers.moody"


def instance(what: int, n: int = 12) -> Instance:
    xy = np.random.default_rng(what).random((n, 2))
    xy[0, 0] = what
    return Instance("tsp", xy=xy)


def children() -> set[int]:
    """Processes this one started that still run or wait."""
    return {int(c) for c in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture
def before() -> set[int]:
    """What earlier tests keep running, such as the server that starts `cnf` for them."""
    return children()


def test_every_fault_costs_one_instance(bad: str, before: set[int]) -> None:
    """Among good instances, each fault is retried with the fallback and noted with its cause; nothing is lost."""
    order = [0, 1, 0, 2, 3, 0, 4, 5, 0, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]
    given = [instance(what) for what in order]
    heard: dict[int, object] = {}
    before = children()
    out = solve_all(given, bad, jobs=2, timeout_seconds=1.5, fallback=("descent",), on_done=heard.__setitem__)
    assert len(out) == len(order)
    assert heard == dict(enumerate(out))
    for what, case, answer in zip(order, given, out, strict=True):
        assert isinstance(answer, Answer)
        assert answer.cost == case.cost(answer.tour)
        assert answer.solver == ("descent" if what else bad)
        assert SAID.get(what, "") in answer.note
        assert ("fallback to descent" in answer.note) == bool(what)
    assert children() <= before


def test_without_a_working_fallback_the_failure_is_listed(bad: str) -> None:
    """When every solver fails the instance is a Failure with all the reasons, and its neighbours are solved."""
    out = solve_all([instance(0), instance(1), instance(5), instance(0)], bad, jobs=1, fallback=(bad,))
    assert [type(o) for o in out] == [Answer, Failure, Failure, Answer]
    assert out[1].note.count("SIGSEGV") == 2
    assert out[2].note.count("broken inside") == 2


def test_a_bad_instance_is_not_tried_again(bad: str) -> None:
    """An instance that is itself wrong fails once, whatever the fallbacks."""
    wrong = Instance("tsp", xy=np.array([[0.0, 0.0], [np.nan, 1.0], [1.0, 1.0]]))
    good, failed = solve_all([instance(0), wrong], bad, jobs=1, fallback=("descent",))
    assert isinstance(good, Answer)
    assert isinstance(failed, Failure)
    assert "not finite" in failed.note


def test_an_error_in_the_callers_report_ends_the_run_and_its_workers(bad: str, before: set[int]) -> None:
    """What `on_done` raises comes through at once, and no worker is left."""

    def stop(index: int, outcome: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_all([instance(0), instance(2), instance(2)], bad, jobs=2, timeout_seconds=100, on_done=stop)
    assert children() <= before


def test_ctrl_c_stops_promptly_and_kills_the_workers(tmp_path: Path, bad: str) -> None:
    """SIGINT ends a run whose solvers would hang for minutes, with no process left behind."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import signal, sys, numpy as np
        from cnf_cli.solvers.base import Instance
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started to ignore it
        from cnf_cli.solvers.pool import solve_all
        xy = np.random.default_rng(0).random((6, 2)); xy[0, 0] = 2
        ok = xy.copy(); ok[0, 0] = 0
        say = lambda *a: print("working", flush=True)
        # No main guard: workers must not run this file again.
        solve_all([Instance("tsp", xy=x) for x in (ok, xy, xy)], "{bad}", jobs=2, timeout_seconds=500, on_done=say)
        """)
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"working\n"
    time.sleep(1.0)
    workers = {int(c) for c in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}
    assert workers
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    process.stdout.close()
    assert not [w for w in workers if Path(f"/proc/{w}").exists()]


def test_unknown_names_and_settings_are_refused_before_work_starts() -> None:
    """A solver that does not exist, does not fit the problem or does not know a setting is a usage error."""
    with pytest.raises(RecipeError, match="not one of the solvers"):
        solve_all([instance(0)], "fast_tps")
    with pytest.raises(RecipeError, match="does not solve tsp"):
        solve_all([instance(0)], "hgs")
    with pytest.raises(ValueError, match="extra"):
        solve_all([instance(0)], "descent", {"secnods": 1})
    with pytest.raises(RecipeError, match="cannot be imported"):
        solve_all([instance(0)], "no.such.module")


def fake(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name, first on PATH."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys, time, pathlib\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_concorde_program_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets coordinates times 1e7 in a private folder and a seed; its tour comes back as proved."""
    seen = tmp_path / "seen"
    body = f"""
    text = open(sys.argv[-1]).read()
    pathlib.Path({str(seen)!r}).write_text(os.getcwd() + " " + " ".join(sys.argv[1:]) + " " + text)
    n = int(text.split("DIMENSION:")[1].split()[0])
    open("tour.sol", "w").write(str(n) + " " + " ".join(map(str, range(n))))
    at = [complex(*map(float, line.split()[1:])) for line in text.split("SECTION")[1].split(chr(10))[1:n + 1]]
    whole = sum(int(abs(at[i] - at[i - 1]) + 0.5) for i in range(n))
    print("Optimal Solution: %.2f" % whole + chr(10) + "Number of bbnodes: 1")
    """
    fake(tmp_path, "concorde", body, monkeypatch)
    xy = np.random.default_rng(0).random((14, 2))
    answer = solve_one(Instance("tsp", xy=xy), "concorde")
    assert answer.proved
    assert answer.tour == tuple(range(14))
    words = seen.read_text().split()
    assert words[0] != os.getcwd()
    assert not Path(words[0]).exists()
    assert words[1:3] == ["-s", "1234"]
    assert str(int(1e7 * xy[0, 0] + 0.5)) in words


def test_lkh_program_answers_for_cvrp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depot copies in LKH's tour become zeros, and the walk is turned to start at the depot."""
    body = """
    assert "MAX_TRIALS = 10000" in open("settings.par").read()
    tour = [5, 6, 7, 1, 8, 9, 10, 11, 12, 13, 2, 3, 4]
    open("tour.txt", "w").write("NAME: x\\nTOUR_SECTION\\n" + "\\n".join(map(str, tour)) + "\\n-1\\nEOF\\n")
    """
    fake(tmp_path, "LKH", body, monkeypatch)
    rng = np.random.default_rng(0)
    case = Instance("cvrp", rng.random((12, 2)), demand=np.r_[0.0, [1.0] * 11], capacity=6.0)
    answer = solve_one(case, "lkh")
    assert answer.tour == (0, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6)
    assert not answer.proved


CLOSING = "print('Optimal Solution: 1.00')"
ANY_TOUR = "open('tour.sol', 'w').write('14 ' + ' '.join(map(str, range(14))))"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("time.sleep(100)", "did not finish in 1 s"),
        ("os.abort()", "SIGABRT"),
        ("pass", "wrote no answer"),
        ("os.symlink('/etc/passwd', 'tour.sol')", "wrote no answer"),
        (f"open('tour.sol', 'w').write('14 ' + 'x ' * 14); {CLOSING}", "not a list of nodes"),
        (f"open('tour.sol', 'w').write('3 0 1 2'); {CLOSING}", "a tour of 3 nodes for 14"),
        (f"open('tour.sol', 'w').write('14 ' + '0 ' * 14); {CLOSING}", "infeasible"),
        (f"while os.system('head -c 99999999 /dev/zero > tour.sol') == 0: pass\n{CLOSING}", "64 MB or more"),
        (f"{ANY_TOUR}; {CLOSING}; sys.exit(1)", "failed: exit code 1"),
        (ANY_TOUR, "nothing is proved"),
        (f"{ANY_TOUR}; print('Final lower bound 1.0, upper bound 1.0')", "nothing is proved"),
        (f"{ANY_TOUR}; print('Optimal Solution: 12345.00')", "says its tour costs 0.0012345, but it costs"),
    ],
)
def test_program_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    """A program that hangs, aborts, fails, writes nothing, a link, nonsense or no proof gives one clear error."""
    fake(tmp_path, "concorde", body, monkeypatch)
    case = Instance("tsp", xy=np.random.default_rng(0).random((14, 2)))
    with pytest.raises(SolverError, match=said):
        solve_one(case, "concorde", {"seconds": 1})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "text = 'TOUR_SECTION ' + ' '.join(map(str, range(1, 15))); open('tour.txt', 'w').write(text)",
            "without its end",
        ),
        ("open('tour.txt', 'w').write('TOUR_SECTION 1 -1'); sys.exit(7)", "failed: exit code 7"),
    ],
)
def test_lkh_must_end_well_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    """A tour that was cut off, or an exit code other than 0, is no answer."""
    fake(tmp_path, "LKH", body, monkeypatch)
    with pytest.raises(SolverError, match=said):
        solve_one(Instance("tsp", xy=np.random.default_rng(0).random((14, 2))), "lkh")


def test_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program: exit code 4 and the next step."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependency) as caught:
        solve_one(instance(0, 14), "concorde")
    assert "concorde" in (caught.value.hint or "").lower()


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_cluster(engine: str, bad: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a local cluster of two workers the answers are those of local processes, crash and fallback included."""
    pytest.importorskip("distributed" if engine == "dask" else "ray")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    given = [instance(what) for what in (0, 0, 1, 0, 5, 0)]
    here = solve_all(given, bad, jobs=2, fallback=("descent",))
    there = solve_all(given, bad, jobs=2, fallback=("descent",), executor=engine)  # type: ignore[arg-type]
    assert [(o.tour, o.note) for o in there] == [(o.tour, o.note) for o in here]  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_cluster_engine_not_installed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra: a hint with the command that installs it."""
    for name in ("ray", "dask", "dask.distributed", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency) as caught:
        solve_all([instance(0)], "descent", executor=engine)  # type: ignore[arg-type]
    assert f"cnf-cli[{engine}]" in (caught.value.hint or "")
