"""The story's rivals as runs: what each costs, how many instances it may see, and the artifacts that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.story_tables import Run, numbers
from cnf_cli.cli.label import settings
from cnf_cli.errors import ArtifactError, RecipeError, did_you_mean
from cnf_cli.evaluation import plan as assemble
from cnf_cli.formats import dataset
from cnf_cli.pipeline.job import Artifact, Bars, Silent
from cnf_cli.pipeline.runner import Runner, Step
from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe import Recipe, load_recipe
from cnf_cli.solvers.run import default_solver, require
from cnf_cli.stages import attack, data, evaluate, label, pretrain, train_cnf, zoo
from cnf_cli.store import Manifest, Store

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ("python", "-m", "benchmarks.story")
SOLVERS = ("nearest", "farthest", "descent")
COMMAND = COMMAND
PROBE_TURNS, PROBE_STEPS = 3, 4
"""Short runs of a rival and steps of each; the first step, which also fits an attack that learns, stands apart."""


@dataclass(frozen=True)
class Rival:
    """A name in the tables and what makes its models; nothing does where the name is a solver's."""

    name: str
    recipe: Recipe

    @property
    def trained(self) -> bool:
        return self.name != "pretrained" and self.name not in SOLVERS


@dataclass(frozen=True)
class Cost:
    """CPU seconds of training: of a step, and of fitting an attack that learns."""

    step: float
    fit: float = 0.0

    def of(self, recipe: Recipe, steps: int) -> float:
        """What so many steps take."""
        refits = 0
        if every := getattr(recipe.attack, "refit_epochs", 0):
            refits = 1 + (steps - 1) * recipe.train.batch_size // (every * recipe.train.epoch_instances)
        return steps * self.step + refits * self.fit

    def steps(self, recipe: Recipe, budget: float) -> int:
        """The most steps that fit into the budget; at least one."""
        low, high = 1, max(1, int(budget / self.step))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.of(recipe, middle) <= budget else (low, middle - 1)
        return low


