"""Random numbers by counting, bit for bit those of cpp/draws.h: draw t of a seed is a hash of both."""

from __future__ import annotations

_MASK = (1 << 64) - 1


class Draws:
    """A stream of numbers that is a function of its seed alone."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed & _MASK, 0

    def _next(self) -> int:
        self.count += 1
        z = (self.seed + self.count * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        """A whole number from 0 up to, not including, `limit`."""
        return ((self._next() >> 32) * limit) >> 32

    def unit(self) -> float:
        """A number in [0, 1)."""
        return (self._next() >> 11) * 2.0**-53
