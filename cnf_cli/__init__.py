"""Train, attack, harden and measure neural routing solvers."""

__version__ = "0.1.0"
