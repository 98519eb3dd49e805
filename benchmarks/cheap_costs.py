"""CPU milliseconds per instance of each way to train, and of a solver's label.

    python -m benchmarks.cheap_costs [--problem tsp] [--n 20] [--steps 5]

One thread, the native engine where it is built, an untrained network. Each way takes turns with the others, and the
median of its turns counts: the CPU time of a busy machine is not that of an idle one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any


def ways(problem: Any, width: int, batch: int) -> dict[str, Callable[[], Any]]:
    """Name -> one forward and backward pass."""
    import torch

    from cnf_cli.engine import get_engine
    from cnf_cli.policies import pomo
    from cnf_cli.policies.losses import likelihood_loss, rollout_loss
    from cnf_cli.recipe.sections import PretrainSection

    rng, engine = torch.Generator().manual_seed(0), get_engine("auto", "cpu")
    policy = pomo.Policy(pomo.Params(width=width), problem).init(rng)
    inst, seeds = problem.sample(batch, rng=rng), torch.arange(batch)
    world = problem.world(inst)
    tours = engine.rollout(policy.encode(inst, engine=engine), world, seeds)
    good = torch.ones(tours.shape[:2], dtype=torch.bool)

    def sampled(starts: Any = None, **keys: Any) -> Callable[[], Any]:
        section = PretrainSection(**keys)
        return lambda: rollout_loss(section, policy, problem, inst, engine, seeds, starts)[0].backward()

    return {
        "reinforce": sampled(),
        "leader": sampled(loss="leader"),
        "preference": sampled(loss="preference"),
        "8 starts": sampled(world.starts[:8]),
        "on labels": lambda: likelihood_loss(policy, problem, inst, engine, tours, good)[0].backward(),
    }


def label(problem: Any, count: int) -> Callable[[], Any]:
    """A function that solves `count` instances as a warm start does, in this process."""
    import torch

    from cnf_cli.evaluation.references import instances_of
    from cnf_cli.solvers.run import solve_one
    from cnf_cli.training.solver_tours import labeller, quick

    kind = labeller("auto", problem.kind)
    inst = problem.sample(count, rng=torch.Generator().manual_seed(1))
    given = instances_of(problem.kind, problem.to_block(inst))
    return lambda: [solve_one(one, kind, quick(kind, inst.nodes)) for one in given]


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Name -> CPU milliseconds per instance."""
    import torch

    from cnf_cli import plugins
    from cnf_cli.training.stored_policies import make_problem

    torch.set_num_threads(1)
    problem = make_problem(plugins.params("problems", args.problem)(kind=args.problem, n=args.n))  # type: ignore[arg-type]
    work = {name: (run, args.batch) for name, run in ways(problem, args.width, args.batch).items()}
    work["a label"] = (label(problem, 8), 8)
    spent: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(args.steps + 1):
        for name, (run, count) in work.items():
            begin = time.process_time()
            run()
            if turn:  # the first is to warm up
                spent[name].append(1000 * (time.process_time() - begin) / count)
    return {name: statistics.median(times) for name, times in spent.items()}


def main() -> None:
    """Print a Markdown table of one row."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cheap_costs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--problem", default="tsp", choices=("tsp", "cvrp"))
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    found = measure(args)
    print(f"| CPU ms per instance | {' | '.join(found)} |")
    print("|---" * (len(found) + 1) + "|")
    print(f"| {args.problem.upper()}{args.n} | {' | '.join(f'{value:.1f}' for value in found.values())} |")


if __name__ == "__main__":
    main()
