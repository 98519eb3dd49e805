"""Write one self-contained HTML page about evaluations: the story, tables, figures, and how it all was made."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cnf_cli.errors import ArtifactError
from cnf_cli.pipeline.job import Artifact, Job, Result
from cnf_cli.pipeline.provenance import moment
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.pipeline.work_files import write_atomic
from cnf_cli.recipe.sections import Section
from cnf_cli.stages.visualize import ancestry
from cnf_cli.store import Manifest, Store

if TYPE_CHECKING:
    from cnf_cli.plots._source import Source
    from cnf_cli.report.page import Made, Part

VERSION = 1
_WORST = 8


class ReportSection(Section):
    """What the page is about."""

    recipe: str = Field("", description="the recipe, as a user names it; empty = artifacts were named")
    facts: str = Field(description="digest of the history the page tells: commands, times, versions")


def task(
    evaluations: Sequence[Manifest],
    figures: Mapping[str, Manifest],
    store: Store,
    recipe: str = "",
    *,
    alias: str | None = None,
) -> Task:
    """The page about these evaluations with these figures; the one called `hero` stands beside the story."""
    for one in evaluations:
        if one.stage != "evaluate":
            raise ArtifactError(
                f"artifact {one.key[:12]} ({one.stage}) is not an evaluation",
                hint="`cnf report` tells about evaluations: `cnf ls --stage evaluate` lists them",
            )
    history = [[m.key, m.provenance] for m in ancestry(store, evaluations)]
    facts = hashlib.sha256(json.dumps(history, sort_keys=True).encode()).hexdigest()
    inputs = {f"evaluation-{i:03d}": one for i, one in enumerate(evaluations)}
    inputs |= {f"figure-{name}": one for name, one in figures.items()}
    command = f"cnf report {recipe or ' '.join(one.key[:12] for one in evaluations)}"
    return Task(STAGE, {"report": ReportSection(recipe=recipe, facts=facts)}, inputs, alias=alias, command=command)


def run(job: Job) -> Result:
    """Writes report.html."""
    from cnf_cli.plots._source import Source
    from cnf_cli.report.page import Page, render

    section: ReportSection = job.section("report")
    artifacts = {name: job.inputs[name] for name in sorted(job.inputs)}
    given = [one for name, one in artifacts.items() if name.startswith("evaluation-")]
    drawn = {name[7:]: _figure(one) for name, one in artifacts.items() if name.startswith("figure-")}
    hero = drawn.pop("hero", None)
    store = given[0].store
    history = ancestry(store, [one.manifest for one in given])
    parts = [_part(Source(one), ancestry(store, [one.manifest])) for one in given]
    page = Page(
        title=_title(given[0].manifest, history, section.recipe),
        parts=parts,
        figures=[one for one in drawn.values() if one is not None],
        hero=hero,
        history=[_made(m, section.recipe) for m in history],
        machine=_machine(history),
        recipe=section.recipe,
        warnings=[
            f"{m.stage} {m.key[:12]}: {w}" for m in history if not _told(m) for w in m.checks.get("warnings", ())
        ],
    )
    path = job.work / "report.html"
    write_atomic(path, render(page).encode())
    return Result({"report.html": path}, {"headline": parts[0].story.headline})


def _told(manifest: Manifest) -> bool:
    """Whether this is the attack that the story tells about, warnings and all."""
    return manifest.stage == "attack" and not manifest.sections.get("set", {}).get("white_box")


def _figure(artifact: Artifact) -> tuple[dict[str, Any], bytes] | None:
    """Words and picture; None for a figure that says nothing here."""
    kind = artifact.manifest.checks["kind"]
    words = json.loads(artifact.path(f"{kind}.json").read_text(encoding="utf-8"))
    return None if words.get("thin") else (words, artifact.path(f"{kind}.svg").read_bytes())


def _part(source: Source, history: Sequence[Manifest]) -> Part:
    from cnf_cli.plots._source import main_rows, measured
    from cnf_cli.report.page import Part
    from cnf_cli.report.story import Facts, cast_of, tell

    rows = main_rows(source)
    sizes = {block.nodes for one in measured(source) for block in one.blocks}
    policies = [m for m in history if m.stage == "pretrain"]
    attacks = [m for m in history if _told(m)]
    attack = {**attacks[0].sections["attack"], "checks": attacks[0].checks} if attacks else {}
    depot = source.table["problem"] == "cvrp"
    facts = Facts(
        problem=source.table["problem"],
        nodes=sizes.pop() - depot if len(sizes) == 1 else None,
        rows=rows,
        comparisons=source.table["comparisons"],
        trained_on=policies[0].checks.get("instances") if policies else None,
        attack=attack,
    )
    cast = cast_of(rows)
    worst = _worst(source, cast.fixed or cast.clean)
    return Part(source.key, tell(facts), source.table["rows"], source.table["comparisons"], worst)


def _worst(source: Source, name: str | None) -> tuple[str, list[str], list[list[object]]] | None:
    """The instances of that set on which the first method does worst, with every method's cost and gap."""
    from cnf_cli.plots._source import Ask, choose, instance_name, measured
    from cnf_cli.report.page import number

    found = next((one for one in measured(source) if one.name == name), None)
    if found is None:
        return None
    ids = found.method_ids()
    head = ["instance", "reference cost"]
    for k in ids:
        head += [f"{found.methods[k]} gap %", f"{found.methods[k]} cost"]
    every, rows = found.instances(), []
    for row in choose(found, Ask(_WORST)):
        reference = float(found.reference[row])
        known = reference == reference
        line: list[object] = [instance_name(*every[row], row), number(reference if known else None, ".6g")]
        for k in ids:
            gap = float(found.best_gaps(k)[row])
            line += [number(gap if known else None), number(float(found.costs(k)[row].min()), ".6g")]
        rows.append(line)
    # The gap of the first method leads: it is what the lines are ordered by.
    return found.name, [head[0], *head[2:], head[1]], [[line[0], *line[2:], line[1]] for line in rows]


