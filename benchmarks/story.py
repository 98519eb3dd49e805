"""The paper's story at CPU scale: one command that trains, attacks and measures every rival, and prints the tables.

    python -m benchmarks.story --problem tsp20 --budget 300 --markdown tsp20.md

All rivals start from one pretrained policy. They are compared after the same number of clean instances and after the
same CPU seconds of training: a short run of each rival says what its steps cost, and its instances follow from that.
Every training run, attack, labelling and evaluation, those short runs too, is an ordinary artifact of the store:
the command can be stopped and repeated, and a finished one only prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.story_runs import Story
from benchmarks.story_tables import markdown
from cnf_cli.errors import RecipeError
from cnf_cli.store import Store

RIVALS = {
    "atsp20": ("pretrained", "at1", "at", "cnf", "nearest", "farthest"),
    "": ("pretrained", "at", "hac", "greedy", "random", "paper-quick", "nonlinear", "cnf", "best"),
}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What the user asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.story", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default="tsp20", help="tsp20, cvrp20 or atsp20: recipes/PROBLEM-story.toml")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each rival")
    parser.add_argument(
        "--budget", type=float, default=300.0, help="CPU seconds of training per rival and seed; 0 = none"
    )
    parser.add_argument(
        "--instances", type=int, default=0, help="equal instances; 0 = what the slowest sees in the budget"
    )
    parser.add_argument("--only", choices=("instances", "time"), help="one of the two comparisons; default: both")
    parser.add_argument("--rivals", default="", help="names separated by commas")
    parser.add_argument("--init", help="the policy all start from: id or alias; default: the recipe's own")
    parser.add_argument("--clean", help="the clean test set: id or alias of a data artifact; default: fresh instances")
    parser.add_argument("--store", type=Path, default=Path("artifacts"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="table.key=value")
    parser.add_argument("--param", action="append", default=[], metavar="key=value", help="of the reference solver")
    parser.add_argument("--markdown", type=Path, help="also write the tables here")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    asked = parser.parse_args(argv)
    if asked.seeds < 1 or asked.budget < 0 or asked.instances < 0 or not (asked.budget or asked.instances):
        raise RecipeError("--seeds is at least 1, and one of --budget and --instances is given", hint="--budget 300")
    return asked


def command(asked: argparse.Namespace) -> str:
    """What to type for the same numbers: the arguments that differ from the defaults, without where things go."""
    usual = vars(arguments([]))
    beside = ("store", "markdown", "json", "quiet")
    words = ["python -m benchmarks.story"]
    for name, value in vars(asked).items():
        if value != usual[name] and name not in beside:
            many = [f"{value:g}"] if isinstance(value, float) else value if name in ("set", "param") else [value]
            words += [f"--{name} {one}" for one in many]
    return " ".join(words)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Play the story, print the tables, and give all numbers."""
    from rich.console import Console

    from cnf_cli.cli.progress import make_bars

    given = sys.argv[1:] if argv is None else list(argv)
    asked = arguments(given)
    bars = make_bars(Console(stderr=True, highlight=False), quiet=asked.quiet)
    story = Story(
        asked.problem,
        Store(asked.store),
        seeds=asked.seeds,
        threads=asked.threads,
        sets=tuple(asked.set),
        init=asked.init,
        clean=asked.clean,
        params=tuple(asked.param),
        bars=bars,
    )
    names = asked.rivals.split(",") if asked.rivals else RIVALS.get(asked.problem, RIVALS[""])
    found = story.play(names, asked.budget, asked.instances, asked.only)
    found |= {"made": story.made, "command": command(asked)}
    text = markdown(found)
    for path, content in ((asked.markdown, text), (asked.json, json.dumps(found, indent=1, allow_nan=False))):
        if path:
            path.write_text(content + "\n", encoding="utf-8")
    print(text)
    return found


if __name__ == "__main__":
    from cnf_cli import interrupt
    from cnf_cli.__main__ import report
    from cnf_cli.errors import CnfError

    interrupt.install()
    try:
        main()
    except CnfError as error:
        report(error)
        sys.exit(error.code)
