"""A plugin is one file: the one that CONTRIBUTING prints works as printed, and a broken one is told as what it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from contextlib import suppress
from inspect import signature
from pathlib import Path

import pytest

from cnf_cli import plugins
from tests.conftest import ROOT
from tests.contract import test_attacks as contract
from tests.helpers import environment

# The package that is installed for development is found before any path: the copy has to be asked for.
RUN = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, sys.argv.pop(1))
from cnf_cli.__main__ import main
main()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of links to this one's files, to which a plugin can be added."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cnf_cli", tmp_path / "tree" / "cnf_cli", copy_function=os.symlink, ignore=skip)
    return tmp_path / "tree"


def printed() -> str:
    """The attack in CONTRIBUTING, to the letter."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"An attack in full:\n\n```python\n(.*?)```", page, re.DOTALL)
    return str(code)


def attack(tree: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`cnf attack` with a plugin of that code."""
    (tree / "cnf_cli" / "attacks" / "mirror.py").write_text(code, encoding="utf-8")
    words = [
        "attack",
        "tsp",
        "--n",
        "8",
        "--with",
        "zoo/tsp20",
        "--count",
        "3",
        "--set",
        "attack.kind=mirror",
        *options,
    ]
    env = environment(tree.parent / "store")
    command = [sys.executable, "-c", RUN, str(tree), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=tree.parent, env=env, timeout=120)


def test_the_printed_attack_runs_as_printed(tree: Path) -> None:
    """Copied into the folder of attacks it is known by its name, and nodes come out mirrored."""
    done = attack(tree, printed(), "--json")
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert checks["count"] == 3
    assert 0 < checks["nodes_moved_share"] < 1


@pytest.mark.parametrize("on", ["tsp", "cvrp"])
def test_the_printed_attack_keeps_the_contract(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is asked of the attacks in the package holds for it, on maps with and without a depot."""
    module = types.ModuleType("mirror")
    exec(printed(), vars(module))
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda family, kind: module if kind == "mirror" else load(family, kind))
    case = contract.Case("mirror", on)
    asked = [f for name, f in vars(contract).items() if name.startswith("test_") and "case" in signature(f).parameters]
    assert len(asked) > 5
    for promise in asked:
        with suppress(pytest.skip.Exception):  # of a depot there is nothing to promise where there is none
            promise(case, *([2] if "models" in signature(promise).parameters else []))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (printed().replace("import torch\n", ""), "NameError: name 'torch' is not defined"),
        (printed().replace("1 - clean.xy", "clean.xy @ clean.xy"), "RuntimeError"),
        (printed().replace("class Attack:", "class Attack"), "SyntaxError"),
    ],
)
def test_an_error_in_a_plugins_own_code_is_told_as_the_plugins(tree: Path, code: str, message: str) -> None:
    """Also one that torch raises for it, or that stands before the first line is run: whose, file and line."""
    done = attack(tree, code)
    assert done.returncode == 70, done.stdout
    assert "error: the plugin 'mirror' of attacks raised " + message in done.stderr
    assert re.search(r"at: .*/attacks/mirror\.py:\d+\n", done.stderr)
    assert "bug in cnf" not in done.stderr


def test_an_error_in_our_own_code_stays_a_bug_of_ours() -> None:
    """What does not come from a plugin is blamed on none."""
    from cnf_cli.recipe.load import load_recipe

    with pytest.raises((AttributeError, TypeError)) as caught:
        load_recipe(3)  # type: ignore[arg-type]
    assert plugins.blame(caught.value) is None
