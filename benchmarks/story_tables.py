"""From the story's artifacts to numbers, and from numbers to Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnf_cli.evaluation import statistics as stats
from cnf_cli.formats import dataset
from cnf_cli.pipeline.job import Artifact

Array = NDArray[np.float64]
SETS = {"clean": "clean", "fixed": "fixed adversarial", "white": "white box"}
TITLES = {"instances": "after equal instances", "time": "after equal CPU time"}


@dataclass(frozen=True)
class Run:
    """One rival's training run, where it has one, and its evaluation."""

    rival: str
    trained: Artifact | None
    evaluation: Artifact


@dataclass(frozen=True)
class Gaps:
    """Per-instance gaps in percent on one set: of the best of all models, and of every model alone."""

    best: Array
    plain: Array
    alone: Array
    """(models, b), with all copies."""


def gaps_of(evaluation: Artifact) -> dict[str, Gaps]:
    """Set -> gaps of the evaluation's one method."""
    protocol = evaluation.manifest.sections["protocol"]
    blocks = dataset.load(evaluation.path("evaluation.h5")).blocks
    out = {}
    for s, entry in enumerate(protocol["sets"]):
        own = [block for block in blocks if int(block.extra["set"][0]) == s]
        reference = np.concatenate([block.cost for block in own if block.cost is not None])
        cost = np.concatenate([block.extra["cost_0"] for block in own]).T
        solver = "plain_0" not in own[0].extra
        plain = cost if solver else np.concatenate([block.extra["plain_0"] for block in own]).T
        best, once = (stats.gaps(c.min(0), reference) for c in (cost, plain))
        out[entry["name"]] = Gaps(best, once, np.stack([stats.gaps(c, reference) for c in cost]))
    # The set made against the pretrained policy is its white-box set.
    if protocol["policies"] and "fixed" in out:
        out.setdefault("white", out["fixed"])
    return out


def references(evaluation: Artifact) -> list[str]:
    """Who made the reference costs, and whether they are proved."""
    table = json.loads(evaluation.path("rows.json").read_text(encoding="utf-8"))
    return sorted({row["reference"] for row in table["rows"]})


