"""Second half of `cnf selftest`: add up what the first half counted."""

from __future__ import annotations

from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage
from cnf_cli.pipeline.work_files import write_atomic

VERSION = 1


def run(job: Job) -> Result:
    """Writes the sum of the numbers."""
    total = sum(int(line) for line in job.inputs["numbers"].path("numbers.txt").read_text().split())
    out = job.work / "sum.txt"
    write_atomic(out, f"{total}\n".encode())
    return Result({"sum.txt": out}, {"sum": total})


STAGE = Stage("selftest_sum", VERSION, run, title=lambda _: "add up")
