"""The commented starter file that `cnf init` writes."""

from __future__ import annotations

from cnf_cli import plugins

_STARTER = """\
# A complete experiment: train a policy, attack it, harden it, measure it.
# `cnf recipe show FILE` prints every key with its default; `cnf list FAMILY KIND` explains a plugin's keys.

[problem]
kind = "{problem}"            # `cnf list problems`
n = {n}                  # nodes to visit (customers, with a depot)
dist = "uniform"         # uniform, rotation, explosion, gaussian_mixture

[policy]
kind = "pomo"            # `cnf list policies`
width = 64               # 128 as published; 64 trains two to three times faster on a CPU

[pretrain]               # cnf pretrain FILE
instances = 500_000
batch_size = 64
lr = 3e-4
decay_last = 0.2         # the last fifth of the run at a tenth of the rate

[attack]                 # cnf attack FILE
kind = "attribute"       # `cnf list attacks`
steps = 1

[train]                  # cnf train-cnf FILE
defence = "cnf"          # `cnf list defences`
models = 3
instances = 100_000
batch_size = 64

[evaluate]               # cnf evaluate FILE
count = 1000
augment = 8

[runtime]                # never changes a result's identity
device = "auto"
engine = "auto"
"""


def starter(problem: str, n: int) -> str:
    """A commented recipe for that problem and size."""
    plugins.params("problems", problem)
    return _STARTER.format(problem=problem, n=n)
