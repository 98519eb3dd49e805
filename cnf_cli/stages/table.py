"""All stages, in the order in which an experiment comes to them."""

from __future__ import annotations

from cnf_cli.pipeline.stage import Stage
from cnf_cli.stages import (
    attack,
    bench,
    data,
    evaluate,
    first,
    imported,
    known,
    label,
    pretrain,
    report,
    selftest_count,
    selftest_sum,
    train_cnf,
    visualize,
    zoo,
)
from cnf_cli.store import Manifest

STAGES: tuple[Stage, ...] = (
    data.STAGE,
    imported.STAGE,
    known.STAGE,
    bench.STAGE,
    first.STAGE,
    label.STAGE,
    zoo.STAGE,
    pretrain.STAGE,
    attack.STAGE,
    train_cnf.STAGE,
    evaluate.STAGE,
    visualize.STAGE,
    report.STAGE,
    selftest_count.STAGE,
    selftest_sum.STAGE,
)


def command_of(made: Manifest, recipe: str = "") -> str:
    """What makes this artifact alone; "" where only the command that was typed then is known."""
    stage = next((one for one in STAGES if one.name == made.stage), None)
    return stage.command(made, recipe) if stage else ""
