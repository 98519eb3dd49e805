"""Take a policy of the zoo into the store, byte by byte the same artifact everywhere."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pydantic import Field

from cnf_cli.errors import ArtifactError
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.provenance import provenance
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section
from cnf_cli.store import Manifest, Store
from cnf_cli.zoo.place import PREFIX, names

VERSION = 1


class ZooSection(Section):
    """Which entry, by content."""

    name: str
    digest: str = Field(description="of the entry's weights, as on its card")


def task(name: str) -> Task:
    """The artifact of that entry; its key follows from its name and weights."""
    from cnf_cli.zoo.cards import card

    one = card(name)
    section = ZooSection(name=one.name, digest=one.weights.digest)
    return Task(STAGE, {"zoo": section}, alias=one.alias, command=f"cnf show {one.alias}")


def run(job: Job) -> Result:
    """Writes one model file per policy, in float32; the weights are checked against their card first."""
    from cnf_cli.formats import checkpoint
    from cnf_cli.zoo.cards import card, weight_files

    one = card(job.section("zoo").name)
    files = {}
    for i, path in enumerate(weight_files(one)):
        name = "model.safetensors" if one.models == 1 else f"model-{i}.safetensors"
        tensors, meta = checkpoint.load(path)
        checkpoint.save(job.work / name, tensors, {key: meta[key] for key in ("kind", "problem", "policy")})
        files[name] = job.work / name
    trained = one.training[0]
    job.provenance["trained"] = trained.model_dump(mode="json", exclude={"curve", "sections"})
    checks = {"problem": one.kind, "models": one.models, "instances": trained.instances, "known": one.alias}
    return Result(files, checks)


def take(store: Store, name: str, command: tuple[str, ...] = ()) -> Manifest:
    """The entry's artifact is in the store under its alias.

    Not through a runner: each of several processes may do this on its own, and none waits for another.
    """
    wanted = task(name)
    key = wanted.key({})
    assert wanted.alias is not None
    try:
        found = store.find(key) or _commit(store, key, wanted, command)
        if store.refs().get(wanted.alias) != key:
            store.tag(wanted.alias, key)
    except ArtifactError as error:
        told = f"{wanted.alias} has to be taken into the store to be used: {error.message}"
        raise ArtifactError(told, at=error.at, hint=error.hint) from error
    return found


def key_of(store: Store, text: str, command: tuple[str, ...] = ()) -> str:
    """The full key for an id, prefix or alias; an entry of the zoo is taken into the store first."""
    if text.startswith(PREFIX) and (text.removeprefix(PREFIX) in names() or text not in store.refs()):
        return take(store, text, command).key
    return store.resolve(text)


def _commit(store: Store, key: str, wanted: Task, command: tuple[str, ...]) -> Manifest:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cnf-zoo-") as work:
        job = Job(sections=wanted.sections, inputs={}, work=Path(work))
        result = run(job)
        facts = {**provenance(command, time.monotonic() - started), **job.provenance}
        return store.commit(
            key,
            result.files,
            stage="zoo",
            version=STAGE.version,
            sections=wanted.dumped(),
            inputs={},
            provenance=facts,
            checks=dict(result.checks),
        )


STAGE = Stage("zoo", VERSION, run, title=lambda task: f"take in zoo/{task.dumped()['zoo']['name']}")
