"""Looking into the store: ls, show, path, export, tag, untag, du, verify, gc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.errors import CheckFailed
from cnf_cli.store.garbage import KEEP_DAYS

if TYPE_CHECKING:
    from cnf_cli.store import Lineage, Manifest

PANEL = "Artifacts"
Id = Annotated[str, typer.Argument(help="Id, unambiguous prefix, or alias.", autocompletion=complete.aliases)]


def register(app: typer.Typer) -> None:
    """Add the store's commands."""
    for name, function in (
        ("ls", ls),
        ("show", show),
        ("path", path),
        ("export", export),
        ("tag", tag),
        ("untag", untag),
        ("du", du),
        ("verify", verify),
        ("gc", gc),
    ):
        command(app, name, rich_help_panel=PANEL)(function)


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def _bytes(manifest: Manifest) -> int:
    return sum(out.size for out in manifest.outputs.values())


def ls(ctx: Context, stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None) -> None:
    """List artifacts, newest first."""
    from cnf_cli.pipeline.provenance import moment

    if stage is not None:
        _known(stage)
    names: dict[str, list[str]] = {}
    for alias, key in ctx.store.refs().items():
        names.setdefault(key, []).append(alias)
    rows: list[dict[str, Any]] = []
    for manifest in ctx.store.manifests(stage):
        found = {
            "id": manifest.key,
            "stage": manifest.stage,
            "aliases": sorted(names.get(manifest.key, [])),
            "bytes": _bytes(manifest),
            "finished": manifest.provenance.get("finished"),
        }
        rows.append(found)
    ctx.emit({"artifacts": rows})
    shown = [(r["id"][:12], r["stage"], ", ".join(r["aliases"]), size(r["bytes"]), moment(r["finished"])) for r in rows]
    if not rows:
        ctx.say(f"no artifacts{f' of the stage {stage}' if stage else ''} in {ctx.store.root}")
    else:
        ctx.table(("id", "stage", "aliases", "size", "finished"), shown)


def _known(stage: str) -> None:
    from cnf_cli.errors import RecipeError, did_you_mean
    from cnf_cli.stages.table import STAGES

    names = tuple(sorted(one.name for one in STAGES))
    if stage not in names:
        near = did_you_mean(stage.replace("-", "_"), names)
        hint = (f"did you mean '{near}'? " if near else "") + f"stages: {', '.join(names)}"
        raise RecipeError(f"there is no stage '{stage[:60]}'", hint=hint)


def show(ctx: Context, artifact: Id) -> None:
    """Show one artifact: outputs, sections, checks, provenance, and its lineage as a tree."""
    key = ctx.resolve(artifact)
    tree = ctx.store.lineage(key)
    manifest = tree.manifest
    if manifest is None:
        ctx.store.open(key, "")  # raises the error that says what is wrong and what to do
        raise AssertionError
    outputs = {name: {"sha256": out.sha256, "bytes": out.size} for name, out in manifest.outputs.items()}
    ctx.emit(
        {
            "id": key,
            "stage": manifest.stage,
            "version": manifest.version,
            "outputs": outputs,
            "sections": manifest.sections,
            "checks": manifest.checks,
            "provenance": manifest.provenance,
            "lineage": _lineage_json(tree),
        }
    )
    if ctx.json:
        return
    from cnf_cli.cli.recipes import to_toml

    ctx.write(f"{manifest.stage} {key}\n")
    ctx.write("\n".join(_lineage_lines(tree)) + "\n")
    ctx.table(
        ("output", "size", "sha256"), [(n, size(out.size), out.sha256[:16]) for n, out in manifest.outputs.items()]
    )
    ctx.write("\n" + to_toml({**manifest.sections, "checks": manifest.checks, "provenance": manifest.provenance}))


def _lineage_json(tree: Lineage) -> dict[str, Any]:
    made = {name: _lineage_json(child) for name, child in tree.children.items()}
    return {"id": tree.key, "stage": tree.manifest.stage if tree.manifest else None, "inputs": made}


def _lineage_lines(
    tree: Lineage, name: str = "", indent: str = "", last: bool = True, top: bool = True
) -> Iterator[str]:
    what = tree.manifest.stage if tree.manifest else "missing"
    branch = "" if top else indent + ("└── " if last else "├── ")
    yield f"{branch}{name + ': ' if name else ''}{what} {tree.key[:12]}"
    below = "" if top else indent + ("    " if last else "│   ")
    children = list(tree.children.items())
    for i, (child_name, child) in enumerate(children):
        yield from _lineage_lines(child, child_name, below, i == len(children) - 1, False)


