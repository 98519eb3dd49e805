"""The story in plain words, computed from the numbers: what was attacked, what broke, what was repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cnf_cli.evaluation.statistics import p_value
from cnf_cli.plots._source import percent

Row = Mapping[str, Any]
PROBLEMS = {
    "tsp": "travelling salesman problem",
    "cvrp": "capacitated vehicle routing problem",
    "atsp": "asymmetric travelling salesman problem",
}
CLEAR = 0.05
"""p below which a difference is called clear."""


@dataclass(frozen=True)
class Facts:
    """What the story is told from."""

    problem: str
    nodes: int | None
    rows: Sequence[Row]
    """One per set and method: the ensemble with all its augmentation."""
    comparisons: Sequence[Row] = ()
    trained_on: int | None = None
    attack: Mapping[str, Any] = field(default_factory=dict)
    """The attack's settings, and its checks under `checks`."""


@dataclass(frozen=True)
class Tile:
    """One number before and after."""

    label: str
    before: float
    after: float | None
    note: str


@dataclass(frozen=True)
class Story:
    """A headline, a few large numbers, and paragraphs with headings."""

    headline: str
    tiles: tuple[Tile, ...]
    paragraphs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cast:
    """Which rows play which part; None where nobody does."""

    before: str
    after: str | None
    clean: str | None
    fixed: str | None
    white: str | None
    rows: Mapping[tuple[str, str], Row]

    def row(self, kind: str | None, method: str | None) -> Row | None:
        """The row of that set and method, if its gap is known."""
        found = self.rows.get((kind or "", method or ""))
        return found if found is not None and found["gap_percent"] is not None else None

    def gap(self, kind: str | None, method: str | None) -> float | None:
        found = self.row(kind, method)
        return None if found is None else float(found["gap_percent"])


def cast_of(rows: Sequence[Row]) -> Cast:
    """The first policy is the one before; the last ensemble, or else the last other policy, the one after."""
    policies = [row for row in rows if row["decode"] is not None]
    names = list(dict.fromkeys(row["method"] for row in policies or rows))
    ensembles = [row["method"] for row in policies if row["models"] > 1 and row["method"] != names[0]]
    after = ensembles[-1] if ensembles else names[-1] if len(names) > 1 else None
    sets = list(dict.fromkeys(row["set"] for row in rows))
    white = next((s for s in sets if "white box" in s), None)
    hard = [s for s in sets if s != white and ("adversarial" in s or s.startswith("attack"))]
    clean = [s for s in sets if s != white and s not in hard]
    keyed: dict[tuple[str, str], Row] = {}
    for row in rows:
        keyed.setdefault((row["set"], row["method"]), row)
    return Cast(names[0], after, clean[0] if clean else None, hard[0] if hard else None, white, keyed)


def tell(facts: Facts) -> Story:
    """The story of one evaluation."""
    cast = cast_of(facts.rows)
    parts = [_measured(facts, cast), _attacked(facts, cast), _broke(cast), _repaired(cast), _sure(facts, cast)]
    return Story(_headline(cast), tuple(_tiles(cast)), tuple((head, text) for head, text in parts if text))


def _headline(cast: Cast) -> str:
    clean, hard = cast.gap(cast.clean, cast.before), cast.gap(cast.fixed, cast.before)
    if clean is None and hard is None:
        return f"{cast.before}: no reference is known, so no gap can be told"
    if hard is None or clean is None:
        known = clean if clean is not None else hard
        return f"{cast.before} is {told(known)} above the reference"
    text = f"Attacked, {cast.before} goes from {percent(clean)} to {percent(hard)} above the reference"
    if hard <= clean:
        text = f"The attack did not hurt {cast.before}: {percent(clean)} clean, {percent(hard)} attacked"
    healed = cast.gap(cast.fixed, cast.after)
    if healed is None:
        return text
    if hard > clean and healed < hard:
        return f"{text}; {cast.after} brings it back to {percent(healed)}"
    return f"{text}; {cast.after} is at {percent(healed)}"


def _tiles(cast: Cast) -> list[Tile]:
    out = []
    for kind, label, note in (
        (cast.clean, "clean instances", "nothing was changed"),
        (cast.fixed, "attacked instances", f"made against {cast.before}; the same for both"),
        (cast.white, "attacked itself", "new instances, made against each method's own models"),
    ):
        before = cast.gap(kind, cast.before)
        if before is not None:
            out.append(Tile(label, before, cast.gap(kind, cast.after), note))
    return out


def _measured(facts: Facts, cast: Cast) -> tuple[str, str]:
    what = PROBLEMS.get(facts.problem, facts.problem)
    size = f" with {facts.nodes} nodes" if facts.nodes else ""
    taught = f", trained on {facts.trained_on:,} random instances" if facts.trained_on else ""
    text = f"{cast.before} is a neural solver for the {what}{size}{taught}."
    row = cast.row(cast.clean, cast.before)
    if row is None:
        return "What was measured", text
    text += f" Its tours are compared with those of a real solver ({row['reference']}) on the same instances; the gap"
    text += " says how much longer they are, in percent, best of all its attempts."
    text += f" On {row['count']} clean instances the mean gap is {percent(row['gap_percent'])}{interval(row)}, the"
    text += f" worst {percent(row['worst'])}."
    return "What was measured", text


