"""Which bias at decoding is best for which size: how much shorter the zoo's tours get, on validation maps.

    python -m benchmarks.bias [--only tsp100] [--threads 1]

Greedy, without copies, from at most 100 starts (20 above 100 nodes), on fresh maps of a seed that nothing else uses.
Each line has the change of the mean cost in percent for every rate; the rule `--distance-bias auto` was fitted to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

SEED = 987
RATES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7)
BATCH = 16
MAPS = (
    ("tsp20", 20, 400, "uniform"),
    ("tsp50", 50, 128, "uniform"),
    ("tsp50", 100, 64, "uniform"),
    ("tsp100", 50, 128, "uniform"),
    ("tsp100", 100, 96, "uniform"),
    ("tsp100", 100, 96, "explosion"),
    ("tsp100", 200, 16, "uniform"),
    ("tsp100", 400, 6, "uniform"),
    ("cvrp20", 20, 400, "uniform"),
    ("cvrp50", 50, 128, "uniform"),
    ("cvrp50", 100, 64, "uniform"),
    ("cvrp50", 200, 16, "uniform"),
    ("atsp20", 20, 300, "uniform"),
)
"""Entry of the zoo, nodes, how many maps, distribution."""


def costs(name: str, n: int, count: int, dist: str) -> list[float]:
    """The mean cost at every rate."""
    import cnf_cli.zoo
    from cnf_cli.engine import get_engine
    from cnf_cli.policies.biased import Biased
    from cnf_cli.policies.run import rollout
    from cnf_cli.training.stored_policies import load_model

    found = load_model(Path(cnf_cli.zoo.__path__[0]) / f"{name}.safetensors")
    policy, problem, engine = found.policies[0], found.problem, get_engine()
    maps = problem.sample(count, rng=torch.Generator().manual_seed(SEED), n=n, dist=dist)
    parts = [maps[low : low + BATCH] for low in range(0, count, BATCH)]
    starts = None if n <= 100 else 20
    out = []
    for rate in RATES:
        turned = Biased(policy, problem, (rate,))
        best = [rollout(turned, problem, part, engine, starts=starts)[1].amin(1) for part in parts]
        out.append(float(torch.cat(best).double().mean()))
    return out


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bias", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="entries of the zoo whose names begin so")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    print("| policy | n | maps | " + " | ".join(f"{rate:g}" for rate in RATES[1:]) + " |")
    print("|" + "---|" * (len(RATES) + 2))
    for name, n, count, dist in MAPS:
        if name.startswith(args.only):
            plain, *others = costs(name, n, count, dist)
            changes = " | ".join(f"{100 * (cost / plain - 1):+.2f}" for cost in others)
            print(f"| zoo/{name} | {n} | {count} {dist} | {changes} |", flush=True)


if __name__ == "__main__":
    main()
