"""Which policy answers where none is named: the newest of the user's own that fits the size, else the zoo's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cnf_cli.errors import ArtifactError
from cnf_cli.recipe import Recipe
from cnf_cli.store import Manifest, Store
from cnf_cli.zoo.cards import Card, card, fitting, largest_of

DEMO = "demo/"
"""What the recipe of `cnf demo` makes has names that begin so: it was trained for seconds, and never stands in."""


NOTABLE = 5.0
"""Percent above a good solver's cost from which a policy is told to be off its size."""


@dataclass(frozen=True)
class Choice:
    """A policy that nobody named."""

    policy: Manifest | str
    """An artifact of the store, or the name of an entry of the zoo."""
    told: str
    """The line that says so."""


def choose(store: Store, problem: str, n: int, *, several: bool | None = None) -> Choice | None:
    """The user's newest policy that fits n nodes at least as well as the zoo's, else the zoo's; None without either.

    `several` asks for an ensemble (True) or a single policy (False) of the user's own; the zoo's is a single one.
    """
    mine = newest_fitting(store, problem, n, several=several)
    return own(store, mine, n) if mine else from_zoo(store, problem, n)


def own(store: Store, manifest: Manifest, n: int) -> Choice:
    """A policy of the user's own, and how it is told."""
    names = " ".join(sorted(alias for alias, key in store.refs().items() if key == manifest.key))
    problem, made = manifest.checks.get("problem"), made_for(store, manifest)
    size = f", made for {', '.join(map(str, made))} nodes" if made else ""
    told = f"with your newest policy for {problem} that fits {n} nodes: {manifest.stage} {manifest.key[:12]} {names}"
    return Choice(manifest, told.rstrip() + size)


def from_zoo(store: Store, problem: str, n: int) -> Choice | None:
    """The entry of the zoo for that problem nearest to n, and the line that says why; None where there is none."""
    name = fitting(problem, n)
    if name is None:
        return None
    return Choice(name, stand_in(name, _why(store, problem, n), f"cnf pretrain {problem} --n {n}"))


def start_of(recipe: Recipe, store: Store) -> Choice | None:
    """The single policy that a recipe starts from where none is named; None = the one it makes itself.

    Its own is the one it says how to make (it has a [pretrain] or [policy] table), or that the store has already.
    """
    from cnf_cli.pipeline.runner import Runner
    from cnf_cli.stages import pretrain

    made = pretrain.task(recipe)
    if {"pretrain", "policy"} & set(recipe.written) or Runner(store).plan(made)[-1].state == "hit":
        return None
    problem, n = recipe.problem.kind, recipe.problem.n
    mine = newest_fitting(store, problem, n, several=False)
    if mine is not None:
        return own(store, mine, n)
    name = fitting(problem, n)
    why = f"the store has no policy pretrained for {recipe.source}"
    return None if name is None else Choice(name, stand_in(name, why, made.command))


def stand_in(name: str, why: str, instead: str) -> str:
    """One line for the reader: what is used, why, and what to type for another."""
    one = card(name)
    return f"{why}: using {one.alias} from the package (trained on {one.kind}{one.n}); `{instead}` trains one"


def newest_fitting(store: Store, problem: str, n: int, *, several: bool | None = None) -> Manifest | None:
    """The policy finished last, of those of the user's own that are as near to n as the zoo's entry, or nearer."""
    name = fitting(problem, n)
    most = math.inf if name is None else distance(card(name).n, n)
    for manifest in own_policies(store, problem):
        if several not in (None, is_ensemble(manifest)):
            continue
        made, largest = made_for(store, manifest), _largest(store, manifest)
        # Of an import nobody knows what it was made for: it does not push aside an entry that is known to fit.
        away = min((distance(size, n) for size in made), default=math.inf)
        if away <= most and (largest is None or n <= largest):
            return manifest
    return None


def own_policies(store: Store, problem: str) -> Iterator[Manifest]:
    """Policies for that problem that were trained or imported here, the last finished first; none of the demo's."""
    demo = _demo(store)
    return (one for one in _policies(store, problem) if one.key not in demo and not _made_by_demo(one))


def _policies(store: Store, problem: str) -> Iterator[Manifest]:
    for one in store.manifests():
        if holds_policy(one) and one.stage != "zoo" and one.checks.get("problem") == problem and store.find(one.key):
            yield one


def _demo(store: Store) -> set[str]:
    return {key for alias, key in store.refs().items() if alias.startswith(DEMO)}


