"""Promise 7: gc removes only the dead, against a model that is two dictionaries."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cnf_cli.store import Manifest, Store, disk
from tests.reliability.conftest import MEMORY
from tests.reliability.store_kit import Killed, calls, content, fail_at, key_of, put, temps

NUMBERS = st.integers(0, 7)
ALIASES = st.sampled_from(["a", "b", "c/d", "c/e/f"])


class Model(RuleBasedStateMachine):
    """Artifact n may be made from smaller ones; the model knows what is committed, lost and named."""

    @initialize()
    def start(self) -> None:
        disk.FAN = 1
        self.place = Path(tempfile.mkdtemp(dir=MEMORY))
        self.store = Store(self.place / "store")
        self.made: dict[str, Manifest] = {}
        self.bytes: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.lost: set[str] = set()  # digests of deleted blobs

    def teardown(self) -> None:
        disk.FAN = 256
        if hasattr(self, "place"):
            shutil.rmtree(self.place)

    def parents(self, mask: int) -> dict[str, Manifest]:
        """Some of the intact artifacts, chosen by the bits of `mask`."""
        good = [key for key in sorted(self.made) if self.intact(key)]
        return {f"in{i}": self.made[key] for i, key in enumerate(good) if mask >> i & 1}

    def intact(self, key: str) -> bool:
        return key in self.made and not self.lost & {out.sha256 for out in self.made[key].outputs.values()}

    @rule(n=NUMBERS, mask=st.integers(0, 7), alias=st.none() | ALIASES)
    def commit(self, n: int, mask: int, alias: str | None) -> None:
        made = put(self.store, n, self.place / "source", self.parents(mask))
        self.made[made.key], self.bytes[made.key] = made, content(n)
        self.lost -= {out.sha256 for out in made.outputs.values()}
        if alias:
            self.refs[alias] = made.key
            self.store.tag(alias, made.key)

    @rule(n=NUMBERS, k=st.integers(1, 45))
    def crash(self, n: int, k: int) -> None:
        """A commit dies before its k-th system call: the artifact is there or not, nothing else changes."""
        try:
            with calls(fail_at(k, Killed(), forever=True)):
                put(self.store, n, self.place / "source")
        except Killed:
            pass
        found = self.store.find(key_of(n))
        if found:
            self.made[found.key], self.bytes[found.key] = found, content(n)
        self.lost = {sha256 for sha256 in self.lost if not self.store.blob(sha256).exists()}

    @precondition(lambda self: self.made)
    @rule(alias=ALIASES, pick=st.integers(0, 100))
    def tag(self, alias: str, pick: int) -> None:
        good = [key for key in sorted(self.made) if self.intact(key)]
        if good:
            self.refs[alias] = good[pick % len(good)]
            self.store.tag(alias, self.refs[alias])

    @precondition(lambda self: self.refs)
    @rule(pick=st.integers(0, 100))
    def untag(self, pick: int) -> None:
        alias = sorted(self.refs)[pick % len(self.refs)]
        del self.refs[alias]
        self.store.untag(alias)

    @precondition(lambda self: self.made)
    @rule(pick=st.integers(0, 100))
    def lose(self, pick: int) -> None:
        """A blob vanishes from the disk."""
        held = sorted({out.sha256 for made in self.made.values() for out in made.outputs.values()} - self.lost)
        if held:
            self.lost.add(held[pick % len(held)])
            self.store.blob(held[pick % len(held)]).unlink()

    @rule(data=st.data())
    def lose_manifest(self, data: st.DataObject) -> None:
        if self.made:
            key = data.draw(st.sampled_from(sorted(self.made)))
            if key not in self.refs.values():
                del self.made[key]
                self.store.manifest(key).unlink()

    @rule(delete=st.booleans())
    def gc(self, delete: bool) -> None:
        """Exactly what the aliases reach is left, and a trial run says the same and touches nothing."""
        live, todo = set(), list(self.refs.values())
        while todo:
            key = todo.pop()
            if key in self.made and key not in live:
                live.add(key)
                todo += [i.key for i in self.made[key].inputs.values()]
        sweep = self.store.gc(delete=delete, grace=0)
        dead = {dead.path for dead in sweep.removed}
        assert {p.stem for p in dead if p.suffix == ".json"} == self.made.keys() - live
        kept = {out.sha256 for key in live for out in self.made[key].outputs.values()} - self.lost
        if delete:
            self.made = {key: made for key, made in self.made.items() if key in live}
            assert {
                p.name for p, _ in disk.walk(self.store.root / "objects") if p not in temps(self.store.root)
            } == kept
            named = {out.sha256 for made in self.made.values() for out in made.outputs.values()}
            self.lost &= named
        else:
            assert not kept & {p.name for p in dead}

    @rule()
    def young(self) -> None:
        """Within the grace nothing is removed."""
        assert not self.store.gc(delete=True).removed

    @invariant()
    def agrees(self) -> None:
        """The store shows what the model holds: intact artifacts with their bytes, the lost ones as misses."""
        if not hasattr(self, "store"):
            return
        assert self.store.refs() == self.refs
        assert {m.key for m in self.store.manifests()} == self.made.keys()
        for key, made in self.made.items():
            found = self.store.find(key)
            assert found == (made if self.intact(key) else None)
            if found:
                for name, data in self.bytes[key].items():
                    assert self.store.open(key, name).read_bytes() == data
        report = self.store.verify(deep=True)
        broken = {key for key in self.made if not self.intact(key)}
        assert {key for p in report.problems for key in p.artifacts} == broken


def test_gc_removes_only_the_dead() -> None:
    """40 random histories of 30 steps."""
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.slow
def test_gc_removes_only_the_dead_at_length() -> None:
    """200 random histories of 50 steps (or as many as CNF_HISTORIES says)."""
    runs = int(os.environ.get("CNF_HISTORIES", "200"))
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=runs, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
