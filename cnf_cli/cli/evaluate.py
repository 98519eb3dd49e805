"""`cnf evaluate` and `cnf compare`: how good is it, against what, and is the difference real?"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.bench import BenchDir, problem_of_bench
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.order import Order, problem_in, take_in
from cnf_cli.cli.run_stage import Alias, Aug, Bias, Force, Launch, NoDeps, Nodes, Plan, Sets, With, bias_set, recipe_for

PANEL = "Measuring"
SHOWN = "Output"
Csv = Annotated[bool, typer.Option("--csv", help="All rows as CSV.", rich_help_panel=SHOWN)]
Latex = Annotated[bool, typer.Option("--latex", help="The table as LaTeX.", rich_help_panel=SHOWN)]
Markdown = Annotated[bool, typer.Option("--markdown", help="The table as Markdown.", rich_help_panel=SHOWN)]
PerModel = Annotated[bool, typer.Option("--per-model", help="A line for every model.", rich_help_panel=SHOWN)]


def register(app: typer.Typer) -> None:
    """Add the measuring commands."""
    command(app, "evaluate", rich_help_panel=PANEL)(evaluate)
    command(app, "compare", rich_help_panel=PANEL)(compare)


def evaluate(
    ctx: Context,
    target: Annotated[
        str | None, typer.Argument(help="A recipe file, or a problem: tsp, cvrp.", autocompletion=complete.targets)
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Data artifact, file or folder; may be repeated.")
    ] = None,
    bench: Annotated[
        str | None,
        typer.Option("--bench", help="tsplib, cvrplib or atsplib; tsplib:all, tsplib:kro*,lin105, tsplib:..200"),
    ] = None,
    policies: With = None,
    solver: Annotated[
        list[str] | None, typer.Option("--solver", help="A row for this solver; may be repeated.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Who solves what has no reference; default: the best installed.")
    ] = None,
    aug: Aug = None,
    decode: Annotated[
        Literal["greedy", "sample"] | None, typer.Option(help="Take the likeliest next node, or draw it.")
    ] = None,
    distance_bias: Bias = None,
    first: Annotated[int, typer.Option("--first", help="Only so many instances of each set; 0 = all.", min=0)] = 0,
    normalise: Annotated[
        Literal["auto", "fit", "published"],
        typer.Option(help="How coordinates are scaled; published: as the method's own benchmark script."),
    ] = "auto",
    bench_dir: BenchDir = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's POMO and CNF columns beside ours.", rich_help_panel=SHOWN)
    ] = False,
    per_model: PerModel = False,
    csv: Csv = False,
    latex: Latex = False,
    markdown: Markdown = False,
    n: Nodes = None,
    jobs: Annotated[int, typer.Option(help="Instances that solvers work on at once; 0 = one per core.", min=0)] = 0,
    set_: Sets = None,
    plan: Plan = False,
    force: Force = False,
    no_deps: NoDeps = False,
    alias: Alias = None,
) -> None:
    """Measure policies and solvers: on a recipe's clean and adversarial sets, on your data, or on public benchmarks."""
    from cnf_cli.errors import RecipeError
    from cnf_cli.evaluation.plan import Solvers
    from cnf_cli.recipe.copies import copies
    from cnf_cli.stages import evaluate as stage

    if sum(map(bool, (target, data, bench))) != 1:
        hint = "`cnf evaluate RECIPE`, `cnf evaluate --data ID --with ID` or `cnf evaluate --bench tsplib`"
        raise RecipeError("give one of a recipe, --data and --bench", hint=hint)
    if first and not data:
        raise RecipeError(
            "--first goes with --data", hint="--set evaluate.count=N for a recipe, tsplib:..200 for a benchmark"
        )
    taken = [take_in(ctx, text, first) for text in data or ()]
    about = target or (problem_in(taken) if taken else problem_of_bench(bench or ""))
    recipe = recipe_for(about, n, [*bias_set("evaluate", distance_bias), *(set_ or ())])
    rivals = Solvers(reference or recipe.evaluate.solver, tuple(dict.fromkeys(solver or ())), jobs)
    launch = Launch(ctx, recipe.runtime, plan=plan, force=force, deps=not no_deps, alias=alias)
    job = Order(ctx, launch, recipe, rivals, policies or [])
    sets, methods = job.recipe_sets() if target else job.bench_set(bench, bench_dir) if bench else job.data_sets(taken)
    task = stage.task(
        sets,
        methods,
        job.rivals.rows,
        alias=f"{recipe.name}/evaluate" if target else f"bench/{job.library}-evaluation" if bench else None,
        command=f"cnf evaluate {target}" if target else "cnf evaluate",
        augment=recipe.evaluate.augment if aug is None else copies(recipe.problem, aug),
        decode=decode or recipe.evaluate.decode,
        distance_bias=recipe.evaluate.distance_bias,
        normalise=normalise,
        seed=recipe.evaluate.seed,
    )
    if plan:
        launch.run(task)
        return
    manifest, _ = launch.make(task)  # the table, not the id, is what goes to stdout
    job.show(manifest, chosen_style(csv=csv, latex=latex, markdown=markdown), per_model=per_model, paper=paper)


def chosen_style(**flags: bool) -> str | None:
    """The one output style that was asked for, if any."""
    from cnf_cli.errors import RecipeError

    asked = [name for name, on in flags.items() if on]
    if len(asked) > 1:
        raise RecipeError(f"choose one of {', '.join('--' + name for name in asked)}")
    return asked[0] if asked else None


def compare(
    ctx: Context,
    evaluations: Annotated[
        list[str], typer.Argument(help="Evaluation artifacts: ids or aliases.", autocompletion=complete.aliases)
    ],
    per_model: PerModel = False,
    csv: Csv = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Put evaluations side by side, with paired tests; unequal protocols are refused."""
    from cnf_cli.cli import measured
    from cnf_cli.cli.stage_commands import artifact
    from cnf_cli.errors import ArtifactError
    from cnf_cli.evaluation.comparison import together

    found: list[tuple[Any, dict[str, Any]]] = []
    for text in evaluations:
        manifest = artifact(ctx, text)
        assert manifest is not None
        if manifest.stage != "evaluate":
            raise ArtifactError(
                f"artifact {manifest.key[:12]} ({manifest.stage}) is not an evaluation",
                hint="`cnf ls --stage evaluate`",
            )
        found.append((manifest, measured.read(ctx, manifest)))
    told = together(ctx.store, found)
    tables = [measured.main_table(told["rows"], per_model)]
    measured.show(ctx, told, tables, chosen_style(csv=csv, latex=latex, markdown=markdown))
