"""`cnf zoo ls|show`: trained policies inside the package; and, for maintainers, `pack`, `measure` and `docs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.bench import BenchDir
from cnf_cli.cli.context import Context, command

if TYPE_CHECKING:
    from cnf_cli.zoo.cards import Card, Gap

Name = Annotated[str, typer.Argument(help="An entry: tsp20, or zoo/tsp20.", autocompletion=complete.zoo)]
Into = Annotated[
    Path | None, typer.Option("--into", help="The zoo's folder; default: this package's.", file_okay=False)
]


def register(app: typer.Typer) -> None:
    """Add the zoo's commands; those that make it are not shown to its users."""
    group = typer.Typer(no_args_is_help=True, help="Trained policies that come with the package.")
    command(group, "ls")(ls)
    command(group, "show")(show)
    command(group, "pack", hidden=True)(pack)
    command(group, "measure", hidden=True)(measure)
    command(group, "docs", hidden=True)(docs)
    app.add_typer(group, name="zoo", rich_help_panel="Artifacts")


def percent(gap: Gap | None) -> str:
    """A gap as a table shows it."""
    return "-" if gap is None else f"{gap.gap_percent:.3f} (x{gap.augment})"


def ls(ctx: Context) -> None:
    """List the policies that come with the package; `--with zoo/NAME` uses one."""
    from cnf_cli.cli.artifacts import size
    from cnf_cli.zoo.cards import cards

    found = cards()
    told = [
        {
            "name": one.alias,
            "problem": one.kind,
            "n": one.n,
            "models": one.models,
            "width": one.policy.get("width"),
            "bytes": one.weights.bytes,
            "clean_gap_percent": clean.gap_percent if (clean := one.gap("uniform")) else None,
            "adversarial_gap_percent": hard.gap_percent if (hard := one.gap("adversarial")) else None,
        }
        for one in found
    ]
    ctx.emit({"zoo": told})
    rows = [
        (o.alias, o.kind, o.n, o.models, o.policy.get("width"), size(o.weights.bytes), *map(percent, _two(o)))
        for o in found
    ]
    ctx.table(("name", "problem", "n", "models", "width", "size", "clean gap %", "adversarial gap %"), rows)
    if not found:
        ctx.say("the zoo is empty")


def _two(one: Card) -> tuple[Gap | None, Gap | None]:
    return one.gap("uniform"), one.gap("adversarial")


def show(ctx: Context, name: Name) -> None:
    """Show one entry's card: how it was trained, on what machine, and what was measured on it, by which commands."""
    from cnf_cli.cli.artifacts import size
    from cnf_cli.pipeline.provenance import moment
    from cnf_cli.stages import zoo
    from cnf_cli.zoo.cards import card, weight_files

    one = card(name)
    weight_files(one)
    key = zoo.task(one.name).key({})
    ctx.emit({"id": key, **one.model_dump(mode="json")})
    if ctx.json:
        return
    ctx.write(
        f"{one.alias}: {one.about}\nartifact {key[:12]}, {size(one.weights.bytes)} of {one.weights.dtype}, checked\n"
    )
    for k, run in enumerate(one.training):
        how = "trained by" if k == 0 else "it started from the result of"
        ctx.write(f"{how}: {run.command}")
        ctx.write(f"  recipe {run.recipe or '-'}, seed {run.seed}, {run.seen}, {run.seconds:,.0f} s,")
        hours = f"{'at most ' if run.core_hours_are == 'at most' else ''}{run.core_hours:.2f} core-hours"
        ctx.write(f"  {hours}, {run.machine['cpu']} ({run.machine['cores']} cores), {run.engine} engine,")
        commit = run.git or "an unknown commit"
        ctx.write(f"  cnf at {commit}, torch {run.versions.get('torch')}, finished {moment(run.finished)}")
    for note in one.notes:
        ctx.write(f"note: {note}")
    for name, public in {g.set: g.names for g in one.gaps if g.names}.items():
        ctx.write(f"{name}: {', '.join(public)}")
    ctx.write("")
    rows = [
        (
            g.set,
            f"x{g.augment}",
            g.instances,
            f"{g.gap_percent:.3f}",
            g.interval,
            g.reference,
        )
        for g in one.gaps
    ]
    ctx.table(("set", "copies", "instances", "gap %", "95% interval", "reference"), rows)
    ctx.write("\nmeasured by:")
    for line in dict.fromkeys(g.command for g in one.gaps):
        ctx.write(f"  {line}")


