"""Measure an entry of the zoo by the very commands its card lists: each runs as a user would type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnf_cli.cli.context import Context
from cnf_cli.errors import CheckFailed
from cnf_cli.zoo.cards import Card, Gap, card
from cnf_cli.zoo.sizes import others

COUNT, SEED = 1000, 4321
LIBRARY = {"tsp": "tsplib", "cvrp": "cvrplib", "atsp": "atsplib"}


@dataclass(frozen=True)
class Row:
    """One set: what makes it, and what measures on it."""

    set: str
    make: tuple[str, ...]
    evaluate: str
    optional: bool = False
    """Whether there may be no such instances."""
    nodes: int | None = None
    """Where they are not the card's n."""


def rows(one: Card, base: Card, count: int = COUNT) -> Iterator[Row]:
    """Everything a card measures; `base` is the plain policy that the fixed adversarial set is made against."""
    kind, n, augment = one.kind, one.n, one.fixed.augment
    after = f"--with {one.alias} --aug {augment}"
    clean = f"data/{kind}{n}-uniform-{SEED}"
    draw = f"data generate {kind} --n {n} --count {count} --seed {SEED} --dist"
    # Matrices of costs have no map on which nodes could lie otherwise.
    for dist in ("uniform",) if kind == "atsp" else ("uniform", "rotation", "explosion"):
        make, data = _solved(kind, n, f"data/{kind}{n}-{dist}-{SEED}")
        yield Row(dist, (f"{draw} {dist}", *make), f"evaluate --data {data} {after}")
    hard = f"zoo-sets/{base.name}-adversarial"
    attack = f"attack {base.training[0].recipe} --with {base.alias} --data {clean} --count {count} --as {hard}"
    make, data = _solved(kind, n, hard)
    name = f"adversarial (fixed, against {base.alias})"
    yield Row(name, (f"{draw} uniform", attack, *make), f"evaluate --data {data} {after}")
    for size, few in others(one).items():
        large = f"data generate {kind} --n {size} --count {min(count, few)} --seed {SEED} --dist uniform"
        yield Row(f"{size} nodes", (large,), f"evaluate --data data/{kind}{size}-uniform-{SEED} {after}", nodes=size)
    low, high = n // 2, min(2 * n, one.largest or 2 * n)
    library, depot = LIBRARY[kind], int(kind == "cvrp")
    yield Row(
        f"{library} ({low} to {high} nodes)",
        (),
        f"evaluate --bench {library}:all,{low + depot}..{high + depot} {after}",
        optional=True,
    )


def _solved(kind: str, n: int, data: str) -> tuple[tuple[str, ...], str]:
    """How the set gets its reference costs, and the name it then has; most get them while they are evaluated.

    Small TSPs get them with a proof: CP-SAT solved 1000 of 20 nodes in 85 seconds, but not 40 of 50 nodes in 200.
    HGS's default is meant for 100 customers: on 20 of them 100 iterations found what 2000 found, sixty times of sixty;
    on 50 of them 400 iterations ended 0.013% above what 1000 found, which was what the public set's labels say.
    """
    if kind == "tsp" and n <= 20:
        solver = "cpsat"
    elif kind == "cvrp" and n < 100:
        solver = "hgs --param iterations=400"
    else:
        return (), data
    named = f"{data}-solved"
    return (f"label {data} --solver {solver} --as {named}",), named


def measured(
    ctx: Context, name: str, into: Path, bench_dir: Path | None, *, count: int = COUNT, exact: str | None = None
) -> Card:
    """The card with a fresh table of gaps; raises where one differs in its third digit from the artifact `exact`'s."""
    os.environ["CNF_ZOO"] = str(into.absolute())
    one = card(name)
    base = one if one.models == 1 else card(name.rpartition("-")[0])
    gaps: list[Gap] = []
    notes, changed = [], []
    for row in rows(one, base, count):
        for line in row.make:
            _call(ctx, line)
        there = f" --bench-dir {bench_dir}" if bench_dir and row.optional else ""
        told = _call(ctx, row.evaluate + there, optional=row.optional)
        if "error" in told:
            notes.append(f"No public instance has a fitting size: {row.set}.")
            continue
        shown = row.evaluate + (" --bench-dir FOLDER" if there else "")
        command = " && ".join(f"cnf {line}" for line in (*row.make, shown))
        names = tuple(sorted(entry["name"] for entry in told.get("instances", ())))
        gaps += [_gap(row, found, names, command) for found in _whole(told)]
        if exact:
            before = _call(ctx, row.evaluate.replace(f"--with {one.alias}", f"--with {exact}") + there)
            changed += list(_changes(row.set, _whole(before), _whole(told)))
    if changed:
        raise CheckFailed(
            f"{one.weights.dtype} changes gaps of {one.alias} in the third digit: {'; '.join(changed)}",
            hint="pack it without --half",
        )
    if exact:
        notes.append(f"Rounding to {one.weights.dtype} changed none of these gaps in the third digit.")
    return one.model_copy(update={"gaps": tuple(gaps), "notes": tuple(notes)})


def _whole(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of all models together."""
    return [row for row in told["rows"] if row["model"] is None]


def _changes(name: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    for old, new in zip(before, after, strict=True):
        shown = [f"{row['gap_percent']:.3f}" for row in (old, new)]
        if shown[0] != shown[1]:
            yield f"{name} x{new['augment']} {shown[0]}% -> {shown[1]}%"


def _gap(row: Row, found: dict[str, Any], names: tuple[str, ...], command: str) -> Gap:
    return Gap(
        set=row.set,
        instances=found["count"],
        augment=found["augment"],
        cost=found["cost"],
        gap_percent=found["gap_percent"],
        gap_ci95=None if found["gap_ci95"] is None else tuple(found["gap_ci95"]),
        reference=found["reference"],
        names=names,
        nodes=row.nodes,
        command=command,
    )


def _call(ctx: Context, line: str, *, optional: bool = False) -> dict[str, Any]:
    """What the command printed; the command's own talk goes to this one's stderr."""
    ctx.say(f"$ cnf {line}")
    words = [sys.executable, "-m", "cnf_cli", *line.split(), "--json", "--store", str(ctx.store.root)]
    talk = subprocess.DEVNULL if ctx.quiet else None
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=talk, text=True, check=False)  # noqa: S603
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    if done.returncode and not (optional and str(told.get("error", "")).startswith("no instance of")):
        raise CheckFailed(f"`cnf {line}` ended with {done.returncode}", hint="run it alone to see why")
    return told
