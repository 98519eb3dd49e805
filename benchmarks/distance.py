"""What it is worth that a policy sees distances: the same training with each bias of `[policy]`, and with all of them.

    python -m benchmarks.distance [--n 20] [--instances 100000] [--seeds 1] [--designs plain all] [--out distance]

Every design is trained on equally many instances by the recipe's preference loss; the table has the CPU time that took.
Those with labels learn from `--labelled` maps that `--labeller` solved, whose time is told apart: labels are made once.
Then each is measured, greedy with x8 copies, on fresh uniform maps, on rotated and exploded ones, and on maps that were
made hard for `--victim`, an entry of the zoo without biases, against the reference solver. Runs are kept in OUT/store:
a command that was cut off goes on where it stopped, and one with more designs or seeds adds to what there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Keys = dict[str, Any]
BIASES = ("pointer_bias", "glimpse_bias", "encoder_bias")
SHIFTS = ("uniform", "rotation", "explosion")
LABELS = "labels"
TEST_SEED, LABEL_SEED = 8642, 9753
"""Apart from the seeds that trainings, their validation sets and the zoo's cards draw from."""


def designs() -> dict[str, tuple[Keys, Keys]]:
    """Name -> keys of [policy], keys of [pretrain]."""
    each: dict[str, tuple[Keys, Keys]] = {bias.removesuffix("_bias"): ({bias: True}, {}) for bias in BIASES}
    everything = dict.fromkeys(BIASES, True)
    slowly = {"labels": LABELS, "label_share": 0.5, "label_end": 0.2, "rollout_weight": 20.0}
    return {
        "plain": ({}, {}),
        **each,
        "all": (everything, {}),
        "plain, labels": ({}, {"labels": LABELS}),
        "all, labels": (everything, {"labels": LABELS}),
        "all, labels then both": (everything, slowly),
    }


class Bench:
    """The runs of one command, in one store."""

    def __init__(self, args: argparse.Namespace) -> None:
        from cnf_cli.pipeline.runner import Runner
        from cnf_cli.recipe.sections import RuntimeSection
        from cnf_cli.stages import zoo
        from cnf_cli.store import Store

        self.args = args
        self.store = Store(Path(args.out) / "store")
        self.runner = Runner(self.store, RuntimeSection(threads=args.threads))
        self.victim = zoo.take(self.store, args.victim)

    def label(self) -> None:
        """The maps to imitate on are in the store under their alias."""
        from cnf_cli.stages import data, label

        drawn = data.task(self.recipe({}).problem, self.args.labelled, LABEL_SEED)
        made = self.runner.run(label.task(drawn, self.args.labeller, local={"jobs": self.args.threads}))
        self.store.tag(LABELS, made.key)
        spent = float(made.provenance["solver_seconds"]) / 60
        print(f"{self.args.labelled} labels by {self.args.labeller}: {spent:.1f} minutes", file=sys.stderr, flush=True)

    def recipe(self, keys: Keys, seed: int = 1, training: Keys | None = None) -> Any:
        """The training of one design."""
        from cnf_cli.recipe.load import finish

        total = self.args.instances
        pretrain = {"instances": total, "batch_size": 64, "lr": self.args.lr, "loss": "preference", "decay_last": 0.3}
        pretrain |= {"epoch_instances": max(1, total // 10), "validation_count": 200, "seed": seed}
        tables: dict[str, Keys] = {
            "problem": {"kind": self.args.problem, "n": self.args.n},
            "policy": {"width": self.args.width, **keys},
            "pretrain": pretrain | (training or {}),
            "attack": {"count": self.args.count},
        }
        return finish("distance", tables, {})

    def trained(self, name: str) -> list[Any]:
        """The design's policies, one for each seed."""
        from cnf_cli.stages import pretrain

        made = []
        for seed in range(1, self.args.seeds + 1):
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
            policy, training = designs()[name]
            if training:
                self.label()
            made.append(self.runner.run(pretrain.task(self.recipe(policy, seed, training))))
        return made

    def sets(self) -> Iterator[tuple[str, Any]]:
        """Every set's name and its labelled data."""
        from cnf_cli.solvers.run import default_solver
        from cnf_cli.stages import attack, data, label

        recipe = self.recipe({})
        problem, local = recipe.problem, {"jobs": self.args.threads}
        solver = default_solver(problem.kind, problem.n + 1)
        for dist in SHIFTS:
            drawn = data.task(problem.model_copy(update={"dist": dist}), self.args.count, TEST_SEED)
            yield dist, label.task(drawn, solver, local=local)
            if dist == "uniform":
                hard = attack.task(recipe, self.victim, drawn)
                yield f"hard for {self.args.victim}", label.task(hard, solver, local=local)

    def gaps(self, named: dict[str, list[Any]]) -> dict[str, dict[str, list[float]]]:
        """Set -> design -> the gap of each seed's policy."""
        from cnf_cli.stages import evaluate

        found: dict[str, dict[str, list[float]]] = {}
        policies = [(f"{name} {k}", made) for name, several in named.items() for k, made in enumerate(several)]
        for title, reference in self.sets():
            task = evaluate.task([evaluate.SetOf(title, reference)], policies, augment=8)
            rows = json.loads(self.store.open(self.runner.run(task).key, "rows.json").read_text())["rows"]
            for row in rows:
                if row["model"] is None and row["augment"] == 8:
                    design = row["method"].rsplit(" ", 1)[0]
                    found.setdefault(title, {}).setdefault(design, []).append(float(row["gap_percent"]))
        return found


def table(named: dict[str, list[Any]], found: dict[str, dict[str, list[float]]]) -> str:
    """Markdown; with several seeds their mean, then lowest to highest."""
    rows = [f"| design | CPU minutes | {' | '.join(found)} |", "|---|---|" + "---|" * len(found)]
    for name, several in named.items():
        minutes = statistics.mean(float(made.provenance["curve"][-1]["cpu_seconds"]) / 60 for made in several)
        cells = []
        for by_design in found.values():
            gaps = by_design[name]
            spread = f" ({min(gaps):.3f} to {max(gaps):.3f})" if len(gaps) > 1 else ""
            cells.append(f"{statistics.mean(gaps):.3f}{spread}")
        rows.append(f"| {name} | {minutes:.1f} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default="tsp", choices=("tsp", "cvrp"))
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--instances", type=int, default=100_000, help="to train on, the same for every design")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each design")
    parser.add_argument("--designs", nargs="*", default=[], choices=list(designs()), help="only these")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--count", type=int, default=500, help="instances of each test set")
    parser.add_argument("--labelled", type=int, default=10_000, help="maps with labels")
    parser.add_argument("--labeller", default="elkai", help="who solves them; fast_tsp's tours depend on the machine")
    parser.add_argument("--victim", default="", help="whose adversarial maps; default: the zoo's for that size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="distance", help="folder for the table and the runs")
    args = parser.parse_args(given)
    args.victim = args.victim or f"zoo/{args.problem}{args.n}"
    return args


def main(given: Sequence[str] | None = None) -> None:
    """Print the table and write it."""
    from cnf_cli.pipeline.work_files import write_atomic

    args = arguments(given)
    bench = Bench(args)
    named = {name: bench.trained(name) for name in args.designs or designs()}
    text = table(named, bench.gaps(named))
    write_atomic(Path(args.out) / "table.md", text.encode())
    print(text, end="")


if __name__ == "__main__":
    main()