def _title(evaluation: Manifest, history: Sequence[Manifest], recipe: str) -> str:
    about = next((m.sections["problem"] for m in history if "problem" in m.sections), None)
    what = f"{about['kind'].upper()}{about['n']}" if about else str(evaluation.checks.get("problem", "")).upper()
    day = evaluation.finished[:10]
    return " · ".join(part for part in (what, recipe, f"evaluation {evaluation.key[:12]}", day) if part)


def _made(manifest: Manifest, recipe: str) -> Made:
    from cnf_cli.report.page import Made
    from cnf_cli.stages.table import command_of

    facts = manifest.provenance
    typed = shlex.join(str(word) for word in facts.get("command", ()))
    seconds = facts.get("seconds")
    alone = command_of(manifest, recipe)
    when = moment(manifest.finished)
    return Made(manifest.stage, manifest.key, alone or typed, typed, seconds, when, manifest.sections)


def _machine(history: Sequence[Manifest]) -> dict[str, str]:
    """Versions and machine of the last stage, and of the others where they differ."""
    out: dict[str, str] = {}
    for m in reversed(history):
        facts = m.provenance
        machine = facts.get("machine", {})
        told = {
            "cnf": facts.get("cnf"),
            "source": facts.get("git"),
            "python": facts.get("python"),
            **facts.get("versions", {}),
            "system": machine.get("system"),
            "processor": machine.get("cpu"),
            "cores": machine.get("cores"),
            "engine": facts.get("engine"),
        }
        for name, value in told.items():
            if value is not None and str(value) not in out.get(name, "").split("; "):
                out[name] = f"{out[name]}; {value}" if name in out else str(value)
    return out


STAGE = Stage("report", VERSION, run, title=lambda _: "write the report")
