"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers import cnf, cnf_json, environment

HEAVY = "import sys; heavy = {'torch', 'h5py', 'matplotlib', 'scipy'} & set(sys.modules); assert not heavy, heavy"


@pytest.mark.parametrize(
    "args", [["--help"], ["list", "attacks", "attribute"], ["list"], ["recipe", "schema"], ["ls"], ["zoo", "ls"]]
)
def test_light_commands_do_not_import_torch(args: list[str], tmp_path: Path) -> None:
    """Help, lists and the store's commands run without torch in a fresh process."""
    code = f"import sys; sys.argv = ['cnf'] + {args!r}\nimport atexit\natexit.register(lambda: exec({HEAVY!r}))\n"
    code += (
        "from cnf_cli.__main__ import main\ntry:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        + HEAVY
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_help_is_fast() -> None:
    """`cnf --help` takes less than half a second of processor time, whatever else the machine is doing."""
    times = []
    for _ in range(5):
        start = os.times()
        assert cnf("--help").returncode == 0
        end = os.times()
        times.append(end.children_user - start.children_user + end.children_system - start.children_system)
    assert min(times) < 0.5


def test_every_command_has_help_and_common_options() -> None:
    """Every command documents itself and takes --json, -q, -v and --store."""
    code = """
import json
from cnf_cli.cli.app import app
import typer.main
def walk(command, path):
    inner = getattr(command, "commands", None)
    if inner is None:
        print(json.dumps([path, command.help or "", sorted(o for p in command.params for o in p.opts)]))
    for name, sub in (inner or {}).items():
        walk(sub, path + [name])
walk(typer.main.get_command(app), [])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(None), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) >= 15
    for path, text, options in rows:
        assert text, path
        assert {"--json", "-q", "-v", "--store"} <= set(options), path


def test_misspelt_recipe_key_exits_2_with_place_and_hint(tmp_path: Path) -> None:
    """A recipe error goes to stderr with file:line and suggestion, exit code 2, nothing on stdout."""
    recipe = tmp_path / "r.toml"
    recipe.write_text("[train]\nmodles = 3\n")
    done = cnf("recipe", "check", str(recipe))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: train.modles is not a known key\n  at: {recipe}:2\n"
        "hint: did you mean 'models'? `cnf list defences cnf` prints every key.\n"
    )


def test_recipe_show_spells_out_defaults_and_reads_back(tmp_path: Path) -> None:
    """The output of `recipe show` is itself a recipe with the same values."""
    first = tmp_path / "r.toml"
    first.write_text("[problem]\nn = 30\n")
    shown = cnf("recipe", "show", str(first))
    assert shown.returncode == 0, shown.stderr
    second = tmp_path / "s.toml"
    second.write_text(shown.stdout)
    assert cnf_json("recipe", "show", str(second)) == cnf_json("recipe", "show", str(first))


def test_listed_keys_can_be_copied_into_a_recipe() -> None:
    """Types are told without Python's own words, and every default is TOML as it stands."""
    import tomllib

    from cnf_cli import plugins
    from cnf_cli.cli.plugin_list import keys_of

    for family in plugins.FAMILIES:
        for kind in plugins.kinds(family):
            for key, told, default, _ in keys_of(plugins.params(family, kind)):
                assert not re.search(r"typing|tuple|None|\[", told), (kind, key, told)
                assert default in ("none", "required") or "x" in tomllib.loads(f"x = {default}"), (kind, key, default)
    told = {key: (told, default) for key, told, default, _ in keys_of(plugins.params("attacks", "attribute"))}
    assert told["attributes"] == ("list of xy | customers | depot | demand | matrix", "[]")
    assert told["keep_best"] == ("bool | auto", '"auto"')


def test_init_writes_a_valid_recipe_and_never_overwrites(tmp_path: Path) -> None:
    """`cnf init` makes a file that `recipe check` accepts, once."""
    done = cnf("init", "mine", "--problem", "cvrp", "--n", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cnf("recipe", "check", "mine.toml", cwd=tmp_path).returncode == 0
    again = cnf("init", "mine", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_schema_accepts_what_the_loader_accepts() -> None:
    """The JSON schema has every table and every plugin kind."""
    schema = json.loads(cnf("recipe", "schema").stdout)
    assert {"problem", "policy", "pretrain", "attack", "train", "evaluate", "visualize", "runtime"} <= set(
        schema["properties"]
    )
    kinds = {alternative["title"] for alternative in schema["properties"]["problem"]["oneOf"]}
    assert {"tsp", "cvrp"} <= kinds


def test_store_commands_round_trip(tmp_path: Path) -> None:
    """selftest, ls, show, path, export, tag, untag, du, verify and gc work together and speak JSON."""
    store = tmp_path / "store"
    made = cnf_json("selftest", store=store)
    assert made["hit"] is False
    assert cnf_json("selftest", store=store)["hit"] is True
    listed = cnf_json("ls", store=store)["artifacts"]
    assert {a["stage"] for a in listed} == {"selftest_count", "selftest_sum"}
    shown = cnf_json("show", made["id"][:8], store=store)
    assert shown["lineage"]["inputs"]["numbers"]["stage"] == "selftest_count"
    assert Path(cnf_json("path", "selftest/sum", store=store)["path"]).read_text() == "1225\n"
    out = tmp_path / "out"
    assert cnf_json("export", "selftest/sum", str(out), store=store)["files"] == [str(out / "sum.txt")]
    assert cnf("export", "selftest/sum", str(out), store=store).returncode == 3
    assert cnf_json("tag", "best", made["id"], store=store)["id"] == made["id"]
    assert cnf_json("untag", "best", store=store)["removed"] is True
    assert cnf_json("du", store=store)["objects"] == 2
    assert cnf_json("verify", "--deep", store=store)["problems"] == []
    assert cnf_json("gc", store=store)["deleted"] is False


def test_flipped_byte_is_found_and_repaired(tmp_path: Path) -> None:
    """A flipped byte makes `verify --deep` exit 1; the same command then repairs the result."""
    store = tmp_path / "store"
    made = cnf_json("selftest", store=store)
    blob = Path(cnf_json("path", made["id"], store=store)["path"])
    blob.chmod(0o644)
    blob.write_bytes(b"9" + blob.read_bytes()[1:])
    assert cnf("verify", "--deep", store=store).returncode == 1
    assert cnf("selftest", store=store).returncode == 0
    assert cnf("verify", "--deep", store=store).returncode == 0


def test_unknown_artifact_exits_3_and_suggests(tmp_path: Path) -> None:
    """A missing artifact is exit code 3 with a near miss, as JSON too."""
    store = tmp_path / "store"
    cnf_json("selftest", store=store)
    done = cnf("show", "selftest/sun", "--json", store=store)
    assert done.returncode == 3
    assert "selftest/sum" in json.loads(done.stdout)["hint"]


def test_quiet_says_nothing(tmp_path: Path) -> None:
    """With -q only the id is printed."""
    done = cnf("selftest", "-q", store=tmp_path)
    assert done.stderr == ""
    assert len(done.stdout.strip()) == 64


def test_a_bug_is_reported_with_a_file(tmp_path: Path) -> None:
    """An unexpected exception becomes a short message and a traceback in a file; -v shows it."""
    code = (
        "import sys; sys.argv = ['cnf', 'ls', '-v']\nimport cnf_cli.cli.artifacts as a\n"
        "def boom(*_): raise ZeroDivisionError('boom')\n"
        "import cnf_cli.store as s; s.Store.manifests = boom\n"
        "from cnf_cli.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    path = done.stderr.split("traceback is in ")[1].split(";")[0]
    assert "ZeroDivisionError" in Path(path).read_text()
    Path(path).unlink()


def test_completion_offers_aliases_recipes_and_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell completion knows aliases, recipe paths, problems and plugin kinds."""
    from cnf_cli.cli import complete

    store = tmp_path / "store"
    cnf_json("selftest", store=store)
    monkeypatch.setenv("CNF_STORE", str(store))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "x.toml").touch()
    assert complete.aliases("self") == ["selftest/count", "selftest/sum"]
    assert complete.recipes("recipes/") == ["recipes/x.toml"]
    assert "tsp" in complete.targets("t")
    assert "pomo" in complete.kinds("po")


def test_the_end_of_a_command_looks_for_no_garbage() -> None:
    """When the interpreter ends nothing is left that it would search: with torch that took seconds."""
    code = "import atexit, gc; atexit.register(lambda: print(len(gc.get_objects()) < 1000 < gc.get_freeze_count()))\n"
    code += "import sys; sys.argv = ['cnf', '--version']\nfrom cnf_cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
