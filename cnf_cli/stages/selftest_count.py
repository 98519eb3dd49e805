"""First half of `cnf selftest`: count to a number, slowly, saving its place, so that resuming can be seen."""

from __future__ import annotations

import time

from cnf_cli import interrupt
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage
from cnf_cli.pipeline.work_files import write_atomic
from cnf_cli.recipe.sections import Section

VERSION = 1


class SelftestSection(Section):
    """How far to count."""

    numbers: int = 50
    pause_seconds: float = 0.005


def run(job: Job) -> Result:
    """Writes the numbers below `numbers`, one per line."""
    section = job.section("selftest")
    saved = job.work / "state"
    done = saved.read_text(errors="replace").splitlines() if saved.exists() else []
    if done != [str(number) for number in range(len(done))]:
        done = []  # damaged: counted again
    with interrupt.polite(), job.bars.bar("counting", section.numbers, "numbers", len(done)) as bar:
        while len(done) < section.numbers:
            time.sleep(section.pause_seconds)
            done.append(str(len(done)))
            bar.advance()
            if len(done) % 10 == 0 or job.stopping():
                write_atomic(saved, "\n".join(done).encode())
                job.pause_point()
    out = job.work / "numbers.txt"
    write_atomic(out, ("\n".join(done) + "\n").encode())
    return Result({"numbers.txt": out}, {"count": len(done)})


STAGE = Stage("selftest_count", VERSION, run, title=lambda _: "count")
