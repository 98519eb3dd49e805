"""Measure methods on sets: policies solve here, solvers' answers are taken from their labelled data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cnf_cli.engine.random import seeds_from
from cnf_cli.errors import ArtifactError, CheckFailed, DataError
from cnf_cli.evaluation.answers import columns_of, judge, kept_part, rows_of_block, save_part, stack
from cnf_cli.evaluation.proofs import Proof, check_answers, reference_proof
from cnf_cli.evaluation.protocol import ProtocolSection, SetEntry
from cnf_cli.evaluation.result_table import Column
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Array, Block, Dataset
from cnf_cli.pipeline.job import Artifact, Job, derived_seed
from cnf_cli.policies.run import answer
from cnf_cli.training.machine import Setup, set_up
from cnf_cli.training.stored_policies import Ensemble, load_models

_WORK = 1_000_000
"""Instances times nodes squared between two savings of what was found."""


def measure(job: Job, protocol: ProtocolSection) -> list[tuple[SetEntry, Dataset, list[Column]]]:
    """Each set with every method's costs and tours in its blocks' `extra`; times go into the provenance."""
    out = []
    timings: list[dict[str, Any]] = []
    with set_up(job.runtime) as setup:
        ensembles = [
            load_models(job.inputs[f"policy-{k}"], setup.device).biased(protocol.distance_bias)
            for k in range(len(protocol.policies))
        ]
        for s, entry in enumerate(protocol.sets):
            data = dataset.load(job.inputs[f"data-{s}"].path("data.h5"))
            extra: list[dict[str, Any]] = [{"set": np.full(len(block), s, "i4")} for block in data.blocks]
            for k, (name, ensemble) in enumerate(zip(protocol.policies, ensembles, strict=True)):
                if entry.only in (-1, k):
                    _fits(ensemble, data, name)
                    spent = _policy(job, setup, (s, k), data, ensemble, extra)
                    timings.append({"set": entry.name, "method": name, "seconds": round(spent, 3)})
            proofs: dict[str, list[Proof]] = {}
            for k, name in enumerate(protocol.solvers, len(ensembles)):
                source = job.inputs.get(f"solver-{k - len(ensembles)}-{s}")
                if source is None:  # a set made against one policy says nothing about solvers
                    continue
                proofs[name] = _solver(source, k, extra)
                spent = float(source.manifest.provenance.get("solver_seconds", 0.0))
                timings.append({"set": entry.name, "method": name, "seconds": round(spent, 3)})
            blocks = tuple(replace(block, extra=more) for block, more in zip(data.blocks, extra, strict=True))
            data = replace(data, blocks=blocks)
            claimed = job.inputs[f"data-{s}"].manifest.stage == "imported"
            methods = [*protocol.policies, *protocol.solvers]
            check_answers(data, methods, proofs, claimed=claimed)
            out.append((entry, data, list(columns_of(data, entry, methods, claimed))))
        where = {"device": str(setup.device), "engine": setup.engine.name}
    job.provenance.update(timings=timings, **where)
    return out


def _fits(ensemble: Ensemble, data: Dataset, name: str) -> None:
    if ensemble.problem.kind != data.problem:
        raise ArtifactError(
            f"{name} is a policy for {ensemble.problem.kind}, the data are {data.problem}",
            hint=f"`cnf ls` lists artifacts; `cnf pretrain {data.problem} --n 50` trains a policy.",
        )
    for block in data.blocks:
        try:
            ensemble.problem.from_block(rows_of_block(block, slice(0, 1)))
        except DataError as error:
            raise ArtifactError(
                f"{name} cannot read {block.names[0] or 'an instance'}: {error.message}",
                hint="leave it out, or measure solvers on it: --solver NAME",
            ) from None


def _policy(
    job: Job, setup: Setup, at: tuple[int, int], data: Dataset, ensemble: Ensemble, extra: list[dict[str, Any]]
) -> float:
    """Adds the policy's costs and tours to `extra`; the seconds it took to solve the set."""
    s, k = at
    protocol: ProtocolSection = job.section("protocol")
    spent = 0.0
    with job.bars.bar(f"{protocol.sets[s].name}: {protocol.policies[k]}", len(data), "instances") as bar:
        for number, block in enumerate(data.blocks):
            parts = []
            for low, high in _cuts(block):
                kept = job.work / f"part-{s}-{k}-{number}-{low}.npz"
                part = kept_part(kept)
                if part is None:
                    part = _solve(job, setup, ensemble, block, number, slice(low, high))
                    save_part(kept, part)
                parts.append(part)
                spent += float(parts[-1]["seconds"])
                bar.advance(high - low)
                job.pause_point()
            for name in ("cost", "plain", "tour", "plain_tour"):
                extra[number][f"{name}_{k}"] = stack([part[name] for part in parts])
    return spent


def _cuts(block: Block) -> Iterator[tuple[int, int]]:
    size = max(1, min(1000, _WORK // block.nodes**2))
    for low in range(0, len(block), size):
        yield low, min(low + size, len(block))


def _solve(job: Job, setup: Setup, ensemble: Ensemble, block: Block, number: int, rows: slice) -> dict[str, Array]:
    """Costs (b, m) and tours (b, m, t) with and without augmentation, each tour judged on the original instance."""
    protocol: ProtocolSection = job.section("protocol")
    few = rows_of_block(block, rows)
    scaled = ensemble.problem.scaled([few], protocol.normalise)[0]
    seeds = None
    if protocol.decode == "sample":
        rng = torch.Generator().manual_seed(derived_seed(protocol.seed, "evaluate", number))
        seeds = seeds_from(rng, len(block))[rows].to(setup.device)
    who = (ensemble.policies, ensemble.problem)
    started = time.perf_counter()
    solved = answer(
        *who, scaled, setup.engine, setup.device, augment=protocol.augment, seeds=seeds, chunk=job.runtime.chunk
    )
    seconds = time.perf_counter() - started
    tours = {"tour": solved.tour, "plain_tour": solved.tour_plain}
    out = {name: tour.transpose(0, 1).numpy().astype("i4") for name, tour in tours.items()}
    costs = {"cost": judge(few, out["tour"]), "plain": judge(few, out["plain_tour"])}
    return {**out, **costs, "seconds": np.array(seconds)}


def _solver(source: Artifact, k: int, extra: list[dict[str, Any]]) -> list[Proof]:
    """Adds a solver's costs and tours, as its labelling of the same instances has them; what it proved, by block."""
    data = dataset.load(source.path("data.h5"))
    for number, block in enumerate(data.blocks):
        if block.cost is None or block.tour is None or not np.isfinite(block.cost).all():
            raise CheckFailed(
                f"{data.solver} has no answer for some instances",
                hint=f"`cnf show {source.manifest.key[:12]}` says why",
            )
        extra[number][f"cost_{k}"] = block.cost[:, None]
        extra[number][f"tour_{k}"] = block.tour[:, None]
    return [reference_proof(block) for block in data.blocks]
