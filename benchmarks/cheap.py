"""What makes training cheaper: the same network trained in several ways for the same CPU time.

    python -m benchmarks.cheap [--problem tsp] [--n 20] [--minutes 10] [--seeds 1] [--widths 64 128] [--out cheap]
    python -m benchmarks.cheap --problem cvrp --init zoo/cvrp20 --copies 8 --variants preference "leader 40"

Every variant is the baseline with a few keys of [pretrain] changed, at the first of `--widths`; at the others only the
baseline and the last of `--variants` are run. A short run (`--calibrate` of the time) says what
an instance costs it, and so how many fit into `--minutes` of CPU time (all threads, solvers for labels included,
validation not); `--instances` gives all variants equally many instead. With `--init` all of them go on from an entry
of the zoo, at its width. The gap is greedy, with `--copies` of each instance, on one validation set, against the
reference solver. Writes table.md, curves.png and curves.svg; runs are kept in OUT/store: a command that was cut off
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Keys = dict[str, Any]
BATCH = 64
EPOCHS = 20
FREE = ("schedule", "decay_factor", "warmup", "lr", "leader_weight")
"""Keys that do not change what an instance costs."""


def variants(n: int, instances: int) -> dict[str, Keys]:
    """Name -> what differs from the baseline in a run of that many instances."""
    return {
        "baseline": {},
        "cosine": {"schedule": "cosine", "decay_factor": 0.01},
        "linear": {"schedule": "linear", "decay_factor": 0.01},
        "warm-up": {"warmup": instances // 50},
        "rate 6e-4": {"lr": 6e-4},
        "batch 32": {"batch_size": BATCH // 2},
        "batch 128": {"batch_size": BATCH * 2},
        "few starts": {"early_starts": 8, "early_share": 0.5},
        "sizes": {"sizes": [max(4, n // 2), n]},
        "warm start": {"warm_start": instances // 20},
        "leader": {"loss": "leader"},
        "leader 40": {"loss": "leader", "leader_weight": 40.0},
        "preference": {"loss": "preference"},
        "preference, rate 6e-4": {"loss": "preference", "lr": 6e-4},
        "preference, rate 1.2e-3": {"loss": "preference", "lr": 1.2e-3},
        "preference, cosine": {"loss": "preference", "schedule": "cosine", "decay_factor": 0.01},
    }


def priced_as(name: str, n: int) -> str:
    """The first variant whose instances cost the same: measuring it again would only add noise."""

    def costly(keys: Keys) -> Keys:
        return {k: v for k, v in keys.items() if k not in FREE and (k, v) != ("loss", "leader")}

    known = variants(n, 100 * BATCH)
    return next(other for other, keys in known.items() if costly(keys) == costly(known[name]))


@dataclass
class Curve:
    """One variant: for each seed the instances, CPU minutes and gaps of its validations."""

    name: str
    keys: Keys
    instances: list[list[float]] = field(default_factory=list)
    minutes: list[list[float]] = field(default_factory=list)
    gaps: list[list[float]] = field(default_factory=list)

    def minutes_to(self, gap: float) -> list[float | None]:
        """When each seed first was at that gap or below."""
        pairs = [zip(m, g, strict=True) for m, g in zip(self.minutes, self.gaps, strict=True)]
        return [next((minute for minute, now in pair if now <= gap), None) for pair in pairs]


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
        self.start = zoo.take(self.store, args.init) if args.init else None
        self.reference = self._reference()

    def _recipe(self, seed: int, instances: int, keys: Keys, width: int, *, watched: bool) -> Any:
        from cnf_cli.recipe.load import finish

        base: Keys = {"batch_size": BATCH, "lr": self.args.lr, "decay_last": 0.2, "seed": seed, "instances": instances}
        base |= {"epoch_instances": max(1, instances // EPOCHS), "validation_count": self.args.validation}
        base |= {"validation_augment": self.args.copies}
        base |= {} if watched else {"epoch_instances": instances, "validation_count": 0}
        problem = {"kind": self.args.problem, "n": self.args.n}
        return finish("cheap", {"problem": problem, "policy": {"width": width}, "pretrain": {**base, **keys}}, {})

    def _reference(self) -> Any:
        """The validation set with reference costs, so that gaps follow from the key."""
        from cnf_cli.solvers.run import default_solver
        from cnf_cli.stages import data, label

        problem = self._recipe(0, BATCH, {}, self.args.widths[0], watched=False).problem
        drawn = data.task(problem, self.args.validation, 4321)
        local = {"jobs": self.args.threads}
        return self.runner.run(label.task(drawn, default_solver(problem.kind, problem.n), local=local))

    def run(self, seed: int, instances: int, name: str, width: int, *, watched: bool = True) -> Any:
        """The manifest of a variant trained on that many instances."""
        from cnf_cli.stages import pretrain

        keys = variants(self.args.n, instances)[name]
        recipe = self._recipe(seed, instances, keys, width, watched=watched)
        return self.runner.run(pretrain.task(recipe, self.start, self.reference if watched else None))

    def price(self, name: str, instances: int, width: int) -> float:
        """CPU seconds per instance of a variant, from a short run with all of its phases."""
        made = self.run(1, instances, name, width, watched=False)
        return float(made.provenance["curve"][-1]["cpu_seconds"]) / instances

    def budget(self, name: str, width: int) -> int:
        """How many instances the variant may see."""
        if self.args.instances:
            return int(self.args.instances)
        seconds = 60 * self.args.minutes
        rough = self.price("baseline", 10 * BATCH, width)
        short = max(10 * BATCH, int(self.args.calibrate * seconds / rough) // BATCH * BATCH)
        return max(BATCH, int(seconds / self.price(priced_as(name, self.args.n), short, width)) // BATCH * BATCH)

    def curve(self, name: str, width: int) -> Curve:
        """All seeds of one variant."""
        instances = self.budget(name, width)
        main = width == self.args.widths[0]
        found = Curve(name if main else f"{name}, width {width}", variants(self.args.n, instances)[name])
        for seed in range(1, self.args.seeds + 1):
            print(f"{found.name}, seed {seed}: {instances:,} instances", file=sys.stderr, flush=True)
            lines = _lines(self.store, self.run(seed, instances, name, width))
            found.instances.append([line["instances"] for line in lines])
            found.minutes.append([line["cpu_seconds"] / 60 for line in lines])
            found.gaps.append([line["gap_percent"] for line in lines])
        return found


def _lines(store: Any, made: Any) -> list[dict[str, Any]]:
    """A run's validations, each with the CPU time spent until then."""
    import json

    text = store.open(made.key, "metrics.jsonl").read_text().splitlines()
    beside = {line["instances"]: line for line in made.provenance["curve"]}
    return [{**beside[line["instances"]], **line} for line in map(json.loads, text)]


