"""Recipes that used to hang or to end as a bug of ours: an error with its place, in steps that grow with the text."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cnf_cli.errors import RecipeError
from cnf_cli.recipe import load_recipe
from cnf_cli.recipe.scan import scan
from tests.conftest import ROOT
from tests.helpers import cnf, environment

START = '[problem]\nkind = "tsp"\nn = 20\n'


def refused(path: Path, overrides: tuple[str, ...] = ()) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return caught.value


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.toml"
    path.write_text(text)
    return path


HANGS = {
    "a quoted key of many letters": '"' + "a" * 200 + "\n",
    "a key of many words": "a " * 20_000 + "\n",
    "a key of 20,000 parts": ".".join("a" * 20_000) + " = 1\n",
    "a key of 20,000 parts in a table": "x = { " + ".".join("a" * 20_000) + " = 1 }\n",
    "a header of 20,000 parts": "[" + ".".join("a" * 20_000) + "]\n",
    "quotes that never close": '"\\"' * 100_000 + "\n",
    "long quotes that never close": '"""' + '\\"""x' * 100_000,
    "escapes at the end of lines": ('"' + '\\"' * 100 + "\\\n") * 2_000,
    "lists in lists": "a = " + "[" * 100_000,
    "tables in tables": "a = " + "{b=" * 300 + "1" + "}" * 300,
}


@pytest.mark.parametrize("kind", HANGS)
def test_no_recipe_hangs(tmp_path: Path, kind: str) -> None:
    """Texts that took seconds to minutes are refused with their file, well before this test's own time is up."""
    path = written(tmp_path, HANGS[kind])
    code = f"from pathlib import Path\nfrom cnf_cli.recipe import load_recipe\nload_recipe(Path({str(path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment(None)
    )
    assert "RecipeError" in done.stderr, done.stderr


def test_the_scan_takes_steps_in_proportion_to_the_text() -> None:
    """Twice the text, twice the tokens at most: none is looked at again, whatever quotes and escapes do."""
    from cnf_cli.recipe import scan as module

    for text in ('"\\"' * 500, '"""' + '\\"""x' * 500, "'''" * 501, "a." * 500, "[" * 500):
        whole = sum(len(found[0]) for found in module._TOKEN.finditer(text))
        assert whole == len(text)  # every character belongs to exactly one token, unclosed quotes included


def test_extends_reads_regular_files_only(tmp_path: Path) -> None:
    """A FIFO without a writer, a device without an end and a folder are refused at once."""
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "folder.toml").mkdir()
    for name in ("fifo", "zero", "folder"):
        path = written(tmp_path, f'extends = "{name}.toml"\n')
        found: list[RecipeError] = []
        reading = threading.Thread(target=lambda p=path, out=found: out.append(refused(p)), daemon=True)
        reading.start()
        reading.join(30)
        assert found, f"{name} is still being read"
        assert "cannot read the recipe" in found[0].message


def test_extends_with_nul_or_a_long_name_is_refused(tmp_path: Path) -> None:
    """NUL, 300 characters and a circle of links in `extends` are errors of the recipe."""
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for parent in ("a\\u0000b.toml", "a" * 300 + ".toml", "loop.toml"):
        assert refused(written(tmp_path, f'extends = "{parent}"\n')).at


@pytest.mark.parametrize("digits", [4_301, 100_000])
def test_integers_of_too_many_digits_are_refused(tmp_path: Path, digits: int) -> None:
    """In a file the line is named; in --set the key is."""
    path = written(tmp_path, f"{START}[pretrain]\nseed = {'9' * digits}\n")
    assert "not valid TOML" in refused(path).message
    error = refused(written(tmp_path, START), (f"pretrain.seed={'9' * digits}",))
    assert error.message.startswith("--set pretrain.seed:")
    assert len(error.message) < 300


def test_a_dotted_key_of_900_parts_is_refused(tmp_path: Path) -> None:
    """In a file with its line, in --set with an example."""
    key = ".".join("a" * 900)
    assert refused(written(tmp_path, f"{START}{key} = 1\n")).at == f"{tmp_path / 'a.toml'}:4"
    assert "--set takes" in refused(written(tmp_path, START), (f"{key}=1",)).message


def test_a_second_line_in_set_is_refused(tmp_path: Path) -> None:
    """A newline would begin another key, which must not be dropped without a word; a list may span lines."""
    path = written(tmp_path, START)
    for text in ("problem.n=30\npretrain.seed = 2", "problem.n=30\n[pretrain]"):
        assert "not one TOML value" in refused(path, (text,)).message
    assert load_recipe(path, ("pretrain.sizes=[\n20,\n30]",)).pretrain.sizes == (20, 30)


def test_a_byte_order_mark_is_no_statement(tmp_path: Path) -> None:
    """A recipe saved by an editor that begins files with a mark reads as any other."""
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf" + START.encode())
    assert load_recipe(path).problem.n == 20


def test_scan_names_every_key_of_the_recipes() -> None:
    """For each recipe in the tree: every key that TOML reads has a line of its own."""
    import tomllib

    for path in sorted((ROOT / "recipes").rglob("*.toml")):
        text = path.read_text()
        found = dict(scan(text))
        for table, keys in tomllib.loads(text).items():
            assert table in found
            for key in keys if isinstance(keys, dict) else ():
                assert f"{table}.{key}" in found or any(name.startswith(f"{table}.{key}.") for name in found)


@pytest.mark.parametrize("command", ["recipe", "pretrain"])
def test_hostile_recipes_end_as_usage_errors_of_the_command(tmp_path: Path, command: str) -> None:
    """The command itself exits with 2, not with 70."""
    path = written(tmp_path, f"{START}[pretrain]\nseed = {'9' * 5000}\n")
    done = cnf(*(("recipe", "check") if command == "recipe" else ("pretrain",)), str(path), store=tmp_path / "store")
    assert done.returncode == 2, done.stderr
