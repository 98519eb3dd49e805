"""Validate a recipe's tables against the sections of the plugins they choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from cnf_cli import plugins
from cnf_cli.errors import RecipeError, did_you_mean
from cnf_cli.recipe import sections as s
from cnf_cli.recipe.copies import copies


class Table(NamedTuple):
    """How one table is validated: its section, and the plugin family whose `Params` extend it."""

    section: type[s.Section]
    family: str | None = None
    chooser: str = "kind"


TABLES: dict[str, Table] = {
    "problem": Table(s.ProblemSection, "problems"),
    "policy": Table(s.PolicySection, "policies"),
    "pretrain": Table(s.PretrainSection),
    "attack": Table(s.AttackSection, "attacks"),
    "train": Table(s.TrainSection, "defences", "defence"),
    "evaluate": Table(s.EvaluateSection),
    "visualize": Table(s.VisualizeSection),
    "runtime": Table(s.RuntimeSection),
}

Where = Callable[[str], str | None]


@dataclass(frozen=True)
class Recipe:
    """A validated experiment; every key has a value."""

    name: str
    source: str
    """What a user types to name it: the file's path, or `tsp --n 20`."""
    problem: s.ProblemSection
    policy: s.PolicySection
    pretrain: s.PretrainSection
    attack: s.AttackSection
    train: s.TrainSection
    evaluate: s.EvaluateSection
    visualize: s.VisualizeSection
    runtime: s.RuntimeSection
    written: tuple[str, ...] = ()
    """The tables that the file, what it extends or `--set` wrote; the others are all defaults."""

    def sections(self, *names: str) -> dict[str, s.Section]:
        """The named sections, in the order given."""
        return {name: cast(s.Section, getattr(self, name)) for name in names}

    def dump(self) -> dict[str, dict[str, Any]]:
        """Every table as plain JSON values."""
        return {name: section.model_dump(mode="json") for name, section in self.sections(*TABLES).items()}


def section_class(table: str, raw: Mapping[str, Any], where: Where = lambda _: None) -> type[s.Section]:
    """The section that validates `raw`: the table's own, or its chosen plugin's `Params`."""
    section, family, chooser = TABLES[table]
    if family is None:
        return section
    kind = raw.get(chooser, section.model_fields[chooser].default)
    if not isinstance(kind, str):
        raise RecipeError(f"{table}.{chooser} must be a string", at=where(f"{table}.{chooser}"))
    try:
        return plugins.params(family, kind)
    except RecipeError as error:
        raise RecipeError(
            f"{table}.{chooser}: {error.message}", at=where(f"{table}.{chooser}"), hint=error.hint
        ) from None


def build(name: str, tables: Mapping[str, Any], where: Where = lambda _: None, source: str = "") -> Recipe:
    """A recipe from raw tables; missing tables and keys take their defaults. `where` maps a dotted key to file:line."""
    for table in tables:
        if table not in TABLES:
            near = did_you_mean(table, tuple(TABLES))
            hint = f"did you mean '[{near}]'? " if near else ""
            raise RecipeError(
                f"[{table}] is not a known table", at=where(table), hint=f"{hint}tables: {', '.join(TABLES)}"
            )
    written = tuple(tables)
    problem = build_section("problem", tables.get("problem", {}), where)
    assert isinstance(problem, s.ProblemSection)
    usual: dict[str, dict[str, Any]] = {
        "policy": {"kind": problem.default_policy},
        "evaluate": {"augment": problem.usual_copies},
    }
    tables = {**tables, **{table: _over_usual(keys, tables.get(table, {})) for table, keys in usual.items()}}
    rest = {t: build_section(t, tables.get(t, {}), where) for t in TABLES if t != "problem"}
    for table, key in (("evaluate", "augment"), ("pretrain", "validation_augment"), ("train", "validation_augment")):
        copies(problem, getattr(rest[table], key), f"{table}.{key}", where(f"{table}.{key}"))
    return Recipe(name=name, source=source or name, problem=problem, written=written, **rest)  # type: ignore[arg-type]


def _over_usual(usual: Mapping[str, Any], raw: Any) -> Any:
    """A table on top of what the problem has in mind for it."""
    return {**usual, **raw} if isinstance(raw, Mapping) else raw


def build_section(table: str, raw: Any, where: Where = lambda _: None) -> s.Section:
    """One validated section."""
    if not isinstance(raw, Mapping):
        raise RecipeError(f"'{table}' must be a table", at=where(table), hint=f"write it as [{table}] with keys below")
    cls = section_class(table, raw, where)
    try:
        return cls.model_validate(_tuples(raw))
    except ValidationError as error:
        raise _explain(table, cls, raw, error, where) from None


def _tuples(value: Any) -> Any:
    """Lists as tuples, all the way down: sections are strict and frozen."""
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return value


def _explain(
    table: str, cls: type[s.Section], raw: Mapping[str, Any], error: ValidationError, where: Where
) -> RecipeError:
    """The first problem pydantic found, in the recipe's own words; the number of the others."""
    problems = error.errors(include_url=False)
    first = problems[0]
    path = ".".join(str(part) for part in first["loc"])
    dotted = f"{table}.{path}" if path else table
    section, family, chooser = TABLES[table]
    kind = raw.get(chooser, section.model_fields[chooser].default) if family else None
    look = f"`cnf list {family} {kind}`" if family else "`cnf recipe schema`"
    if first["type"] == "extra_forbidden":
        near = did_you_mean(str(first["loc"][-1]), _known_keys(cls, first["loc"]))
        message = f"{dotted} is not a known key"
        hint = (f"did you mean '{near}'? " if near else "") + f"{look} prints every key."
    else:
        text = first["msg"][0].lower() + first["msg"][1:].replace("valid tuple", "list")
        message = f"{dotted}: {text} (got {_short(first['input'])})"
        hint = f"{look} prints every key with its range."
    if len(problems) > 1:
        message += f"; {len(problems) - 1} more problem{'s' if len(problems) > 2 else ''} in [{table}]"
    return RecipeError(message, at=where(dotted), hint=hint)


def _known_keys(cls: type[s.Section], loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys of the (possibly nested) section in which `loc` ends."""
    for part in loc[:-1]:
        field = cls.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, s.Section)):
            break
        cls = inner
    return tuple(cls.model_fields)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
