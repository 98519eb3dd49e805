"""`cnf bench list|fetch`, and what `cnf evaluate --bench` shows: public benchmark libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli.context import Context, command

if TYPE_CHECKING:
    from cnf_cli.bench.libraries import Library
    from cnf_cli.formats.item import Item
    from cnf_cli.pipeline.stage import Task

Name = Annotated[str, typer.Argument(help="tsplib, cvrplib or atsplib; tsplib:all, tsplib:kro*,..200")]
BenchDir = Annotated[
    Path | None,
    typer.Option("--bench-dir", envvar="CNF_BENCH_DIR", help="Folder with tsplib/, cvrplib/, atsplib/ in it."),
]


def register(app: typer.Typer) -> None:
    """Add the benchmark commands."""
    group = typer.Typer(no_args_is_help=True, help="Public benchmark libraries: what is there, and getting the rest.")
    command(group, "list")(list_)
    command(group, "fetch")(fetch)
    app.add_typer(group, name="bench", rich_help_panel="Measuring")


def stored(ctx: Context, library: str) -> Path | None:
    """The store's own copy of a library, if there is one."""
    key = ctx.store.refs().get(f"bench/{library}")
    return ctx.store.open(key, "data.h5") if key and ctx.store.find(key) else None


def problem_of_bench(text: str) -> str:
    """The problem of the library that a user named."""
    from cnf_cli.bench.libraries import choose

    return choose(text).library.problem


@dataclass(frozen=True)
class Prepared:
    """A benchmark set, ready to be evaluated."""

    library: str
    title: str
    task: Task
    problem: str
    nodes: int
    """Of the largest instance."""
    middle: int
    """Of the median instance, without the depot."""
    known: str
    bare: tuple[str, ...]
    """Those without coordinates, which a policy that reads places cannot be shown."""


def prepare(ctx: Context, text: str, folder: Path | None, *, bare: bool) -> Prepared:
    """The instances a user asked for, as a task; what is missing, and how to get it, is said.

    `bare`: instances without coordinates stay where the user named instances; else they are left out, which is said.
    """
    from cnf_cli.bench.libraries import choose
    from cnf_cli.bench.sources import gather
    from cnf_cli.stages import bench as stage

    choice = choose(text)
    about = choice.library
    found = gather(choice, folder, stored(ctx, about.name), coordinates=not (bare and choice.named))
    for note in found.notes:
        ctx.say(note)
    if found.missing:
        shown = ", ".join(found.missing[:8]) + (f" and {len(found.missing) - 8} more" if found.missing[8:] else "")
        ctx.say(f"missing: {shown}; `cnf bench fetch {text}` gets them, or --bench-dir FOLDER")
    have = sum(item.cost == item.cost for item in found.items)
    known = "all" if have == len(found.items) else "some" if have else "none"
    title = f"{about.name} ({len(found.items)} instances)"
    task = stage.task(about, found.items)
    sizes = sorted(item.nodes for item in found.items)
    middle = sizes[(len(sizes) - 1) // 2] - (about.problem == "cvrp")
    without = tuple(item.name for item in found.items if item.xy is None and about.problem != "atsp")
    return Prepared(about.name, title, task, about.problem, sizes[-1], middle, known, without)


def list_(ctx: Context, name: Name, bench_dir: BenchDir = None) -> None:
    """A library's instances: size, best known cost, and where each can be read from."""
    from cnf_cli.bench.embedded import embedded, origins
    from cnf_cli.bench.libraries import Known, choose
    from cnf_cli.bench.sources import files_in
    from cnf_cli.formats import dataset

    choice = choose(name)
    choice = replace(choice, patterns=choice.patterns or ("all",))
    about = choice.library
    files = files_in(bench_dir, about) if bench_dir else {}
    place = stored(ctx, about.name)
    kept = {n for block in dataset.load(place).blocks for n in block.names} if place else set()
    inside = embedded(about.problem)
    rows = []
    for one in choice.names([*files, *kept]):
        known = about.known.get(one, Known())
        where = [str(bench_dir)] if one in files else []
        where += ["store"] if one in kept else []
        where += [f"embedded, from {origins()[one]}"] if one in inside else []
        rows.append((one, known.nodes, known.best, "yes" if one in about.paper else "", "; ".join(where) or "not here"))
    keys = ("name", "nodes", "best_known", "in_paper", "where")
    ctx.emit({"library": about.name, "instances": [dict(zip(keys, row, strict=True)) for row in rows]})
    shown = [
        (n, str(size or "-"), "-" if best is None else f"{best:.0f}", p, where) for n, size, best, p, where in rows
    ]
    ctx.table(("instance", "nodes", about.what, "in the paper", "where"), shown)


def fetch(
    ctx: Context,
    name: Name,
    source: Annotated[
        str | None, typer.Option("--from", help="Another address, or a folder; {name} stands for the instance.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Keep what was found even if some are missing.")] = False,
    seconds: Annotated[float, typer.Option(help="Longest time for one file.", min=0.1)] = 60.0,
) -> None:
    """Get a library's instances into the store, checked against the sha256 of every one of them."""
    from cnf_cli.bench.fetch import fetch as get
    from cnf_cli.bench.libraries import choose
    from cnf_cli.pipeline.turns import claim
    from cnf_cli.store import make_key

    about = choose(name).library
    names = [n for n in choose(name).names() if about.known[n].sha256]
    # Verified files wait here for the next attempt; the key only names the folder.
    key = make_key("bench-fetch", 1, {"library": {"name": about.name}}, {})
    with claim(ctx.store, key, waiting=ctx.say) as work:
        with ctx.bars.bar(f"fetching {about.name}", len(names), "files") as bar:
            found, why = get(about, names, work, source, seconds=seconds, on_file=lambda _: bar.advance())
        _take_in(ctx, name, about, names, found, why, partial=partial)
        ctx.store.drop_work(work.name)


def _take_in(
    ctx: Context,
    name: str,
    about: Library,
    names: list[str],
    found: dict[str, Item],
    why: dict[str, str],
    *,
    partial: bool,
) -> None:
    """What was found is in the store, beside what an earlier call fetched: the store's copy only grows."""
    from cnf_cli.bench.sources import known_item
    from cnf_cli.cli.run_stage import Launch
    from cnf_cli.errors import CheckFailed
    from cnf_cli.formats import dataset
    from cnf_cli.formats.item import items_of
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.stages import bench as stage

    if why and not (partial and found):
        first = next(iter(why))
        raise CheckFailed(
            f"{len(why)} of {len(names)} instances could not be fetched: {first} ({why[first]})"
            + (f" and {len(why) - 1} more" if len(why) > 1 else ""),
            hint=f"`cnf bench fetch {name} --from URL|FOLDER`; again later; or --partial. Those found are kept.",
        )
    for missed, text in why.items():
        ctx.say(f"warning: {missed}: {text}")
    place = stored(ctx, about.name)
    known = {item.name: item for item in items_of(dataset.load(place))} if place else {}
    known |= {item.name: known_item(item, about, []) for item in found.values()}
    order = sorted(known.values(), key=lambda item: (item.nodes, item.name))
    Launch(ctx, RuntimeSection()).run(stage.task(about, order, alias=f"bench/{about.name}"))
