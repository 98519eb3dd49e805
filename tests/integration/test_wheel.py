"""The package as others get it: built as a wheel, installed elsewhere, away from the source tree."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cnf_cli.recipe import load_recipe, place
from tests.conftest import ROOT
from tests.helpers import cnf


def run(*words: str, cwd: Path, timeout: float = 600) -> str:
    """What the command printed; it must have succeeded."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CNF_", "VIRTUAL_ENV"))}
    env = {**keep, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source tree, without what git ignores."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    if not tracked:
        pytest.skip("the source tree is no git checkout")
    packed = subprocess.run(["tar", "c", "--null", "-T", "-"], cwd=ROOT, input=tracked, capture_output=True, check=True)
    subprocess.run(["tar", "x"], cwd=folder / "source", input=packed.stdout, check=True)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder / "out"), str(folder / "source"))
    run(*pip, cwd=folder, timeout=1500)
    return next((folder / "out").glob("*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_wheel_installed_elsewhere_runs_the_readme(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own and an empty folder: demo, solve, zoo, evaluate, a shipped recipe and its copy."""
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    python, command = tmp_path / "env" / "bin" / "python", str(tmp_path / "env" / "bin" / "cnf")
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel), cwd=tmp_path)
    there = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # What the package depends on is lent by this environment: its folder is on the path, its .pth files are not read.
    (there / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    here = tmp_path / "empty"
    here.mkdir()
    assert run(str(python), "-c", "import cnf_cli; print(cnf_cli.__file__)", cwd=here).startswith(str(there))

    quick = ["pretrain.instances=640", "train.instances=64", "attack.count=10", "evaluate.count=10"]
    sets = [word for text in quick for word in ("--set", text)]
    told = json.loads(run(command, "demo", "--json", *sets, cwd=here))
    assert Path(told["path"]) == here / "report.html"
    assert "<html" in (here / "report.html").read_text()
    (here / "my_stops.csv").write_text("".join(f"{x},{x * x % 7}\n" for x in range(12)))
    assert len(json.loads(run(command, "solve", "my_stops.csv", "--json", cwd=here))["rows"]) == 1
    assert "tsp20" in run(command, "zoo", "ls", cwd=here)
    assert json.loads(run(command, "zoo", "show", "tsp20", "--json", cwd=here))["id"]
    run(command, "evaluate", "--data", "my_stops.csv", "--with", "zoo/tsp20", "--solver", "nearest", cwd=here)
    plan = json.loads(run(command, "train-cnf", "recipes/tsp20.toml", "--plan", "--json", cwd=here))
    assert plan["plan"]
    assert "valid" in run(command, "recipe", "check", "recipes/ablations/lr-1e-3.toml", cwd=here)
    run(command, "init", "recipes/tsp20.toml", cwd=here)
    assert (here / "recipes" / "tsp20.toml").read_bytes() == (ROOT / "recipes" / "tsp20.toml").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_holds_the_recipes_and_says_what_it_is(wheel: Path) -> None:
    """Every recipe of the tree, no tests, no C++; project URLs and classifiers in the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        meta = next(name for name in names if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(meta))
    recipes = {f"cnf_cli/{name}" for name in place.names()}
    assert recipes
    assert recipes <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "recipes/", "cnf_cli/engine/cpp/"))]
    assert len(about.get_all("Project-URL") or ()) >= 2
    assert "Programming Language :: Python :: 3.11" in (about.get_all("Classifier") or ())


def test_shipped_recipes_are_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recipes/NAME.toml` means the shipped one where no such file is here; a file that is here wins."""
    monkeypatch.chdir(tmp_path)
    assert load_recipe(Path("recipes/tsp20.toml")).source == "recipes/tsp20.toml"
    assert load_recipe(Path("recipes/tsp20.toml")).pretrain.instances == 220_000
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tsp20.toml").write_text('[problem]\nkind = "tsp"\nn = 7\n')
    assert load_recipe(Path("recipes/tsp20.toml")).problem.n == 7
    for name in ("recipes/../pyproject.toml", "recipes/nothing.toml", "other/tsp20.toml"):
        assert place.find(Path(name)) == Path(name)


def test_init_copies_a_shipped_recipe_out_with_what_it_extends(tmp_path: Path) -> None:
    """The copy and its parents are byte for byte what is shipped, valid, and never written over a file."""
    done = cnf("init", "recipes/ablations/lr-1e-3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.toml"))
    assert "recipes/ablations/lr-1e-3.toml" in written
    assert "recipes/ablations/base.toml" in written
    for name in written:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert cnf("recipe", "check", "recipes/ablations/lr-1e-3.toml", cwd=tmp_path).returncode == 0
    (tmp_path / "recipes" / "ablations" / "lr-1e-3.toml").write_text("mine")
    done = cnf("init", "recipes/ablations/lr-1e-3.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert (tmp_path / "recipes" / "ablations" / "lr-1e-3.toml").read_text() == "mine"