def numbers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per rival, its seeds taken together."""
    return [_row([r for r in runs if r.rival == name]) for name in dict.fromkeys(r.rival for r in runs)]


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    found = [gaps_of(run.evaluation) for run in runs]
    trained = [run.trained.manifest for run in runs if run.trained]
    first = trained[0] if trained else None
    return {
        "rival": runs[0].rival,
        "models": int(first.checks["models"]) if first else len(found[0]["clean"].alone),
        "defence": first.sections["train"]["defence"] if first else None,
        "instances": int(first.checks["instances"]) if first else 0,
        "cpu_seconds": [m.provenance["curve"][-1].get("cpu_seconds") for m in trained],
        "machine": first.provenance["machine"] if first else None,
        "versions": first.provenance["versions"] if first else None,
        "reference": references(runs[0].evaluation),
        "trained": [m.key for m in trained],
        "evaluations": [run.evaluation.manifest.key for run in runs],
        "gaps": {name: _gap(name, [one[name] for one in found]) for name in found[0]},
        "routing": _routing([run.trained for run in runs if run.trained]),
    }


def _gap(name: str, seeds: Sequence[Gaps]) -> dict[str, Any]:
    """Mean gaps with intervals over instances, of every seed and of the instances' means over seeds.

    Row i of every seed's set comes from the same clean instance, so the mean over seeds is one value per instance.
    """
    alone = [float(one.alone.mean()) for one in seeds]
    return {
        "best": _interval([one.best for one in seeds]),
        "plain": _interval([one.plain for one in seeds]),
        "alone": sum(alone) / len(alone),
    }


def _interval(seeds: Sequence[Array]) -> dict[str, Any]:
    whole, each = stats.bootstrap(np.mean(seeds, 0)), [stats.bootstrap(one) for one in seeds]
    return {
        "mean": whole.mean,
        "ci95": [whole.low, whole.high],
        "seeds": [{"mean": one.mean, "ci95": [one.low, one.high]} for one in each],
    }


def _routing(runs: Sequence[Artifact]) -> dict[str, Any] | None:
    """What the models were given: means over all steps and seeds; None for defences that hand nothing out."""
    found = [one for one in map(_one_routing, runs) if one]
    if not found:
        return None
    out: dict[str, Any] = {"load": [float(v) for v in np.mean([sorted(one["load"]) for one in found], 0)]}
    for name in found[0]:
        if name != "load":
            out[name] = float(np.mean([one[name] for one in found]))
    return out


def _one_routing(run: Artifact) -> dict[str, Any] | None:
    lines = [json.loads(line) for line in run.path("metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if "load_0" not in lines[0]:
        return None
    steps = np.diff([0, *(line["step"] for line in lines)])

    def mean(name: str) -> float:
        return float(np.average([line[name] for line in lines], weights=steps))

    models = range(sum(f"load_{j}" in lines[0] for j in range(64)))
    load = [mean(f"load_{j}") for j in models]
    out: dict[str, Any] = {"load": load}
    for kind in ("clean", "local", "global"):
        share = sum(mean(f"share_{kind}_{j}") * load[j] for j in models) / max(1e-12, sum(load))
        out[kind] = share
    out |= {"overlap": mean("overlap"), "covered": mean("covered")}
    if "router_entropy" in lines[0]:
        out |= {"entropy": mean("router_entropy"), "last_entropy": float(lines[-1]["router_entropy"])}
        out |= {"reward": mean("router_reward"), "reward_std": mean("router_reward_std")}
    return out


def markdown(found: dict[str, Any]) -> str:
    """Tables of gaps with and without copies, and what the models were given, for each plan."""
    seeds = "1 seed" if found["seeds"] == 1 else f"{found['seeds']} seeds"
    parts = [f"### {found['problem']}: {seeds}", f"```sh\n{found['command']}\n```", about(found)]
    for plan, rows in found["plans"].items():
        amount = (
            f"{found['instances']:,} clean instances" if plan == "instances" else f"{found['budget']:g} CPU seconds"
        )
        for key, copies in dict.fromkeys((("best", found["augment"]), ("plain", 1))):
            parts.append(f"**Gap in % at x{copies} {TITLES[plan]} ({amount} for each training run).**")
            parts.append(gap_table(rows, key))
        parts.append(f"**What the models were given, {TITLES[plan]}.**")
        parts.append(routing_table(rows, found["augment"], found["steps"]))
    return "\n\n".join(parts)


def about(found: dict[str, Any]) -> str:
    """How to read the tables, and where they were made."""
    rows = [row for rows in found["plans"].values() for row in rows if row["machine"]]
    solvers = sorted({name for rows in found["plans"].values() for row in rows for name in row["reference"]})
    where = f" Reference: {'; '.join(solvers)}."
    if rows:
        m, v = rows[0]["machine"], rows[0]["versions"]
        where += f" Machine: {m['cpu']}, {m['cores']} cores, torch {v['torch']}."
    return (
        "Mean of per-instance gaps [95% BCa interval over instances, of each instance's mean over seeds] "
        "(lowest to highest mean of a seed). The best of all models counts. All start from the same policy, which the "
        "fixed set attacks; the white-box set attacks the row's own models. CPU seconds are those of one training run, "
        f"without validation, mean over seeds.{where}"
    )


def gap_table(rows: Sequence[dict[str, Any]], key: str) -> str:
    """Gaps of every rival on every set."""
    lines = [["rival", "models", "instances", "CPU s", *SETS.values()]]
    for row in rows:
        spent = [s for s in row["cpu_seconds"] if s is not None]
        told = f"{sum(spent) / len(spent):.{0 if min(spent) > 10 else 1}f}" if spent else "-"
        start = [row["rival"], str(row["models"]), f"{row['instances']:,}" if row["instances"] else "-", told]
        lines.append([*start, *(_cell(row["gaps"].get(name, {}).get(key)) for name in SETS)])
    return table(lines)


def _cell(gap: dict[str, Any] | None) -> str:
    if gap is None:
        return "-"
    means = [one["mean"] for one in gap["seeds"]]
    spread = f" ({min(means):.3f} to {max(means):.3f})" if len(means) > 1 else ""
    return f"{gap['mean']:.3f} [{gap['ci95'][0]:.3f}, {gap['ci95'][1]:.3f}]{spread}"


def routing_table(rows: Sequence[dict[str, Any]], augment: int, steps: dict[str, dict[str, float]]) -> str:
    """What a step costs, rows per model in it, their kinds, how the models differ, and what the router does."""
    head = ["rival", "CPU s per step", "rows per model", "clean %", "local %", "global %", "overlap", "covered %"]
    head += ["entropy", "entropy at the end", "reward", f"fixed x{augment}: one model alone", "best of all"]
    lines = [head]
    for row in rows:
        r, fixed = row["routing"] or {}, row["gaps"]["fixed"]
        share = [f"{100 * r[k]:.0f}" if k in r else "-" for k in ("clean", "local", "global")]
        cells = [f"{steps[row['rival']]['step']:.3f}" if row["rival"] in steps else "-"]
        cells += [" / ".join(f"{v:.0f}" for v in r["load"]) if r else "-"]
        cells += [*share, f"{r['overlap']:.2f}" if r else "-", f"{100 * r['covered']:.0f}" if r else "-"]
        cells += [f"{r[k]:.3f}" if k in r else "-" for k in ("entropy", "last_entropy")]
        cells += [f"{r['reward']:.4f} ± {r['reward_std']:.4f}" if "reward" in r else "-"]
        lines.append([row["rival"], *cells, f"{fixed['alone']:.3f}", f"{fixed['best']['mean']:.3f}"])
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])