def path(
    ctx: Context,
    artifact: Id,
    output: Annotated[str | None, typer.Argument(help="Output name; may be left out if there is only one.")] = None,
) -> None:
    """Print the path of an artifact's file, to read it with other tools."""
    key = ctx.resolve(artifact)
    found = ctx.store.read(key)
    names = sorted(found.outputs) if found else []
    if output is None and len(names) == 1:
        output = names[0]
    file = ctx.store.open(key, output or "")
    ctx.emit({"id": key, "output": output, "path": str(file)}, str(file))


def export(
    ctx: Context,
    artifact: Id,
    folder: Annotated[Path, typer.Argument(help="Folder to copy the files to, or FILE.tar.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Copy an artifact out of the store with its manifest and all it was made from; `cnf import` takes it in again."""
    key = ctx.resolve(artifact)
    written = ctx.store.send(key, folder, overwrite=force)
    top = folder.absolute()
    beside = [p for p in written if p == top / "manifest.json" or top / "lineage" in p.parents]
    files = [str(p) for p in written if p not in beside]
    ctx.say(
        f"with its manifest and history ({len(beside)} more files)" if beside else f"the whole of it is in {folder}"
    )
    ctx.emit({"id": key, "files": files}, "\n".join(files))


def tag(ctx: Context, alias: Annotated[str, typer.Argument(help="The name to give.")], artifact: Id) -> None:
    """Give an artifact a name; named artifacts and what they were made from are never collected."""
    from cnf_cli.errors import RecipeError
    from cnf_cli.zoo.place import PREFIX, names

    if alias.removeprefix(PREFIX) in names() and alias.startswith(PREFIX):
        raise RecipeError(f"{alias} names a policy of this package", hint="choose another name; `cnf zoo ls`")
    key = ctx.resolve(artifact)
    ctx.store.tag(alias, key)
    ctx.emit({"alias": alias, "id": key}, key)


def untag(
    ctx: Context, alias: Annotated[str, typer.Argument(help="The name to take away.", autocompletion=complete.aliases)]
) -> None:
    """Take a name away; the artifact stays until `cnf gc --yes`."""
    ctx.store.untag(alias)
    ctx.emit({"alias": alias, "removed": True}, alias)


def du(ctx: Context) -> None:
    """How much space the store takes, by stage, and how much gc would free."""
    used = ctx.store.du(KEEP_DAYS)
    ctx.emit(
        {
            "objects": used.objects,
            "bytes": used.bytes,
            "by_stage": used.by_stage,
            "work_bytes": used.work_bytes,
            "garbage_bytes": used.garbage_bytes,
        }
    )
    rows = [(f"stage {name}", size(count)) for name, count in sorted(used.by_stage.items())]
    rows += [("all objects", size(used.bytes)), ("unfinished runs", size(used.work_bytes))]
    ctx.table(("what", "size"), [*rows, ("gc would free", size(used.garbage_bytes))])


def verify(ctx: Context, deep: Annotated[bool, typer.Option("--deep", help="Also rehash every byte.")] = False) -> None:
    """Check the store; damaged files are listed and their stages run again when asked for."""
    report = ctx.store.verify(deep)
    found = [{"what": p.what, "path": str(p.path), "artifacts": p.artifacts} for p in report.problems]
    ctx.emit({"checked": report.checked, "deep": deep, "problems": found})
    if report.problems:
        rows = [(p.what, p.path.name[:20], ", ".join(key[:12] for key in p.artifacts)) for p in report.problems]
        ctx.table(("problem", "file", "artifacts"), rows)
        raise CheckFailed(
            f"{len(report.problems)} of {report.checked} checked files are damaged or missing",
            at=str(ctx.store.root),
            hint="run the commands that made the artifacts again: damaged results are never served.",
        )
    ctx.say(f"{report.checked} files checked, all sound" + ("" if deep else " in size; --deep rehashes them"))


def gc(
    ctx: Context,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete.")] = False,
    keep_days: Annotated[float, typer.Option(help="Keep what is younger than this.", min=0)] = KEEP_DAYS,
) -> None:
    """List, or with --yes delete, what no alias reaches."""
    sweep = ctx.store.gc(yes, keep_days)
    found = [{"what": d.what, "path": str(d.path), "bytes": d.size} for d in sweep.removed]
    ctx.emit({"deleted": sweep.deleted, "bytes": sweep.bytes, "removed": found, "notes": sweep.notes})
    ctx.table(("what", "file", "size"), [(d.what, d.path.name[:20], size(d.size)) for d in sweep.removed])
    for note in sweep.notes:
        ctx.say(note)
    kept = f"kept: what an alias reaches, and all of the last {keep_days:g} days"
    done = "freed" if sweep.deleted else "would be freed; `cnf gc --yes` deletes"
    ctx.say(f"{size(sweep.bytes)} in {len(sweep.removed)} files {done} ({kept})")
