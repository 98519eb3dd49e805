"""What comes out of the command: shown and never obeyed; closed, full or narrow streams are errors, never bugs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cnf_cli.terminal import printable
from tests.conftest import ROOT
from tests.helpers import cnf, cnf_json, environment

SQUARE = "NAME : a\x1b]0;title\x07\nTYPE : {kind}\nDIMENSION : 4\nEDGE_WEIGHT_TYPE : EUC_2D\nNODE_COORD_SECTION\n"
SQUARE += "1 0 0\n2 0 10\n3 10 10\n4 10 0\nEOF\n"


def shell(command: str, store: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of sh in which $CNF is the command."""
    line = command.replace("$CNF", f"{sys.executable} -m cnf_cli")
    given = {**environment(store), **env}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=ROOT, env=given, timeout=120)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a short lineage."""
    folder = tmp_path_factory.mktemp("terminal") / "store"
    assert cnf("selftest", store=folder).returncode == 0
    return folder


def test_escape_sequences_of_files_never_reach_the_terminal(tmp_path: Path) -> None:
    """In file names, TSPLIB headers, recipe keys and arguments: spelled out, on stdout and stderr."""
    evil = tmp_path / "a\x1b[31mb.tsp"
    evil.write_text(SQUARE.format(kind="X\x1b[2J"))
    good = tmp_path / "c\x1b[31md.tsp"
    good.write_text(SQUARE.format(kind="TSP"))
    recipe = tmp_path / "e.toml"
    recipe.write_text('[problem]\n"ki\\u001b[2Jnd" = 1\n')
    for words in (
        ("import", str(evil)),
        ("import", str(good), "--as", "data/x"),
        ("solve", str(good), "--with", "zoo/tsp20"),
        ("recipe", "check", str(recipe)),
        ("data", "show", "data/x"),
        ("show", "data/x"),
        ("show", "\x1b[2J"),
        ("tag", "a\x1b[2J", "data/x"),
    ):
        done = cnf(*words, store=tmp_path / "store")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr), words
    assert "\\x1b" in cnf("import", str(evil), store=tmp_path / "store").stderr


def test_printable_leaves_text_and_spells_out_control() -> None:
    """Letters of any script, tabs and line ends stay; control and turning marks do not."""
    assert printable("Zürich\t東京\n") == "Zürich\t東京\n"
    assert printable("a\x1b[2J\r\x9b\u202eb") == "a\\x1b[2J\\r\\x9b\\u202eb"


def test_output_has_one_sink() -> None:
    """No command prints on its own: what it says goes through the context, which spells out control characters."""
    for path in (ROOT / "cnf_cli" / "cli").glob("*.py"):
        if path.name != "app.py":  # prints the version
            assert not re.search(r"(?<![\w.])print\(|stdout\.write|stderr\.write", path.read_text()), path


@pytest.mark.parametrize("columns", ["", "abc", "-5", "0", "9" * 5000])
def test_any_value_of_columns_is_fine(store: Path, columns: str) -> None:
    """A width that is no number is no width."""
    done = cnf_env("ls", store=store, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert "selftest" in done.stdout


def cnf_env(*words: str, store: Path, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**environment(store), **env}
    command = [sys.executable, "-m", "cnf_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, timeout=120)


def test_a_closed_standard_output_is_said(store: Path) -> None:
    """`cnf ls >&-` exits 2 and says why; a closed standard error changes nothing."""
    done = shell("$CNF ls >&-", store)
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard output is closed" in done.stderr
    done = shell("$CNF ls 2>&-", store)
    assert done.returncode == 0
    assert "selftest" in done.stdout
    assert shell("$CNF ls <&- 2>&- >&-", store).returncode == 2


@pytest.mark.parametrize("words", ["ls", "ls --json", "show selftest/sum", "recipe schema"])
def test_a_full_standard_output_is_said(store: Path, words: str) -> None:
    """`cnf ls >/dev/full` exits 2 with one error, without a word from the interpreter."""
    done = shell(f"$CNF {words} >/dev/full", store)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error:")
    assert "No space left" in done.stderr or "no space left" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_lineage_is_drawn_with_the_letters_there_are(store: Path) -> None:
    """Under an encoding of few letters the tree is drawn with those; nothing fails."""
    done = cnf_env("show", "selftest/sum", store=store, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "`-- numbers: selftest_count" in done.stdout
    assert (
        "└── numbers: selftest_count" in cnf_env("show", "selftest/sum", store=store, PYTHONIOENCODING="utf-8").stdout
    )


@pytest.mark.parametrize("value", ["abc", "", "-1", "3", "9" * 5000])
def test_a_wrong_rank_is_an_error_and_not_silence(store: Path, value: str) -> None:
    """RANK=abc says that torchrun sets it; without torchrun no process is a follower."""
    done = cnf_env("ls", store=store, RANK=value)
    assert done.returncode == 2
    assert "RANK is" in done.stderr
    assert "unset RANK" in done.stderr


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("solve", LONG),
        ("solve", f"{LONG}.csv"),
        ("import", LONG),
        ("pretrain", LONG),
        ("pretrain", f"{LONG}.toml"),
        ("recipe", "check", f"{LONG}.toml"),
        ("recipe", "show", LONG),
        ("evaluate", "--data", LONG, "--with", "zoo/tsp20"),
        ("evaluate", LONG),
        ("export", "selftest/sum", LONG),
        ("init", LONG),
        ("show", LONG),
        ("path", "selftest/sum", LONG),
        ("tag", LONG, "selftest/sum"),
        ("untag", LONG),
        ("ls", "--store", LONG),
        ("ls", "--stage", LONG),
        ("selftest", "--store", LONG),
        ("demo", "--recipe", f"{LONG}.toml"),
        ("list", LONG),
        ("zoo", "show", LONG),
        ("bench", "fetch", "tsplib", "--from", LONG),
        ("data", "show", LONG),
        ("label", LONG),
        ("visualize", "tours", LONG),
        ("report", LONG),
        ("compare", LONG, LONG),
    ],
    ids=" ".join,
)
def test_names_of_300_characters_are_no_bug(store: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    """Wherever a command takes a name or a path: an error of use, or a result, never exit 70."""
    done = cnf(*words, store=store, cwd=tmp_path)
    assert done.returncode in (0, 2, 3), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("report", "x"), ("visualize", "tours", "x")])
def test_outputs_of_300_characters_are_no_bug(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The same for --out."""
    done = cnf(*words, "--out", LONG, store=tmp_path / "store")
    assert done.returncode in (2, 3), done.stderr


def test_the_json_error_is_the_same_error(store: Path) -> None:
    """With --json a refusal is one object on stdout, control characters escaped."""
    done = cnf("show", "\x1b[2J", "--json", store=store)
    assert done.returncode == 3
    assert "\x1b" not in done.stdout
    assert cnf_json("ls", store=store)["artifacts"]
