"""What `cnf evaluate` was asked for: which sets, which policies and solvers, and the table of what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cnf_cli.cli.context import Context
    from cnf_cli.cli.run_stage import Launch
    from cnf_cli.pipeline.stage import Task
    from cnf_cli.recipe import Recipe
    from cnf_cli.stages.assemble import Named, Solvers
    from cnf_cli.stages.evaluate import SetOf
    from cnf_cli.store import Manifest

STAND_INS = ("nearest", "descent")
"""Built-in solvers that are measured on a benchmark, beside the zoo's policy, when the store has none."""


def median(sizes: list[int]) -> int:
    """The middle size; of two, the smaller."""
    return sorted(sizes)[(len(sizes) - 1) // 2]


@dataclass
class Order:
    """One evaluation as the user asked for it."""

    ctx: Context
    launch: Launch
    recipe: Recipe
    rivals: Solvers
    asked: list[str]
    """The policies named by --with."""
    bench_name: str = ""
    first: int = 0
    """Only so many instances of each data set; 0 = all."""

    def recipe_sets(self) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.cli.stage_commands import start_named
        from cnf_cli.stages.assemble import for_recipe

        given = self._given() or start_named(self.ctx, self.recipe, plan=self.launch.plan)
        return for_recipe(self.recipe, given, self.rivals)

    def data_sets(self, given: list[str]) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.cli.label import problem_of
        from cnf_cli.errors import RecipeError
        from cnf_cli.formats import dataset
        from cnf_cli.stages.assemble import known_of, set_name

        sets: list[SetOf] = []
        problems, sizes = set(), []
        for text in given:
            manifest = self._data(text)
            problem, nodes = problem_of(self.ctx, manifest.key)
            problems.add(problem)
            found = dataset.load(self.ctx.store.open(manifest.key, "data.h5"))
            sizes += [block.nodes - (block.demand is not None) for block, _ in found.instances()]
            known = known_of(found)
            name, taken = set_name(self.ctx.store, manifest), {one.name for one in sets}
            name = f"{name} {manifest.key[:8]}" if name in taken else name
            sets.append(self.rivals.set_of(name, manifest, problem, nodes, known))
        if len(problems) > 1:
            raise RecipeError(
                f"these data sets hold {' and '.join(sorted(problems))}", hint="evaluate each problem apart"
            )
        return sets, self.methods(problems.pop(), median(sizes))

    def bench_set(self, text: str, folder: Path | None) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.cli.bench import prepare

        found = prepare(self.ctx, text, folder, coordinates=bool(self.asked) or not self.rivals.rows)
        self.bench_name = found.library
        methods = self.methods(found.problem, found.middle, rivals=STAND_INS)
        one = self.rivals.set_of(found.title, found.task, found.problem, found.nodes, found.known)
        return [one], methods

    def methods(self, problem: str, n: int, rivals: tuple[str, ...] = ()) -> list[Named]:
        """The policies asked for; without any, and without solvers, those that fit n nodes best.

        When the store has none of the user's own, `rivals` are measured as well: with nothing but the package there is
        a comparison.
        """
        from cnf_cli.cli.stage_commands import taken
        from cnf_cli.stages.choice import choose, newest_fitting, no_policy, own

        given = self._given()
        if given or self.rivals.rows:
            return given
        store = self.ctx.store
        mine = [m for several in (False, True) if (m := newest_fitting(store, problem, n, several=several))]
        if mine:
            return [taken(self.ctx, own(store, manifest, n), plan=self.launch.plan) for manifest in mine]
        self.rivals = replace(self.rivals, rows=rivals)
        chosen = choose(store, problem, n)
        if chosen is not None:
            return [taken(self.ctx, chosen, plan=self.launch.plan)]
        told = no_policy(store, problem, n)
        if not rivals:
            raise told
        self.ctx.note(f"{told.message}, so only built-in heuristics are measured; {told.hint}")
        return []

    def _given(self) -> list[Named]:
        from cnf_cli.cli.stage_commands import artifact
        from cnf_cli.errors import ArtifactError
        from cnf_cli.stages.assemble import policy_name
        from cnf_cli.stages.choice import holds_policy

        out: list[Named] = []
        seen: set[str] = set()
        for text in self.asked:
            manifest = artifact(self.ctx, text)
            assert manifest is not None
            if not holds_policy(manifest):
                hint = "`cnf ls` lists artifacts; pretrain, train-cnf and import make policies."
                raise ArtifactError(f"artifact {manifest.key[:12]} ({manifest.stage}) holds no policy", hint=hint)
            name = policy_name(self.ctx.store, manifest)
            name = f"{name} {manifest.key[:8]}" if name in [other for other, _ in out] else name
            if manifest.key not in seen:
                out.append((name, manifest))
                if text != name and not manifest.key.startswith(text):
                    self.ctx.say(f"{text} is {name}")  # tables name an artifact by its content
            seen.add(manifest.key)
        return out

    def _data(self, text: str) -> Manifest:
        """The data artifact of that name, or the files there, taken into the store."""
        from cnf_cli.cli.stage_commands import artifact
        from cnf_cli.errors import ArtifactError
        from cnf_cli.stages import first, imported

        manifest = (
            self.launch.runner().run(imported.task([Path(text)])) if Path(text).exists() else artifact(self.ctx, text)
        )
        assert manifest is not None
        if "data.h5" in manifest.outputs and self.first:
            manifest = self.launch.runner().run(first.task(manifest, self.first))
        if "data.h5" not in manifest.outputs:
            hint = "`cnf data generate` and `cnf import` make data sets; policies go with --with."
            raise ArtifactError(f"{text} ({manifest.stage} {manifest.key[:12]}) is not a data set", hint=hint)
        return manifest

    def run(self, task: Task) -> Manifest:
        """As `Launch.run`, but the table, not the id, is what goes to stdout."""
        runner = self.launch.runner()
        runner.on_step = lambda step: self.launch._note(step, [])
        manifest = runner.run(task, force=self.launch.force, deps=self.launch.deps)
        if self.launch.alias:
            self.ctx.store.tag(self.launch.alias, manifest.key)
        return manifest

    def show(self, manifest: Manifest, style: str | None, *, per_model: bool, paper: bool) -> None:
        """The table, in the asked-for style."""
        from cnf_cli.cli import measured

        told = measured.read(self.ctx, manifest)
        tables = [measured.main_table(told["rows"], per_model)]
        if self.bench_name:
            from cnf_cli.cli.bench import instance_rows, instance_table

            told["instances"] = instance_rows(self.ctx, manifest, told, self.bench_name, paper=paper)
            tables.insert(0, instance_table(told["instances"], paper=paper))
        measured.show(self.ctx, told, tables, style)
        self.ctx.say(f"evaluation {manifest.key[:12]} on {told['device']} ({told['engine']})")
