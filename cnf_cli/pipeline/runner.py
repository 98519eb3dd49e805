"""Plan, cache, resume and record: everything about running stages that is the same for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnf_cli import interrupt
from cnf_cli.errors import ArtifactError
from cnf_cli.pipeline import ranks
from cnf_cli.pipeline.job import Artifact, Bars, Job, Silent
from cnf_cli.pipeline.provenance import provenance
from cnf_cli.pipeline.stage import Named, Task
from cnf_cli.pipeline.turns import claim, kept
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.store import Input, Manifest, Store

NEW = "not made yet"
"""Why a stage runs that nothing in the store was made for."""


@dataclass(frozen=True)
class Step:
    """One line of a plan."""

    stage: str
    state: str
    """"hit", "miss", or "waits" where an input has to be made first."""
    key: str | None
    why: str


@dataclass
class Runner:
    """Runs tasks against a store."""

    store: Store
    runtime: RuntimeSection = field(default_factory=RuntimeSection)
    bars: Bars = field(default_factory=Silent)
    command: tuple[str, ...] = ()
    on_step: Callable[[Step], None] = lambda _: None
    on_made: Callable[[Manifest], None] = lambda _: None
    """Hears of every artifact that was made or found, the inputs' first."""
    wait: bool = True
    """For another process that works on the same result; else that is an error."""
    _done: dict[int, tuple[Task, Manifest]] = field(default_factory=dict)
    """By the task's place in memory; the task is kept, or a later one could be given the same place."""

    def plan(self, task: Task, *, force: bool = False) -> list[Step]:
        """What `run` would do, in order, without doing it."""
        steps: list[Step] = []
        self._plan(task, steps, force, {})
        return steps

    def _plan(self, task: Task, steps: list[Step], force: bool, seen: dict[int, Manifest | None]) -> Manifest | None:
        if id(task) in seen:
            return seen[id(task)]
        inputs: dict[str, Manifest] = {}
        missing = ""
        for name, source in task.inputs.items():
            found = self._plan(source, steps, False, seen) if isinstance(source, Task) else self._there(source)
            if found is None:
                missing = missing or (source.stage.name if isinstance(source, Task) else name)
            else:
                inputs[name] = found
        if missing:
            steps.append(Step(task.stage.name, "waits", None, f"needs the result of {missing}"))
            return seen.setdefault(id(task), None)
        key = task.key(inputs)
        found = None if force else self.store.find(key)
        why = "forced" if force else "" if found else self._why(task, inputs)
        steps.append(Step(task.stage.name, "hit" if found else "miss", key, why))
        return seen.setdefault(id(task), found)

    def run(self, task: Task, *, force: bool = False, deps: bool = True) -> Manifest:
        """The task's artifact, from the store or made now; its inputs are made first unless `deps` is False."""
        if id(task) in self._done:
            return self._done[id(task)][1]
        inputs: dict[str, Manifest] = {}
        for name, source in task.inputs.items():
            if not isinstance(source, Task):
                inputs[name] = self._there(source)
                continue
            if not deps:
                self._refuse_missing(task, source)
            inputs[name] = self.run(source)
        key = task.key(inputs)
        found = None if force else self._found(key)
        if found is None:
            found = self._turn(task, key, inputs, fresh=force)
        else:
            self.on_step(Step(task.stage.name, "hit", key, ""))
        if task.alias and ranks.rank() == 0 and self.store.refs().get(task.alias) != key:
            self._tag(task.alias, key)
        self._done[id(task)] = task, found
        self.on_made(found)
        return found

    def _there(self, source: Manifest | Named) -> Manifest:
        """An artifact that no task makes."""
        if isinstance(source, Manifest):
            return source
        found = self.store.find(self.store.resolve(source.key))
        if found is None:
            raise ArtifactError(
                f"artifact {source.key} is damaged", hint="`cnf verify`, then run the command that made it again."
            )
        return found

    def _refuse_missing(self, task: Task, source: Task) -> None:
        steps = self.plan(source)
        if steps[-1].state != "hit":
            raise ArtifactError(
                f"{task.stage.name} needs the result of {source.stage.name}, which is not in the store",
                hint=f"`{source.command}` makes it." if source.command else "leave out --no-deps to make it.",
            )

    def _found(self, key: str) -> Manifest | None:
        """The artifact, if rank 0 sees it: ranks that disagree would wait for each other for ever."""
        found = self.store.find(key)
        if ranks.share(found is not None) != (found is not None):
            return self._made_by_rank_0(key) if found is None else None
        return found

    def _turn(self, task: Task, key: str, inputs: Mapping[str, Manifest], *, fresh: bool) -> Manifest:
        """The artifact, made here once no other process works on it, unless that one has made it meanwhile."""
        if ranks.rank() > 0:
            folder = ranks.share("")
            self.on_step(Step(task.stage.name, "miss" if folder else "hit", key, ""))
            if folder and task.stage.distributed:
                task.stage.run(self._job(task, inputs, Path(folder)))
            ranks.wait()
            return self._made_by_rank_0(key)

        def waiting(text: str) -> None:
            self.bars.say(f"{task.stage.name} {key[:12]}: {text} (--no-wait gives up instead)")

        with claim(self.store, key, wait=self.wait, fresh=fresh, waiting=waiting) as work:
            found = None if fresh else self.store.find(key)
            ranks.share("" if found else str(work))
            if found is None:
                self.on_step(Step(task.stage.name, "miss", key, "forced" if fresh else self._why(task, inputs)))
                found = self._make(task, key, inputs, work, fresh=fresh)
            else:
                self.on_step(Step(task.stage.name, "hit", key, ""))
            self.store.drop_work(work.name)
        ranks.wait()
        return found

    def _make(self, task: Task, key: str, inputs: Mapping[str, Manifest], work: Path, *, fresh: bool) -> Manifest:
        job = self._job(task, inputs, work)
        started, spent = time.monotonic(), time.process_time()
        try:
            result = task.stage.run(job)
        except interrupt.Interrupted as stop:
            if kept(work):
                stop.keep()
            raise
        facts = provenance(self.command, time.monotonic() - started)
        facts["made_as"] = task.alias or ""  # a name given by a recipe stays known when another result takes it over
        facts["cpu_seconds"] = round(time.process_time() - spent, 3)
        # Where there are no locks another process may have been faster: the first one to commit wins.
        return (None if fresh else self.store.find(key)) or self.store.commit(
            key,
            result.files,
            stage=task.stage.name,
            version=task.stage.version,
            sections=task.dumped(),
            inputs={name: Input(m.key, m.digest) for name, m in inputs.items()},
            provenance={**facts, **job.provenance},
            checks=dict(result.checks),
        )

    def _job(self, task: Task, inputs: Mapping[str, Manifest], work: Path) -> Job:
        return Job(
            sections=task.sections,
            inputs={name: Artifact(self.store, manifest) for name, manifest in inputs.items()},
            work=work,
            runtime=self.runtime,
            bars=self.bars,
            local=task.local,
        )

    def _made_by_rank_0(self, key: str) -> Manifest:
        found = self.store.find(key)
        if found is None:
            raise ArtifactError(f"rank 0 made no artifact {key[:12]}", hint="all ranks must see the same store.")
        return found

    def _tag(self, alias: str, key: str) -> None:
        """The alias names this artifact; the one that it named keeps a name of its own, so that gc leaves it."""
        aliases = self.store.refs()
        before = aliases.pop(alias, None)
        try:
            if before is not None and before not in aliases.values() and self.store.find(before):
                folder, slash, last = alias.rpartition("/")
                kept = f"{folder}{slash}{last[:51]}-{before[:12]}"  # a name has at most 64 letters
                self.store.tag(kept, before)
                self.bars.say(f"{alias} named {before[:12]} until now, which is kept as {kept}")
            self.store.tag(alias, key)
        except OSError:
            self.bars.say(f"the store is read-only: alias {alias} was not set")

    def _why(self, task: Task, inputs: Mapping[str, Manifest]) -> str:
        """The first part of the key that differs from what was made before for the same purpose; NEW without any.

        That is what has, or was made under, the task's name; for one without a name, what differs in one part only and
        reads the same inputs. Any other artifact of the stage that lies near has nothing to do with it.
        """
        wanted = dict(_parts(task.stage.version, task.dumped(), {n: m.digest for n, m in inputs.items()}))
        best: list[str] | None = None
        named = self.store.refs().get(task.alias) if task.alias else None
        for manifest in self.store.manifests(task.stage.name):
            if task.alias and task.alias != manifest.provenance.get("made_as") and manifest.key != named:
                continue
            digests = {name: entry.digest for name, entry in manifest.inputs.items()}
            have = dict(_parts(manifest.version, manifest.sections, digests))
            differs = [part for part in {**have, **wanted} if have.get(part) != wanted.get(part)]
            if not task.alias and (len(differs) > 1 or any(part.startswith("input ") for part in differs)):
                continue
            if best is None or len(differs) < len(best):
                best, nearest = differs, have
        if best is None:
            return NEW
        if not best:
            return "the stored result is damaged"
        first = best[0]
        more = f" (and {len(best) - 1} more)" if best[1:] else ""
        return f"{first}: {_short(nearest.get(first))} -> {_short(wanted.get(first))}{more}"


def _parts(version: int, sections: Mapping[str, Any], digests: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The parts of a key, named as a user knows them."""
    yield "stage version", version
    for name, value in sections.items():
        yield from _leaves(name, value)
    for name, digest in digests.items():
        yield f"input {name}", digest[:12]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 32 else text[:29] + "..."
