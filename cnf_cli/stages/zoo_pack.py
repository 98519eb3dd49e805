"""Publish an artifact as an entry of the zoo: its weights, and a card with the facts of its provenance."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnf_cli.errors import ArtifactError, CheckFailed, RecipeError
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.work_files import write_atomic
from cnf_cli.recipe import Recipe, load_recipe
from cnf_cli.recipe.build import build_section
from cnf_cli.store import Manifest, Store
from cnf_cli.zoo.cards import MAX_BYTES, Card, Fixed, Training, WeightFile, Weights, card, file_digest, joined

FIXED_COUNT, FIXED_SEED = 4, 2024
_ROUTERS = {
    "best": "no router: each instance trains the model that solves it best",
    "balanced": "no router: equal shares at the least cost",
    "random": "no router: random shares",
    "self-training": "no router: each model its own",
}


@dataclass(frozen=True)
class Order:
    """What a maintainer asks for."""

    name: str
    into: Path
    recipe: str
    """Path of the recipe, relative to the source tree."""
    half: bool = False
    threads: int = 0
    """How many threads the training used; 0 = as many as the machine has cores."""


def pack(store: Store, manifest: Manifest, order: Order) -> Card:
    """The entry's weights and card are in the folder; its gaps are still to be measured."""
    from cnf_cli.training.stored_policies import load_models

    ensemble = load_models(Artifact(store, manifest))
    recipe = load_recipe(Path(order.recipe))
    made_by(recipe, manifest)
    problem, policy = (s.identity() for s in (ensemble.problem_section, ensemble.policy_section))
    committed(manifest)
    training = tuple(_chain(store, manifest, order))
    augment = recipe.evaluate.augment
    with tempfile.TemporaryDirectory(prefix="cnf-pack-") as temp:
        weights = _write(Path(temp), ensemble, order)
        _fits(order, weights)
        # Measured with the weights as they are on disk, after rounding.
        fixed = Fixed(
            n=problem["n"],
            seed=FIXED_SEED,
            augment=augment,
            costs=tuple(fixed_costs([Path(temp) / one.file for one in weights.files], augment)),
        )
        made = Card(
            name=order.name,
            about=about(problem, policy, len(ensemble.policies), manifest.sections),
            problem=problem,
            policy=policy,
            weights=weights,
            training=training,
            fixed=fixed,
        )
        order.into.mkdir(parents=True, exist_ok=True)
        for old in order.into.glob(f"{order.name}*.safetensors"):
            if re.fullmatch(rf"{re.escape(order.name)}(-\d+)?\.safetensors", old.name):
                old.unlink()
        for one in weights.files:
            write_atomic(order.into / one.file, (Path(temp) / one.file).read_bytes())
    save(made, order.into)
    return made


def about(problem: dict[str, Any], policy: dict[str, Any], models: int, sections: dict[str, dict[str, Any]]) -> str:
    """A card's first line: which network for what, and the routing and the loss that made it."""
    one = f"{policy['kind'].upper()} for {problem['kind'].upper()}{problem['n']}"
    if "train" not in sections:
        return f"{one}, trained with the loss {sections.get('pretrain', {}).get('loss', 'reinforce')}"
    train = build_section("train", sections["train"])
    how = f"the defence {sections['train']['defence']}"
    if strategy := getattr(train, "strategy", None):
        how += f", routing {strategy} ({_ROUTERS.get(strategy, 'by the router')})"
    return f"{models} x {one}, hardened by {how}, with the loss {getattr(train, 'loss', 'reinforce')}"


def committed(manifest: Manifest) -> None:
    """Raises unless the artifact was made by a commit of the source that anyone can check out."""
    commit = manifest.provenance.get("git")
    if commit is None or str(commit).endswith("-dirty"):
        what = "says nothing of its commit" if commit is None else f"was made by {commit}, a tree with other changes"
        raise CheckFailed(
            f"artifact {manifest.key[:12]} {what}",
            hint="a card must name the source that makes it again: commit, then train in that clean tree",
        )


