"""Random damage to bytes, shared by the tests of every binary format."""

from __future__ import annotations

import numpy as np


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, removed, inserted or flipped."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(out)))
        match int(rng.integers(4)):
            case 0:
                out[at] = int(rng.integers(256))
            case 1:
                del out[at : at + int(rng.integers(1, 20))]
            case 2:
                out[at:at] = rng.integers(0, 256, int(rng.integers(1, 9)), dtype="u1").tobytes()
            case _:
                out[at] ^= 1 << int(rng.integers(8))
        out = out or bytearray(b"\0")
    return bytes(out)


def test_damage_is_damage_and_repeats() -> None:
    """Nearly every mutation changes the bytes, and the same seed makes the same change."""
    data = bytes(range(256))
    changed = sum(mutate(data, np.random.default_rng(k)) != data for k in range(200))
    assert changed > 190
    assert mutate(data, np.random.default_rng(1)) == mutate(data, np.random.default_rng(1))
