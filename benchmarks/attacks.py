"""How hard are attacked instances really? True gaps of one policy on the same instances under several attacks.

    cnf import amdkd-pomo-tsp50.pt --as amdkd/tsp50
    python -m benchmarks.attacks --with amdkd/tsp50 --n 50

Everything is an artifact: the command can be stopped and repeated. A policy for matrices is attacked by ROCO.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.story_tables import Gaps, gaps_of, table
from cnf_cli.cli.run_stage import recipe_for
from cnf_cli.evaluation import plan as assemble
from cnf_cli.evaluation import statistics as stats
from cnf_cli.formats import dataset
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe import Recipe
from cnf_cli.stages import attack, data, evaluate, zoo
from cnf_cli.store import Manifest, Store

NEAR = ("budget.radius=0.05",)
ROCO = ("kind=roco", "steps=10", "width=1", "branch=2", "calls=40")
ATTRIBUTE = {
    "noise 0.05, hardest of 10": ("kind=noise", *NEAR, "tries=10"),
    "noise 0.05": ("kind=noise", *NEAR),
    "released, grid": (),
    "paper mode, grid": ("mode=paper",),
    "bounded 0.05, T = 10, last step": ("steps=10", *NEAR, "keep_best=false"),
    "bounded 0.05, T = 10": ("steps=10", *NEAR),
    "bounded 0.05, T = 10, `hac`": ("steps=10", *NEAR, "objective=hac"),
    "bounded 0.05, T = 10, 5 nodes": ("steps=10", *NEAR, "budget.nodes=5"),
    "bounded 0.05, T = 20": ("steps=20", *NEAR),
}
MATRIX = {name: (*ROCO, f"attacker={name}") for name in ("random", "beam", "ppo", "anneal")}
"""Name -> keys of [attack]. The first of each is what the others are compared with, instance by instance."""


def main(argv: Sequence[str] | None = None) -> str:
    """Attack, label, solve, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--with", dest="policy", required=True, help="the policy: id or alias")
    parser.add_argument("--n", type=int, default=50, help="nodes of the instances")
    parser.add_argument("--count", type=int, default=100, help="instances")
    parser.add_argument("--seed", type=int, default=1234, help="of the instances and the attacks")
    parser.add_argument("--store", type=Path, default=Path("artifacts"))
    asked = parser.parse_args(argv)
    store = Store(asked.store)
    policy = store.find(zoo.key_of(store, asked.policy))
    assert policy is not None
    kind = str(policy.checks["problem"])
    rows, copies = (MATRIX, 16) if kind == "atsp" else (ATTRIBUTE, 8)
    floor = next(iter(rows))
    found = {}
    for name, keys in {"clean": (), **rows}.items():
        numbers = (f"attack.count={asked.count}", f"attack.seed={asked.seed}")
        recipe = recipe_for(kind, asked.n, [*(f"attack.{key}" for key in keys), *numbers])
        found[name] = measured(store, recipe, policy, name != "clean", copies)
        print(f"{name}: done", file=sys.stderr)
    heads = ["x1", f"x{copies}", "cost's rise"]
    lines = [["set", *heads, *(f"{head} above {floor}" for head in heads), "mean move"]]
    least = found[floor]
    for name, one in found.items():
        pairs = [(one.gaps.plain, least.gaps.plain), (one.gaps.best, least.gaps.best), (one.rise, least.rise)]
        own = [told(mine) for mine, _ in pairs]
        above = [told(mine - other, "+") for mine, other in pairs]
        lines.append([name, *own, *(above if name not in ("clean", floor) else ["-"] * 3), f"{one.move:.3f}"])
    text = table(lines)
    print(text)
    return text


@dataclass(frozen=True)
class Found:
    """The policy on one set."""

    gaps: Gaps
    move: float
    """How far nodes or costs moved on average."""
    rise: stats.Array
    """By how much of itself, in percent, the cost of the policy's answer rose while it was attacked."""


def measured(store: Store, recipe: Recipe, policy: Manifest, attacked: bool, copies: int) -> Found:
    """The policy's gaps on the recipe's instances, clean or attacked, and what the attack did."""
    runner = Runner(store, recipe.runtime.model_copy(update={"threads": 1}))
    clean = data.task(recipe.problem, recipe.attack.count, recipe.attack.seed)
    made = runner.run(attack.task(recipe, policy, clean) if attacked else clean)
    one = assemble.Solvers(jobs=1).set_of("set", made, recipe.problem.kind, recipe.problem.n, "none")
    done = runner.run(evaluate.task([one], [("policy", policy)], augment=copies))
    rise = np.zeros(recipe.attack.count)
    if attacked:
        extra = dataset.load(store.open(made.key, "data.h5")).blocks[0].extra
        rise = 100 * (np.asarray(extra["cost_after"], float) / np.asarray(extra["cost_before"], float) - 1)
    return Found(gaps_of(Artifact(store, done))["set"], float(made.checks.get("moved_mean", 0.0)), rise)


def told(values: stats.Array, sign: str = "") -> str:
    """Mean and interval."""
    ci = stats.bootstrap(values)
    return f"{ci.mean:{sign}.2f} [{ci.low:{sign}.2f}, {ci.high:{sign}.2f}]"


if __name__ == "__main__":
    main()