@dataclass
class Story:
    """One problem's rivals against one store."""

    problem: str
    store: Store
    seeds: int = 3
    threads: int = 1
    sets: tuple[str, ...] = ()
    """Overrides of every recipe, as `--set` takes them."""
    init: str | None = None
    clean: str | None = None
    params: tuple[str, ...] = ()
    """Settings of the reference solver, as `cnf label --param` takes them."""
    bars: Bars = field(default_factory=Silent)
    made: int = 0
    """Artifacts that were not in the store before."""

    def rival(self, name: str) -> Rival:
        """The rival of that name with its recipe."""
        own = ROOT / "recipes" / "story" / f"{self.problem}-{name}.toml"
        whole = [ROOT / "recipes" / f"{self.problem}{end}.toml" for end in ("-story", "")]
        base = next((path for path in whole if path.exists()), whole[-1])
        if name in ("pretrained", "cnf", *SOLVERS):
            own = base
        if not own.exists():
            there = [p.stem.removeprefix(f"{self.problem}-") for p in own.parent.glob(f"{self.problem}-*.toml")]
            known = sorted([*there, "pretrained", "cnf", *SOLVERS])
            near = did_you_mean(name, known)
            hint = (f"did you mean '{near}'? " if near else "") + f"there are: {', '.join(known)}"
            raise RecipeError(f"'{name}' is no rival of the {self.problem} story", hint=hint)
        return Rival(name, load_recipe(own, self.sets))

    @cached_property
    def base(self) -> Recipe:
        return self.rival("pretrained").recipe

    def run(self, task: Task, alias: str | None = None) -> Manifest:
        """The artifact, under an alias of the story's own: the recipes' aliases stay where they are."""

        def count(step: Step) -> None:
            self.made += step.state == "miss"

        runtime = self.base.runtime.model_copy(update={"threads": self.threads})
        runner = Runner(self.store, runtime, self.bars, COMMAND, count)
        return runner.run(replace(task, alias=f"story-{self.problem}/{alias}" if alias else None))

    def stored(self, text: str) -> Manifest:
        """The artifact of that id or alias; an entry of the zoo is taken into the store first."""
        found = self.store.find(zoo.key_of(self.store, text, COMMAND))
        if found is None:
            raise ArtifactError(f"artifact {text} is incomplete", hint="`cnf verify` says what is missing.")
        return found

    @cached_property
    def start(self) -> Manifest:
        """The policy that all rivals start from."""
        return self.stored(self.init) if self.init else self.run(pretrain.task(self.base), "pretrained")

    def costs(self, rivals: Sequence[Rival]) -> dict[str, Cost]:
        """What each rival's training takes on the machine that first asked; the store remembers it.

        Rivals take turns, and of all turns' steps the lower quartile counts: what else runs on the machine can only
        add to a step, and seldom adds the same to all.
        """
        turns = [{rival.name: self._steps(rival, turn) for rival in rivals} for turn in range(PROBE_TURNS)]
        out = {}
        for rival in rivals:
            own = [turn[rival.name] for turn in turns]
            later = sorted(seconds for each in own for seconds in each[1:])
            step = max(1e-6, later[len(later) // 4])
            learns = hasattr(rival.recipe.attack, "refit_epochs")
            out[rival.name] = Cost(step, max(0.0, min(each[0] for each in own) - step) if learns else 0.0)
        return out

    def _steps(self, rival: Rival, turn: int) -> list[float]:
        """CPU seconds of the first steps of a training run."""
        train = rival.recipe.train
        few = {"instances": PROBE_STEPS * train.batch_size, "epoch_instances": train.batch_size, "validation_count": 0}
        short = replace(rival.recipe, train=train.model_copy(update={**few, "seed": train.seed + turn}))
        if hasattr(short.attack, "refit_epochs"):  # fitted once, in the first step
            short = replace(short, attack=short.attack.model_copy(update={"refit_epochs": PROBE_STEPS + 1}))
        manifest = self.run(train_cnf.task(short, self.start), f"{rival.name}-probe-{turn}")
        return [b - a for a, b in pairwise([0.0, *(line["cpu_seconds"] for line in manifest.provenance["curve"])])]

    def train(self, rival: Rival, instances: int, seed: int) -> Manifest:
        """The rival's models after so many clean instances."""
        own = rival.recipe.train
        section = own.model_copy(update={"instances": instances, "seed": own.seed + seed})
        task = train_cnf.task(replace(rival.recipe, train=section), self.start)
        return self.run(task, f"{rival.name}-{instances}-{section.seed}")

    @cached_property
    def test_sets(self) -> dict[str, Manifest]:
        """The clean set and the one made against the pretrained policy, as they came."""
        about = self.base.evaluate
        clean = (
            self.stored(self.clean) if self.clean else self.run(data.task(self.base.problem, about.count, about.seed))
        )
        fixed = self.run(attack.task(self.base, self.start, clean), "fixed")
        return {"clean": clean, "fixed": fixed}

    def measured(self, rival: Rival, policy: Manifest | None, tag: str) -> Artifact:
        """The evaluation on the clean, the fixed and, for trained models, their own white-box set."""
        sets = dict(self.test_sets)
        if rival.trained:
            assert policy is not None
            sets["white"] = self.run(attack.task(self.base, policy, sets["clean"], white_box=True))
        about, rows = self.base.evaluate, (rival.name,) if policy is None else ()
        given = []
        for name, made in sets.items():
            solved = tuple(label.task(made, kind, local={"jobs": self.threads}) for kind in rows)
            given.append(evaluate.SetOf(name, self._labelled(made), solved))
        methods = [] if policy is None else [(rival.name, policy)]
        protocol: dict[str, Any] = {"augment": about.augment, "decode": about.decode, "seed": about.seed}
        return Artifact(self.store, self.run(evaluate.task(given, methods, rows, **protocol), f"{tag}-evaluation"))

    def _labelled(self, made: Manifest) -> Task | Manifest:
        """The set with a reference for every instance."""
        known = assemble.known_of(dataset.load(self.store.open(made.key, "data.h5")))
        if known == "all":
            return made
        about = self.base
        kind, nodes = about.problem.kind, about.problem.n + 1  # with a depot, where there is one
        solver = default_solver(kind, nodes) if about.evaluate.solver == "auto" else about.evaluate.solver
        require(solver, kind)
        return label.task(
            made, solver, settings(solver, list(self.params)), keep=known == "some", local={"jobs": self.threads}
        )

    def play(self, names: Sequence[str], budget: float, instances: int, only: str | None = None) -> dict[str, Any]:
        """All numbers: every rival after equal instances and after equal time, or one of them, for every seed."""
        rivals = [self.rival(name) for name in names]
        costs = self.costs([r for r in rivals if r.trained]) if budget else {}
        fits = {
            r.name: costs[r.name].steps(r.recipe, budget) * r.recipe.train.batch_size for r in rivals if r.name in costs
        }
        # By default as many as the slowest rival sees in the time: its two runs are then one.
        equal = instances or min(fits.values(), default=0)
        plans = {"instances": {r.name: equal for r in rivals}} | ({"time": fits} if budget else {})
        plans = {name: counts for name, counts in plans.items() if only in (None, name)}
        self._announce(rivals, costs, plans, budget)
        runs: dict[str, list[Run]] = {plan: [] for plan in plans}
        for seed in range(self.seeds):
            for plan, counts in plans.items():
                for rival in rivals:
                    if rival.trained:
                        made = self.train(rival, counts[rival.name], seed)
                        tag = f"{rival.name}-{counts[rival.name]}-{rival.recipe.train.seed + seed}"
                        runs[plan].append(Run(rival.name, Artifact(self.store, made), self.measured(rival, made, tag)))
                    elif seed == 0:
                        policy = None if rival.name in SOLVERS else self.start
                        runs[plan].append(Run(rival.name, None, self.measured(rival, policy, rival.name)))
        return {
            "problem": self.problem,
            "seeds": self.seeds,
            "budget": budget,
            "instances": equal,
            "augment": self.base.evaluate.augment,
            "start": self.start.key,
            "steps": {name: {"step": cost.step, "fit": cost.fit} for name, cost in costs.items()},
            "plans": {plan: numbers(found) for plan, found in runs.items()},
        }

    def _announce(self, rivals: Sequence[Rival], costs: dict[str, Cost], plans: dict[str, Any], budget: float) -> None:
        total = 0.0
        for rival in rivals:
            if rival.name in costs:
                cost, counts = costs[rival.name], {plans[plan][rival.name] for plan in plans}
                total += self.seeds * sum(cost.of(rival.recipe, n // rival.recipe.train.batch_size) for n in counts)
                told = " and ".join(f"{n:,}" for n in sorted(counts))
                self.bars.say(f"{rival.name}: {cost.step:.3f} CPU seconds per step, {told} instances")
        self.bars.say(f"training takes about {total / 60:.0f} CPU minutes in all, what is in the store included")
