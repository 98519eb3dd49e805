"""What `cnf evaluate` was asked for: which sets, which policies and solvers, and the table of what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cnf_cli.cli.context import Context
    from cnf_cli.cli.run_stage import Launch
    from cnf_cli.evaluation.plan import Named, Solvers
    from cnf_cli.recipe import Recipe
    from cnf_cli.stages.evaluate import SetOf
    from cnf_cli.store import Manifest

STAND_INS = ("nearest", "descent")
"""Built-in solvers that are measured on a benchmark, beside the zoo's policy, when the store has none."""


def median(sizes: list[int]) -> int:
    """The middle size; of two, the smaller."""
    return sorted(sizes)[(len(sizes) - 1) // 2]


def take_in(ctx: Context, text: str, first: int = 0) -> Manifest:
    """The data artifact of that name, or the files there, taken into the store; only its first instances if asked."""
    from cnf_cli.cli.run_stage import Launch
    from cnf_cli.cli.stage_commands import artifact
    from cnf_cli.errors import ArtifactError
    from cnf_cli.formats import dataset
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.stages import first as cut
    from cnf_cli.stages import imported, known

    runner = Launch(ctx, RuntimeSection()).runner()
    manifest = runner.run(imported.task([Path(text)])) if Path(text).exists() else artifact(ctx, text)
    assert manifest is not None
    if "data.h5" not in manifest.outputs:
        hint = "`cnf data generate` and `cnf import` make data sets; policies go with --with."
        raise ArtifactError(f"{text} ({manifest.stage} {manifest.key[:12]}) is not a data set", hint=hint)
    if manifest.stage == imported.STAGE.name:
        more = known.task(manifest, dataset.load(ctx.store.open(manifest.key, "data.h5")))
        manifest = runner.run(more) if more else manifest
    return runner.run(cut.task(manifest, first)) if first else manifest


def problem_in(given: list[Manifest]) -> str:
    """The one problem of these data sets."""
    from cnf_cli.errors import RecipeError

    problems = sorted({str(manifest.checks["problem"]) for manifest in given})
    if len(problems) > 1:
        raise RecipeError(f"these data sets hold {' and '.join(problems)}", hint="evaluate each problem apart")
    return problems[0]


@dataclass
class Order:
    """One evaluation as the user asked for it."""

    ctx: Context
    launch: Launch
    recipe: Recipe
    rivals: Solvers
    asked: list[str]
    """The policies named by --with."""
    library: str = ""
    """The benchmark library, where one is measured."""
    own: bool = False
    """Whether data sets are measured: their named instances are told one by one."""

    def recipe_sets(self) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.cli.stage_commands import start_named
        from cnf_cli.evaluation.plan import for_recipe

        given = self._given() or start_named(self.ctx, self.recipe, plan=self.launch.plan)
        return for_recipe(self.recipe, given, self.rivals)

    def data_sets(self, given: list[Manifest]) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.evaluation.plan import known_of, set_name
        from cnf_cli.formats import dataset

        self.own = True
        problem, sizes, bare = self.recipe.problem.kind, [], []
        sets: list[SetOf] = []
        for manifest in given:
            found = dataset.load(self.ctx.store.open(manifest.key, "data.h5"))
            sizes += [block.nodes - (block.demand is not None) for block, _ in found.instances()]
            bare += [block.names[i] or "an instance" for block, i in found.instances() if block.xy is None]
            name, taken = set_name(self.ctx.store, manifest), {one.name for one in sets}
            name = f"{name} {manifest.key[:8]}" if name in taken else name
            nodes = max(block.nodes for block in found.blocks)
            sets.append(self.rivals.set_of(name, manifest, problem, nodes, known_of(found)))
        return sets, self.methods(problem, median(sizes), () if problem == "atsp" else tuple(bare))

    def bench_set(self, text: str, folder: Path | None) -> tuple[list[SetOf], list[Named]]:
        from cnf_cli.cli.bench import prepare

        found = prepare(self.ctx, text, folder, bare=bool(self.rivals.rows) and not self.asked)
        self.library = found.library
        methods = self.methods(found.problem, found.middle, found.bare, rivals=STAND_INS)
        one = self.rivals.set_of(found.title, found.task, found.problem, found.nodes, found.known)
        return [one], methods

    def methods(self, problem: str, n: int, bare: tuple[str, ...], rivals: tuple[str, ...] = ()) -> list[Named]:
        """The policies asked for; without any, those that fit n nodes best.

        None, which is said, where solvers were asked for and the `bare` instances have nothing a policy reads.
        When the store has none of the user's own and no solver was asked for, `rivals` are measured as well: with
        nothing but the package there is a comparison.
        """
        from cnf_cli.cli.stage_commands import taken
        from cnf_cli.evaluation.policy_choice import choose, newest_fitting, no_policy, own

        given = self._given()
        if given:
            return given
        if bare and self.rivals.rows:
            shown = ", ".join(bare[:5]) + (f" and {len(bare) - 5} more" if bare[5:] else "")
            self.ctx.note(f"no policy is measured: {shown} without coordinates; --with ID measures one on the others")
            return []
        store = self.ctx.store
        mine = [m for several in (False, True) if (m := newest_fitting(store, problem, n, several=several))]
        if mine:
            return [taken(self.ctx, own(store, manifest, n), plan=self.launch.plan) for manifest in mine]
        self.rivals = replace(self.rivals, rows=self.rivals.rows or rivals)
        chosen = choose(store, problem, n)
        if chosen is not None:
            return [taken(self.ctx, chosen, plan=self.launch.plan)]
        told = no_policy(store, problem, n)
        if not self.rivals.rows:
            raise told
        self.ctx.note(f"{told.message}, so only solvers are measured; {told.hint}")
        return []

    def _given(self) -> list[Named]:
        from cnf_cli.cli.stage_commands import artifact
        from cnf_cli.errors import ArtifactError
        from cnf_cli.evaluation.plan import policy_name
        from cnf_cli.evaluation.policy_choice import holds_policy

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

    def show(self, manifest: Manifest, style: str | None, *, per_model: bool, paper: bool) -> None:
        """The table, in the asked-for style."""
        from cnf_cli.cli import measured

        told = measured.read(self.ctx, manifest)
        tables = [measured.main_table(told["rows"], per_model)]
        if self.library or self.own:
            from cnf_cli.cli.instances import instance_rows, instance_table

            rows = instance_rows(self.ctx, manifest, told, self.library, paper=paper)
            if rows:
                told["instances"] = rows
                tables.insert(0, instance_table(rows, self.library))
        measured.show(self.ctx, told, tables, style)
        self.ctx.say(f"evaluation {manifest.key[:12]} on {told['device']} ({told['engine']})")
