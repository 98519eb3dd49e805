"""Find plugins by file name: a file that defines `Params` in a family's folder is the plugin of that name."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import traceback
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cnf_cli.errors import PluginError, RecipeError, did_you_mean
from cnf_cli.recipe.sections import Section

FAMILIES = ("problems", "policies", "attacks", "defences", "solvers")
_CLASSES = {"problems": "Problem", "policies": "Policy", "attacks": "Attack", "defences": "Defence"}
_ROOT = Path(__file__).parent
_LIGHT = ("__future__", "typing", "pydantic", "cnf_cli.recipe")


@cache
def kinds(family: str) -> tuple[str, ...]:
    """The names of all plugins of a family, sorted."""
    if family not in FAMILIES:
        raise RecipeError(f"there is no plugin family '{family}'", hint=f"families: {', '.join(FAMILIES)}")
    files = (p for p in (_ROOT / family).glob("*.py") if not p.name.startswith("_"))
    return tuple(sorted(p.stem for p in files if _params_node(_parse(p)) is not None))


@cache
def summary(family: str, kind: str) -> str:
    """The first line of the plugin file's docstring."""
    doc = ast.get_docstring(_parse(_path(family, kind))) or ""
    return doc.splitlines()[0] if doc else ""


@cache
def params(family: str, kind: str) -> type[Section]:
    """The plugin's `Params`, read without running the rest of the file, so that torch is not imported."""
    path = _path(family, kind)
    loader = _ParamsOnly(f"cnf_cli._params.{family}.{kind}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    found: type[Section] = module.Params
    found.model_rebuild(_types_namespace=vars(module))
    return found


def load(family: str, kind: str) -> ModuleType:
    """The plugin's module, imported whole."""
    return importlib.import_module(f"cnf_cli.{family}.{_path(family, kind).stem}")


def create(family: str, section: Section, *args: Any, **options: Any) -> Any:
    """The plugin's object for a section of a recipe: its Problem, Policy, Attack or Defence."""
    table = section.model_dump()
    module = load(family, table["defence" if family == "defences" else "kind"])
    # `params` reads a light copy of the class; the plugin's own code is given its own.
    return getattr(module, _CLASSES[family])(module.Params.model_validate(table), *args, **options)


def blame(error: BaseException) -> PluginError | None:
    """The error of the plugin whose own code raised `error`, with its file and line; None where it was another's.

    Its own code is what lies deepest of this package: what a plugin hands to torch, and fails there, is its own doing.
    """
    if isinstance(error, SyntaxError) and error.filename:
        places = [(Path(error.filename), error.lineno or 0)]
    else:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        places = [(Path(frame.filename), frame.lineno or 0) for frame in frames]
    for path, line in places:
        if not path.is_relative_to(_ROOT):
            continue
        if path.parent.parent != _ROOT or path.parent.name not in FAMILIES or not _is_plugin(path):
            return None
        told = f"the plugin '{path.stem}' of {path.parent.name} raised {type(error).__name__}: {error}"
        return PluginError(told, at=f"{path}:{line}")
    return None


def _is_plugin(path: Path) -> bool:
    try:
        return _params_node(_parse(path)) is not None
    except SyntaxError:  # nobody knows what it would have been
        return True


def _path(family: str, kind: str) -> Path:
    if kind not in kinds(family):
        near = did_you_mean(kind, kinds(family))
        raise RecipeError(
            f"'{kind}' is not one of the {family}: {', '.join(kinds(family))}",
            hint=f"did you mean '{near}'? `cnf list {family}` says what each does." if near else f"`cnf list {family}`",
        )
    return _ROOT / family / f"{kind}.py"


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _params_node(tree: ast.Module) -> ast.ClassDef | None:
    return next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Params"), None)


class _ParamsOnly(importlib.machinery.SourceFileLoader):
    """Runs only a plugin's light imports and its `Section` classes up to and including `Params`."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.parse(data, filename=str(path))
        keep: list[ast.stmt] = []
        for node in tree.body:
            light = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_LIGHT)
            if light or (isinstance(node, ast.ClassDef) and _is_section(node)):
                keep.append(node)
        return compile(ast.Module(keep, []), str(path), "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> CodeType:
        """Never read or write a .pyc: the filtered code is not the file's code."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _is_section(node: ast.ClassDef) -> bool:
    return node.name == "Params" or any(isinstance(b, ast.Name) and b.id.endswith("Section") for b in node.bases)
