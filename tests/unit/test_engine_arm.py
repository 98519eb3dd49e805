"""The kernels are plain C++: built for ARM and run by an emulator they give the numbers of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "cnf_cli" / "engine" / "cpp"
FLAGS = [
    "-std=c++17",
    "-O2",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-DCNF_ISA=base",
    "-static",
]


def printed(compiler: str, runner: list[str], folder: Path) -> list[str]:
    program = folder / compiler
    sources = [str(HERE / "native_probe.cpp"), str(SOURCE / "kernel.cpp")]
    subprocess.run([compiler, *FLAGS, f"-I{SOURCE}", *sources, "-o", str(program)], check=True)
    return subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.slow
def test_kernels_give_the_same_on_arm(tmp_path: Path) -> None:
    """Every kernel, cross-compiled for aarch64, gives the tours of the x86-64 build and its numbers within 1e-4."""
    cross, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64"
    for tool in ("g++", cross, emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    ours, theirs = printed("g++", [], tmp_path), printed(cross, [emulator], tmp_path)
    assert len(ours) == len(theirs) > 20
    for a, b in zip(ours, theirs, strict=True):
        name, *numbers = a.split()
        if name == "tours":
            assert a == b
        else:
            assert [float(x) for x in b.split()[1:]] == pytest.approx([float(x) for x in numbers], rel=1e-4, abs=1e-4)