def pack(
    ctx: Context,
    artifact: Annotated[str, typer.Argument(help="Policy artifact.", autocompletion=complete.aliases)],
    name: Annotated[str, typer.Option("--as", help="The entry's name: tsp20.")],
    into: Into = None,
    recipe: Annotated[str | None, typer.Option(help="What made it; default: recipes/zoo/NAME.toml.")] = None,
    half: Annotated[
        bool, typer.Option("--half", help="float16 on disk; refused where that changes a gap in its third digit.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads the training used; 0 = all cores.", min=0)] = 0,
    only_pack: Annotated[bool, typer.Option("--no-measure", help="Leave the gaps to `cnf zoo measure`.")] = False,
    bench_dir: BenchDir = None,
) -> None:
    """For maintainers: publish an artifact in the zoo, measure its card's gaps, bring docs/zoo.md up to date."""
    from cnf_cli.cli.stage_commands import artifact as named
    from cnf_cli.stages import zoo_pack
    from cnf_cli.zoo.place import HERE

    manifest = named(ctx, artifact)
    assert manifest is not None
    place = into or HERE
    order = zoo_pack.Order(name, place, recipe or f"recipes/zoo/{name}.toml", half, threads)
    made = zoo_pack.pack(ctx.store, manifest, order)
    ctx.say(f"{made.alias}: {made.weights.bytes:,} bytes of {made.weights.dtype}")
    if not only_pack:
        _measure(ctx, name, place, bench_dir, manifest.key if half else None)
    ctx.emit({"name": made.alias, "folder": str(place), "bytes": made.weights.bytes}, made.alias)


def measure(
    ctx: Context,
    name: Name,
    into: Into = None,
    exact: Annotated[str | None, typer.Option(help="The artifact before rounding: no gap may differ.")] = None,
    bench_dir: BenchDir = None,
) -> None:
    """For maintainers: measure the gaps of an entry's card again, on fixed sets, by the commands it lists."""
    from cnf_cli.zoo.place import HERE

    rows = _measure(ctx, name.removeprefix("zoo/"), into or HERE, bench_dir, exact)
    ctx.emit({"gaps": [g.model_dump(mode="json") for g in rows]})


def _measure(ctx: Context, name: str, into: Path, bench_dir: Path | None, exact: str | None) -> tuple[Gap, ...]:
    from cnf_cli.cli.zoo_measure import measured
    from cnf_cli.stages.zoo_pack import save
    from cnf_cli.zoo.place import HERE

    made = measured(ctx, name, into, bench_dir, exact=exact)
    save(made, into)
    if into.resolve() == HERE:
        docs(ctx)
    return made.gaps


def docs(ctx: Context) -> None:
    """For maintainers: write the cards' tables and curves into docs/zoo.md of the source tree."""
    from cnf_cli.pipeline.work_files import write_atomic
    from cnf_cli.plots._zoo import draw
    from cnf_cli.zoo.cards import cards
    from cnf_cli.zoo.pages import FIGURE, fresh
    from cnf_cli.zoo.place import HERE

    page = HERE.parent.parent / "docs" / "zoo.md"
    if not page.exists():
        return
    found = cards()
    write_atomic(page, fresh(page.read_text(encoding="utf-8"), found).encode())
    if any(one.progress() for one in found):
        write_atomic(page.parent / FIGURE, draw(found))
    ctx.say(f"{page.name} is up to date")
