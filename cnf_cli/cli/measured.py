"""Evaluations as people and programs read them: a table, CSV, LaTeX, Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cnf_cli.cli.context import Context

if TYPE_CHECKING:
    from cnf_cli.store import Manifest

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
_VERDICTS = 12
CSV_KEYS = (
    "set", "method", "models", "model", "augment", "decode", "count", "cost", "reference_cost", "gap_percent",
    "gap_low", "gap_high", "p50", "p95", "worst", "share_not_worse", "proved", "reference", "seconds",
)  # fmt: skip


def read(ctx: Context, manifest: Manifest) -> dict[str, Any]:
    """What an evaluation artifact says, with the times of the run that made it."""
    found: dict[str, Any] = json.loads(ctx.store.open(manifest.key, "rows.json").read_text(encoding="utf-8"))
    spent = {(t["set"], t["method"]): t["seconds"] for t in manifest.provenance.get("timings", ())}
    for row in found["rows"]:
        # One pass gives every model's costs with and without copies: its time belongs to the row of all of it.
        full = row["model"] is None and row["augment"] == (found["protocol"]["augment"] if row["decode"] else 1)
        row["seconds"] = spent.get((row["set"], row["method"])) if full else None
    where = {"device": manifest.provenance.get("device"), "engine": manifest.provenance.get("engine")}
    return {"id": manifest.key, **found, **where}


def main_table(rows: Sequence[dict[str, Any]], per_model: bool) -> Table:
    """One line per set, method and effort; costs with five digits, gaps in percent."""
    head = (
        "set",
        "method",
        "aug",
        "count",
        "cost",
        "gap %",
        "95% interval",
        "p50",
        "p95",
        "worst",
        "<= ref %",
        "seconds",
    )
    lines = []
    for row in rows:
        if row["model"] is not None and not per_model:
            continue
        method = row["method"] + ("" if row["model"] is None else f" model {row['model']}")
        interval = "-" if row["gap_ci95"] is None else "{} to {}".format(*map(percent, row["gap_ci95"]))
        gaps = [percent(row[key]) for key in ("gap_percent", "p50", "p95", "worst")]
        share = "-" if row["share_not_worse"] is None else f"{100 * row['share_not_worse']:.1f}"
        copies = f"x{row['augment']}" if row["decode"] else "-"
        spent = "-" if row["seconds"] is None else f"{row['seconds']:.4g}"
        lines.append(
            (row["set"], method, copies, row["count"], number(row["cost"]), gaps[0], interval, *gaps[1:], share, spent)
        )
    return head, lines


def number(value: float | None) -> str:
    """A cost: whole numbers whole, others with six digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1e5 or value == round(value) else f"{value:.6g}"


def percent(value: float | None) -> str:
    """A gap, with its sign where it is negative."""
    return "-" if value is None else f"{value:.3f}"


def show(ctx: Context, told: dict[str, Any], tables: Sequence[Table], style: str | None) -> None:
    """The evaluation on stdout in the asked-for style; notes and verdicts on stderr."""
    for text in dict.fromkeys(_against_itself(told["rows"])):
        ctx.note(text)
    if style:
        ctx.write(STYLES[style](told, tables), end="")
        return
    ctx.emit(told)
    for head, lines in tables:
        ctx.table(head, lines)
        if not ctx.json and len(tables) > 1:
            ctx.write("")
    for name, reference in dict.fromkeys((row["set"], row["reference"]) for row in told["rows"]):
        ctx.say(f"reference of {name}: {reference}")
    for pair in told["comparisons"][:_VERDICTS]:
        ctx.say(pair["verdict"])
    if len(told["comparisons"]) > _VERDICTS:
        ctx.say(f"and {len(told['comparisons']) - _VERDICTS} more comparisons: --json prints all")


def _against_itself(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for every solver that made the reference which its own row is measured against."""
    for row in rows:
        makers = row["reference"].partition(",")[0].split(" + ")
        if row["method"] in makers:
            told = f"{row['method']} made the reference of {row['set']} too: its row compares it with its own answers"
            yield f"{told}; --reference NAME asks another solver (`cnf solvers`)"


def _csv(told: dict[str, Any], _: Sequence[Table]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_KEYS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in told["rows"]:
        low, high = row["gap_ci95"] or (None, None)
        writer.writerow({**row, "gap_low": low, "gap_high": high})
    return out.getvalue()


def _markdown(_: dict[str, Any], tables: Sequence[Table]) -> str:
    parts = []
    for head, lines in tables:
        rule = "|" + "|".join(["---"] * len(head)) + "|"
        body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in (head, *lines)]
        parts.append("\n".join([body[0], rule, *body[1:]]) + "\n")
    return "\n".join(parts)


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {c: "\\" + c for c in "&%$#_{}"} | {"<": "$<$", ">": "$>$"}


def tex(text: object) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_TEX.get(c, c) for c in str(text)).replace("$<$=", r"$\leq$")


def _latex(_: dict[str, Any], tables: Sequence[Table]) -> str:
    parts = []
    for head, lines in tables:
        layout = "".join("l" if any(_worded(line[i]) for line in lines) else "r" for i in range(len(head)))
        rows = [" & ".join(tex(cell) for cell in line) + r" \\" for line in (head, *lines)]
        body = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
        parts.append("\n".join([*body, r"\end{tabular}"]) + "\n")
    return "\n".join(parts)


def _worded(cell: object) -> bool:
    return any(c.isalpha() for c in str(cell))


STYLES: dict[str, Callable[[dict[str, Any], Sequence[Table]], str]] = {
    "csv": _csv,
    "markdown": _markdown,
    "latex": _latex,
}
