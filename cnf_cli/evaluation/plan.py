"""Put an evaluation together: which policies, which sets, and a reference for every set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cnf_cli.evaluation.policy_choice import is_ensemble
from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe import Recipe
from cnf_cli.stages import attack, data, label, pretrain, train_cnf
from cnf_cli.stages.evaluate import SetOf
from cnf_cli.store import Manifest, Store

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Dataset

CLEAN = "clean ({dist})"
FIXED = "fixed adversarial (black box: attack on the pretrained model)"
WHITE = "adversarial (white box: attack on this model)"
Named = tuple[str, Task | Manifest]


@dataclass(frozen=True)
class Solvers:
    """Who makes the reference where there is none, who gets a row, and with how many workers."""

    reference: str = "auto"
    rows: tuple[str, ...] = ()
    jobs: int = 0

    def set_of(self, name: str, source: Task | Manifest, problem: str, nodes: int, known: str, only: int = -1) -> SetOf:
        """The set with a reference; `known` says how many of its instances have one: all, some or none."""
        from cnf_cli.solvers.run import default_solver, require

        local = {"jobs": self.jobs}
        chosen = default_solver(problem, nodes) if self.reference == "auto" else self.reference
        for kind in dict.fromkeys((chosen, *self.rows)):
            require(kind, problem)
        rows = {kind: label.task(source, kind, local=local) for kind in self.rows}
        if known == "all":
            return SetOf(name, source, tuple(rows.values()), only)
        if known == "some":
            return SetOf(name, label.task(source, chosen, keep=True, local=local), tuple(rows.values()), only)
        made = rows.get(chosen) or label.task(source, chosen, local=local)
        return SetOf(name, made, tuple(rows.values()), only)


def for_recipe(recipe: Recipe, given: Sequence[Named], solvers: Solvers) -> tuple[list[SetOf], list[Named]]:
    """The paper's three metrics for the recipe's pretrained policy and its hardened ensemble, or for `given`.

    The first of `given` takes the place of the pretrained model that the fixed adversarial set attacks.
    """
    policies = list(given)
    if not policies:
        before = pretrain.task(recipe)
        policies.append(("pretrained(1)", before))
        policies.append((f"{recipe.train.defence}({recipe.train.models})", train_cnf.task(recipe, before)))
    kind, nodes = recipe.problem.kind, recipe.problem.n + 1  # with a depot, where there is one
    clean = data.task(recipe.problem, recipe.evaluate.count, recipe.evaluate.seed)
    fixed = attack.task(recipe, policies[0][1], clean)
    sets = [
        solvers.set_of(CLEAN.format(dist=recipe.problem.dist), clean, kind, nodes, "none"),
        solvers.set_of(FIXED, fixed, kind, nodes, "none"),
    ]
    # A white box is the policy as it is measured; the fixed set is made against the one as it was trained.
    bias = recipe.attack.distance_bias or recipe.evaluate.distance_bias
    own = replace(recipe, attack=recipe.attack.model_copy(update={"distance_bias": bias}))
    for k, (_, policy) in enumerate(policies):
        # One model attacked as an ensemble of one is the fixed set itself: no second attack with other random numbers.
        same = k == 0 and not _several(policy) and own == recipe
        made = fixed if same else attack.task(own, policy, clean, white_box=True)
        one = solvers.set_of(WHITE, made, kind, nodes, "none", only=k)
        sets.append(replace(one, solved=()))
    return sets, policies


def _several(policy: Task | Manifest) -> bool:
    if isinstance(policy, Manifest):
        return is_ensemble(policy)
    return policy.stage is train_cnf.STAGE


def policy_name(store: Store, manifest: Manifest) -> str:
    """What an artifact's policies are called in tables: the same name however the user referred to it."""
    models = int(manifest.checks.get("models", 1))
    known = manifest.checks.get("known")
    if known:
        return str(known)
    if manifest.stage == "train_cnf":
        return f"{manifest.sections['train']['defence']}({models}) {manifest.key[:8]}"
    return f"{manifest.stage}({models}) {manifest.key[:8]}"


def set_name(store: Store, manifest: Manifest) -> str:
    """What a data artifact is called in tables."""
    if manifest.stage in ("label", "first", "known") and "data" in manifest.inputs:
        source = store.read(manifest.inputs["data"].key)
        name = set_name(store, source) if source else manifest.key[:8]
        return f"{name}, first {manifest.checks['count']}" if manifest.stage == "first" else name
    if manifest.stage == "data":
        about, drawn = manifest.sections["problem"], manifest.sections["data"]
        return f"{about['kind']}{about['n']} {about['dist']} (seed {drawn['seed']})"
    if manifest.stage == "imported":
        names = manifest.sections["import"]["names"]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f"{manifest.stage} {manifest.key[:8]}"


def known_of(found: Dataset) -> str:
    """Whether all, some or none of a data set's instances have a reference cost."""
    import numpy as np

    have = sum(0 if block.cost is None else int(np.isfinite(block.cost).sum()) for block in found.blocks)
    return "all" if have == len(found) else "some" if have else "none"