def _made_by_demo(manifest: Manifest) -> bool:
    """Also after its names were taken away or over; artifacts from before `made_as` was recorded have names only."""
    return str(manifest.provenance.get("made_as", "")).startswith(DEMO)


def holds_policy(manifest: Manifest) -> bool:
    """True when the artifact holds policies; torch is not needed to know."""
    return any(name.startswith("model") and name.endswith(".safetensors") for name in manifest.outputs)


def is_ensemble(manifest: Manifest) -> bool:
    """True for more than one policy."""
    return int(manifest.checks.get("models", 1)) > 1


def card_of(manifest: Manifest) -> Card | None:
    """The card of an entry of the zoo that was taken into the store; None for anything else."""
    name = str(manifest.checks.get("known", ""))
    if manifest.stage != "zoo":
        return None
    try:
        return card(name)
    except ArtifactError:  # an entry of an earlier package
        return None


def made_for(store: Store, manifest: Manifest) -> tuple[int, ...]:
    """The numbers of nodes that a policy was trained on; none where nobody knows, as of most imports."""
    if (entry := card_of(manifest)) is not None:
        return (entry.n,)
    if manifest.stage == "imported":
        named = re.search(r"(\d+)$", str(manifest.checks.get("known", "")))  # AMDKD TSP100
        return (int(named[1]),) if named else ()
    n = manifest.sections.get("problem", {}).get("n")
    sizes = manifest.sections.get("pretrain", {}).get("sizes", ())
    return tuple(sorted({*sizes, n})) if n else ()


def distance(made: int, n: int) -> float:
    """How far n nodes are from those a policy was made for: by ratio, so 30 are as far from 20 as from 45."""
    return abs(math.log(made / max(1, n)))


def far_off(store: Store, manifest: Manifest, n: int, copies: int) -> str:
    """What a user with n nodes should know of a policy that was made for others; "" where it fits or nobody knows.

    `copies` = 0 where it answers in another way than its card was measured.
    """
    from cnf_cli.solvers.run import default_solver
    from cnf_cli.zoo.sizes import expected

    made, entry = made_for(store, manifest), card_of(manifest)
    if not made:
        return ""
    near = min(made, key=lambda size: distance(size, n))
    gap = expected(entry, n, copies) if entry and copies else None
    if distance(near, n) <= math.log(2) and (gap is None or n <= near or gap.percent < NOTABLE):
        return ""
    name = entry.alias if entry else f"{manifest.stage} {manifest.key[:12]}"
    problem = str(manifest.checks.get("problem"))
    what = f"expect {gap.told} above a good solver's cost" if gap else "nobody measured how good it is there"
    better = "`--distance-bias auto` helps on large maps, " if copies and n > near and problem != "atsp" else ""
    solver = f"`cnf evaluate --data FILE --solver {default_solver(problem, n)}` shows what a solver finds"
    return (
        f"{name} was made for {near} nodes, you have {n}: {what}; {better}{solver}, `{_train(problem, n)}` trains one"
    )


def _train(problem: str, n: int) -> str:
    return f"cnf pretrain {problem} --n {n}"


def no_policy(store: Store, problem: str, n: int) -> ArtifactError:
    """An error with the next command."""
    return ArtifactError(
        f"neither the store nor the zoo has a policy for {problem} with {n} nodes",
        at=str(store.root),
        hint=f"`cnf pretrain {problem} --n {n}` trains one, `cnf import FILE.pt` takes one in.",
    )


def _largest(store: Store, manifest: Manifest) -> int | None:
    """The most nodes that a policy can read; None where there is no bound."""
    above: Manifest | None = manifest
    while above is not None and "policy" not in above.sections:
        start = above.inputs.get("policy")
        above = store.read(start.key) if start else None
    made = manifest.sections.get("problem", {}).get("n", 0)
    return largest_of(above.sections["policy"], made) if above else None


def _why(store: Store, problem: str, n: int) -> str:
    """Why the zoo answers: the user has no policy for the problem, or none that fits."""
    mine = next(own_policies(store, problem), None)
    if mine is None:
        demos = any(_policies(store, problem))
        return f"the store has no policy for {problem}" + (" but the demo's, which never stands in" if demos else "")
    sizes, id_ = made_for(store, mine), mine.key[:12]
    made = f"made for {', '.join(map(str, sizes))} nodes" if sizes else "of unknown size"
    return f"your newest policy for {problem} ({mine.stage} {id_}) is {made}, and you have {n} (--with {id_} takes it)"