def save(made: Card, into: Path) -> None:
    """The card is in the folder."""
    write_atomic(into / f"{made.name}.json", (made.model_dump_json(indent=1) + "\n").encode())


def made_by(recipe: Recipe, manifest: Manifest) -> None:
    """Raises unless the recipe is the one that made the artifact, key by key."""
    other = _difference(recipe, manifest.sections)
    if other:
        raise RecipeError(
            f"{recipe.source} did not make artifact {manifest.key[:12]}: {other}",
            hint="a card must name the recipe that makes it again: change the recipe, or --recipe ANOTHER",
        )


def _difference(recipe: Recipe, sections: dict[str, dict[str, Any]]) -> str | None:
    """The first key in which the recipe and an artifact's sections differ; None when there is none."""
    for table, section in recipe.sections(*sections).items():
        said, made = section.identity(), sections[table]
        for key in sorted(said.keys() | made.keys()):
            if said.get(key) != made.get(key):
                return f"{table}.{key} is {said.get(key, 'not set')}, the artifact has {made.get(key, 'none')}"
    return None


def fixed_costs(files: list[Path], augment: int) -> Iterator[float]:
    """The best cost of these models on each of a few instances that anyone can draw again."""
    import torch

    from cnf_cli.engine import get_engine
    from cnf_cli.policies.run import solve
    from cnf_cli.training.stored_policies import load_model

    found = [load_model(path) for path in files]
    problem = found[0].problem
    inst = problem.sample(FIXED_COUNT, rng=torch.Generator().manual_seed(FIXED_SEED))
    engine = get_engine("auto", torch.device("cpu"))
    cost = solve([one.policies[0] for one in found], problem, inst, engine, augment=augment).cost
    yield from (round(float(value), 6) for value in cost.amin(0))


def _write(folder: Path, ensemble: Any, order: Order) -> Weights:
    from cnf_cli.formats import checkpoint

    sections = {"problem": ensemble.problem_section, "policy": ensemble.policy_section}
    meta = {"kind": "policy", **{name: section.identity() for name, section in sections.items()}}
    files = []
    for i, model in enumerate(ensemble.policies):
        name = f"{order.name}.safetensors" if len(ensemble.policies) == 1 else f"{order.name}-{i}.safetensors"
        checkpoint.save(folder / name, dict(model.state_dict()), meta, half=order.half)
        size, sha256 = (folder / name).stat().st_size, file_digest(folder / name)
        files.append(WeightFile(file=name, sha256=sha256, bytes=size))
    digest = joined([one.sha256 for one in files])
    return Weights(dtype="float16" if order.half else "float32", digest=digest, files=tuple(files))


def _fits(order: Order, weights: Weights) -> None:
    own = re.compile(rf"{re.escape(order.name)}(-\d+)?\.safetensors")
    others = sum(p.stat().st_size for p in order.into.glob("*.safetensors") if not own.fullmatch(p.name))
    if others + weights.bytes > MAX_BYTES:
        raise CheckFailed(
            f"the zoo would be {others + weights.bytes:,} bytes, more than {MAX_BYTES:,}",
            hint="--half, or a smaller policy.width",
        )


def _chain(store: Store, manifest: Manifest, order: Order) -> Iterator[Training]:
    """The run that made the artifact, then the one it started from, and so on."""
    yield _facts(store, manifest, order.recipe, order.threads)
    before = manifest.inputs.get("policy") or manifest.inputs.get("init")
    while before is not None:
        found = store.read(before.key)
        if found is None:
            raise ArtifactError(f"artifact {before.key[:12]}, which this one started from, is not in the store")
        if found.stage == "zoo":
            runs = card(found.sections["zoo"]["name"]).training
            # An entry that went on from its own first version and is packed again: its card begins with this very run.
            before_it = [k + 1 for k, run in enumerate(runs) if run.artifact == manifest.key]
            yield from (_by_its_recipe(run, order) for run in runs[sum(before_it) :])
            return
        named = [word for word in found.provenance.get("command", ()) if word.endswith(".toml")]
        committed(found)
        run = _facts(store, found, _relative(named[0]) if named else "", order.threads)
        yield _by_its_recipe(run, order)
        before = found.inputs.get("policy") or found.inputs.get("init")