def table(curves: Sequence[Curve]) -> str:
    """Markdown; with several seeds their mean, then lowest to highest."""
    import statistics

    goal = statistics.mean(gaps[-1] for gaps in curves[0].gaps)
    rows = [
        f"| variant | keys | instances | CPU minutes | gap % | CPU minutes to {goal:.3f}% |",
        "|---|---|---|---|---|---|",
    ]
    for curve in curves:
        keys = ", ".join(f"`{k} = {v!r}`".replace("'", '"') for k, v in curve.keys.items()) or "-"
        ends, spent = ([values[-1] for values in series] for series in (curve.gaps, curve.minutes))
        arrived = [minute for minute in curve.minutes_to(goal) if minute is not None]
        quick = f"{statistics.mean(arrived):.2f}" if arrived else "-"
        if len(ends) > 1 and arrived:
            quick += f" ({len(arrived)} of {len(ends)})"
        spread = f" ({min(ends):.3f} to {max(ends):.3f})" if len(ends) > 1 else ""
        rows.append(
            f"| {curve.name} | {keys} | {curve.instances[0][-1]:,.0f} | {statistics.mean(spent):.2f} "
            f"| {statistics.mean(ends):.3f}{spread} | {quick} |"
        )
    return "\n".join(rows) + "\n"


