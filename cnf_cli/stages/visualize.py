"""Draw one figure from artifacts, as PNG and SVG, with the words that go with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from cnf_cli import plots
from cnf_cli.pipeline.job import Artifact, Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.pipeline.work_files import write_atomic
from cnf_cli.recipe.sections import Section
from cnf_cli.store import Lineage, Manifest, Store

VERSION = 3


class FigureSection(Section):
    """Which figure, and what of the artifacts it shows."""

    kind: str = Field(description="kind of figure: `cnf visualize --list`")
    count: int = Field(4, ge=1, le=64, description="instances shown")
    instances: tuple[str, ...] = Field((), description="names or numbers of the instances shown; empty = the hardest")
    facts: str = Field("", description="digest of what it shows of provenance, such as times, which is in no input")


def task(
    kind: str,
    artifacts: Sequence[Manifest],
    store: Store,
    *,
    count: int = 4,
    instances: tuple[str, ...] = (),
    alias: str | None = None,
) -> Task:
    """The figure of these artifacts, or of those they were made from where the figure reads only those."""
    module = plots.load(kind)
    read = [one for one in ancestry(store, artifacts) if one.stage in module.READS]
    told = [{name: one.provenance.get(name) for name in module.FACTS} for one in read] if module.FACTS else []
    facts = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest() if told else ""
    section = FigureSection(kind=kind, count=count, instances=instances, facts=facts)
    names = " ".join(one.key[:12] for one in artifacts)
    inputs = {f"artifact-{i:03d}": one for i, one in enumerate(read)}
    return Task(STAGE, {"figure": section}, inputs, alias=alias, command=f"cnf visualize {kind} {names}")


def ancestry(store: Store, artifacts: Sequence[Manifest]) -> list[Manifest]:
    """The artifacts and everything they were made from, each once, what was made first in front."""
    found: dict[str, Manifest] = {}
    for one in artifacts:
        for manifest in _up(store.lineage(one.key)):
            found.setdefault(manifest.key, manifest)
    return list(found.values())


def _up(tree: Lineage) -> Iterator[Manifest]:
    for child in tree.children.values():
        yield from _up(child)
    if tree.manifest is not None:
        yield tree.manifest


def run(job: Job) -> Result:
    """Writes KIND.png, KIND.svg and KIND.json (title, caption, alt text)."""
    section: FigureSection = job.section("figure")
    kind = section.kind
    data = gather(section, [job.inputs[name] for name in sorted(job.inputs)])
    from cnf_cli.plots._style import encode, styled

    module = plots.load(kind)
    with styled():
        figure = module.draw(data)
        made = {extension: encode(figure, extension) for extension in ("png", "svg")}
    title, caption = module.words(data)
    alt = f"{plots.summary(kind)} {caption}"
    thin = getattr(module, "thin", lambda _: False)(data)
    words = {"kind": kind, "title": title, "caption": caption, "alt": alt, "thin": thin}
    made["json"] = json.dumps(words, indent=1).encode()
    files = {}
    for extension, data_bytes in made.items():
        path = job.work / f"{kind}.{extension}"
        write_atomic(path, data_bytes)
        files[path.name] = path
    return Result(files, {"kind": kind, "title": title})


def gather(section: FigureSection, artifacts: Sequence[Artifact]) -> Any:
    """What the figure shows of these artifacts, as arrays; NothingToDraw says what is missing."""
    from cnf_cli.plots._source import Ask, sources

    return plots.load(section.kind).collect(sources(artifacts), Ask(section.count, section.instances))


STAGE = Stage("visualize", VERSION, run, title=lambda task: f"draw {task.dumped()['figure']['kind']}")