def _by_its_recipe(run: Training, order: Order) -> Training:
    """The run as today's recipes make it again: a run that goes on from it may have taken over its recipe's name."""
    if not run.recipe:
        return run
    home = Path(order.recipe).parent
    for path in (Path(run.recipe), *sorted(home.glob("*.toml"))):
        if path.exists() and not _difference(load_recipe(path), run.sections):
            name = path.as_posix()
            return run.model_copy(update={"recipe": name, "command": run.command.replace(run.recipe, name)})
    raise RecipeError(
        f"no recipe in {home} made artifact {run.artifact[:12]}, which this one started from",
        hint=f"{run.recipe} is said to have made it: write down there, or beside it, what it was then",
    )


def _facts(store: Store, manifest: Manifest, recipe: str, threads: int) -> Training:
    facts = manifest.provenance
    curve = facts.get("curve") or [{}]
    whole = float(facts["seconds"])
    seconds = float(curve[-1].get("seconds", whole))
    cores = threads or int(facts["machine"].get("cores") or 1)
    # A resumed run's process time is that of its last part only.
    measured = facts.get("cpu_seconds") if whole >= seconds else None
    section = manifest.sections.get("train") or manifest.sections.get("pretrain") or {}
    return Training(
        stage=manifest.stage,
        artifact=manifest.key,
        recipe=recipe,
        command=told(facts.get("command", ())),
        sections=manifest.sections,
        seed=int(section.get("seed", 0)),
        instances=int(manifest.checks.get("instances", 0)),
        seconds=seconds,
        core_hours=round((measured if measured is not None else seconds * cores) / 3600, 4),
        core_hours_are="measured" if measured is not None else "at most",
        machine={
            "cpu": facts["machine"].get("cpu"),
            "cores": facts["machine"].get("cores"),
            "system": str(facts["machine"].get("system", "")).partition("-")[0],
        },
        engine=facts.get("engine"),
        git=facts.get("git"),
        python=str(facts.get("python", "")),
        versions=dict(facts.get("versions", {})),
        finished=str(facts.get("finished", "")),
        curve=tuple(_curve(store, manifest, curve)),
    )


def _curve(store: Store, manifest: Manifest, times: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each line of metrics.jsonl with the times beside it."""
    import json

    beside = {line.get("instances"): line for line in times}
    path = store.open(manifest.key, "metrics.jsonl")
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        keep = {k: v for k, v in line.items() if k in ("instances", "lr", "cost") or "validation" in k or "clean_" in k}
        keep |= {k: v for k, v in line.items() if k.startswith("adversarial_") or k == "gap_percent"}
        yield {**keep, **beside.get(line["instances"], {})}


def told(command: Any) -> str:
    """The command without the store it ran against, and without folders of one machine."""
    words, skip = [], False
    for word in command:
        if skip or word.startswith("--store="):
            skip = False
        elif word == "--store":
            skip = True
        else:
            words.append(_relative(word))
    return " ".join(words)


def _relative(word: str) -> str:
    """The word itself; of an absolute path the part from `recipes/` on, or its last part."""
    head, equals, value = word.rpartition("=")
    if not value.startswith(("/", "~", "..")) and ":\\" not in value:
        return word
    parts = Path(value).parts
    kept = parts[parts.index("recipes") :] if "recipes" in parts else parts[-1:]
    return head + equals + "/".join(kept)