def draw(curves: Sequence[Curve], title: str, copies: int) -> dict[str, bytes]:
    """File name -> figure: the gap against instances and against CPU minutes, the first seed of each variant."""
    from cnf_cli.plots._style import INK, colour, dash, encode, grid, logarithmic, marker, styled

    with styled():
        figure, axes = grid(1, 2, 6.0, 4.2)
        for ax, label in zip(axes[0], ("training instances (thousands)", "CPU minutes"), strict=True):
            for k, curve in enumerate(curves):
                x = [v / 1000 for v in curve.instances[0]] if "instances" in label else curve.minutes[0]
                first = curve.name == "baseline"
                ax.plot(
                    x, curve.gaps[0], color=INK if first else colour(k - 1), linestyle="-" if first else dash(k - 1),
                    marker=marker(k), markersize=3, linewidth=2.2 if first else 1.2, label=curve.name,
                )  # fmt: skip
            ax.set_xlabel(label)
            ax.set_ylabel(f"validation gap (%), greedy x{copies}")
            if min(min(curve.gaps[0]) for curve in curves) > 0:
                logarithmic(ax.yaxis)
        axes[0][0].set_title(title)
        axes[0][1].legend(ncols=2)
        return {f"curves.{kind}": encode(figure, kind) for kind in ("png", "svg")}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    from cnf_cli.errors import CnfError
    from cnf_cli.zoo.cards import card

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cheap", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default="tsp", choices=("tsp", "cvrp"))
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes of each run")
    parser.add_argument("--instances", type=int, default=0, help="as many for every variant, instead of --minutes")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant")
    parser.add_argument("--variants", nargs="*", default=[], help="only these, and the baseline")
    parser.add_argument("--widths", type=int, nargs="+", default=[128], help="the network's; others beside the first")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--init", default="", help="an entry of the zoo that all runs start from, such as zoo/tsp20")
    parser.add_argument("--copies", type=int, default=1, help="of each validation instance")
    parser.add_argument("--validation", type=int, default=500, help="validation instances")
    parser.add_argument("--calibrate", type=float, default=0.05, help="share of the time for the short runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="cheap", help="folder for table, figures and the runs")
    args = parser.parse_args(given)
    unknown = set(args.variants) - set(variants(args.n, BATCH))
    if unknown:
        parser.error(f"no variant {sorted(unknown)}; there are {list(variants(args.n, BATCH))}")
    if args.init:
        try:
            entry = card(args.init)
        except CnfError as error:
            parser.error(f"{error.message}: {error.hint}")
        args.problem, args.n, args.widths = entry.kind, entry.n, [entry.policy["width"]]
    return args


def main(given: Sequence[str] | None = None) -> None:
    """Print the table; write it and the figures."""
    from cnf_cli.errors import CnfError
    from cnf_cli.pipeline.work_files import write_atomic

    args = arguments(given)
    names = [name for name in variants(args.n, BATCH) if not args.variants or name in ("baseline", *args.variants)]
    try:
        bench = Bench(args)
        first, *others = args.widths
        chosen = args.variants[-1] if args.variants else names[-1]
        curves = [bench.curve(name, first) for name in names]
        curves += [bench.curve(name, width) for width in others for name in dict.fromkeys((names[0], chosen))]
    except CnfError as error:
        raise SystemExit(f"error: {error.message}\nhint: {error.hint}") from None
    text = table(curves)
    begun = f"from {args.init}: " if args.init else ""
    title = f"{begun}{args.problem.upper()}{args.n}, width {args.widths[0]}, {args.validation} validation instances"
    files = {"table.md": text.encode(), **draw(curves, title, args.copies)}
    for name, content in files.items():
        write_atomic(Path(args.out) / name, content)
    print(text, end="")


if __name__ == "__main__":
    main()
