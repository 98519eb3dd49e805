"""The readers' own source: no pickle, no code from text, torch.load in one place and only for weights (promise 19)."""

from __future__ import annotations

import ast

from tests.conftest import ROOT

FILES = sorted((ROOT / "cnf_cli/formats").glob("*.py"))


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_reader_imports_an_unpickler() -> None:
    """Pickled data sets are read without the pickle module: there is nothing in it to misuse."""
    banned = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert len(FILES) > 10
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not banned & {name.split(".")[0] for name in names}, path.name


def test_no_reader_runs_text() -> None:
    """No eval, exec, compile, shell or dynamic import anywhere in the readers."""
    banned = {"eval", "exec", "compile", "__import__", "importlib.import_module", "os.system", "os.popen"}
    for path in FILES:
        for name, call in calls(ast.parse(path.read_text())):
            assert name not in banned, path.name
            assert not any(k.arg == "shell" for k in call.keywords), path.name
            assert not any(k.arg == "allow_pickle" for k in call.keywords), path.name


def test_torch_load_is_called_once_and_for_weights_only() -> None:
    """The single torch.load sits in legacy.py, on the CPU, with weights_only=True written out."""
    found = [
        (path.name, call) for path in FILES for name, call in calls(ast.parse(path.read_text())) if name == "torch.load"
    ]
    assert [name for name, _ in found] == ["legacy.py"]
    options = {k.arg: k.value for k in found[0][1].keywords}
    assert ast.literal_eval(options["weights_only"]) is True
    assert ast.literal_eval(options["map_location"]) == "cpu"