def _attacked(facts: Facts, cast: Cast) -> tuple[str, str]:
    if not facts.attack or cast.fixed is None:
        return "What was attacked", ""
    checks = facts.attack.get("checks", {})
    steps = facts.attack.get("steps")
    how = f"the {facts.attack.get('kind', '')} attack" + (f", {steps} step{'s' * (steps != 1)}" if steps else "")
    text = f"The same instances were changed to make {cast.before} fail ({how})."
    if checks.get("moved_mean"):
        text += f" Nodes moved {checks['moved_mean']:.2f} map widths on average, {checks['moved_max']:.2f} at most."
    if checks.get("demand_changed_mean"):
        text += f" Demands changed by {checks['demand_changed_mean']:.2f} units on average."
    text += " The real solver solved every changed instance again, so an instance that is harder for everybody does"
    text += " not count as a failure."
    for warning in checks.get("warnings", ()):
        text += f" Mind: {warning}."
    return "What was attacked", text


def _broke(cast: Cast) -> tuple[str, str]:
    clean, hard = cast.gap(cast.clean, cast.before), cast.row(cast.fixed, cast.before)
    if hard is None:
        return "What broke", ""
    gap = float(hard["gap_percent"])
    text = f"On the attacked instances the mean gap of {cast.before} is {percent(gap)}{interval(hard)}"
    if clean is not None and gap > clean:
        times = f", {gap / clean:.1f} times the clean one" if clean > 0 else ", up from none"
        text += f"{times}; the worst instance is {percent(hard['worst'])} off."
    elif clean is not None:
        text += f", not more than the clean {percent(clean)}: nothing broke."
    else:
        text += "."
    return "What broke", text


def _repaired(cast: Cast) -> tuple[str, str]:
    head = "What was repaired"
    clean, hard = cast.gap(cast.clean, cast.before), cast.gap(cast.fixed, cast.before)
    row = cast.row(cast.fixed, cast.after)
    if hard is None or row is None:
        return head, ""
    healed = float(row["gap_percent"])
    made = f"{cast.after}, {row['models']} models hardened together," if row["models"] > 1 else f"{cast.after}"
    text = f"{made} is at {percent(healed)} on the same attacked instances{interval(row)}"
    if clean is not None and hard > clean:
        share = 100 * (hard - healed) / (hard - clean)
        if healed < hard:
            text += f": {min(share, 100):.0f}% of the damage is undone" + (
                ", and more, it is better than the other was before the attack" if share > 100 else ""
            )
        else:
            text += ": none of the damage is undone"
    text += "."
    after_clean = cast.gap(cast.clean, cast.after)
    if clean is not None and after_clean is not None:
        change = after_clean - clean
        price = "nothing is lost" if change <= 0 else f"the price is {points(change)}"
        text += f" On clean instances {price}: {percent(after_clean)}, where {cast.before} has {percent(clean)}."
    own = cast.gap(cast.white, cast.after)
    if own is not None:
        text += f" Attacked itself, model by model, it is at {percent(own)}."
    return head, text


def _sure(facts: Facts, cast: Cast) -> tuple[str, str]:
    told = []
    for pair in facts.comparisons:
        if {pair["a"], pair["b"]} != {cast.before, cast.after} or pair["set"] not in (cast.clean, cast.fixed):
            continue
        p = pair["p_holm"]
        where = "clean" if pair["set"] == cast.clean else "attacked"
        if p is None:
            told.append(f"on {where} instances there are too few to tell")
        elif p < CLEAR:
            told.append(f"on {where} instances it is clear ({p_value(p)})")
        else:
            told.append(f"on {where} instances it may be chance ({p_value(p)})")
    if not told:
        return "Is the difference real?", ""
    text = f"Is the difference between {cast.before} and {cast.after} more than luck? By a paired test over the "
    text += "instances, corrected for asking more than once: " + "; ".join(told) + "."
    row = cast.row(cast.clean, cast.before) or cast.row(cast.fixed, cast.before)
    if row is not None and not row["proved"]:
        text += " The reference tours are not proved optimal, so true gaps may be slightly larger."
    return "Is the difference real?", text


def told(value: float | None) -> str:
    """A gap, if it is known."""
    return "unknown" if value is None else percent(value)


def points(value: float) -> str:
    """A difference of two percentages."""
    return f"{value:.2f} percentage point{'s' * (f'{value:.2f}' != '1.00')}"


def interval(row: Row) -> str:
    """The 95% interval in brackets, if there is one."""
    if not row.get("gap_ci95"):
        return ""
    low, high = row["gap_ci95"]
    return f" (95% interval {percent(low)} to {percent(high)})"
