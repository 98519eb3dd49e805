"""Calls of kernels and searches with anything: `python -m tests.reliability.kernel_fuzz 12000`, as in `make sanitize`.

A call is made from sound arguments of which, half of the time, some are spoilt: NaN, infinities and huge numbers in any
array, arrays of other sizes, counts at the ends of their type. It may refuse them or answer; an answer is checked.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tests.conftest  # noqa: F401  takes the extensions that `make sanitize` built
from cnf_cli.engine import native
from tests.reliability.search_calls import SearchCalls

REFUSALS = (ValueError, TypeError, MemoryError)
"""ValueError is what the kernels say, TypeError what the binding says of a shape or a number it cannot take."""
ODD = [float("nan"), float("inf"), float("-inf"), 1e29, -1e29, 3e38, 1e-40, 0.0, 1e10, -7.0]
OPTIONAL = ("first", "load", "demand", "units", "limit", "near", "space", "fade", "nearest")
COUNTS = [-(2**31), -1, 0, 1, 3, 17, 2**31 - 1]
Call = dict[str, Any]


class Maker:
    """Arguments of one call after another, from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice, self.rng = random.Random(seed), torch.Generator().manual_seed(seed)

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng) * self.dice.choice([0.1, 1.0, 1.0, 10.0])

    def size(self) -> tuple[int, int, int, int]:
        """(b, n, d, heads), mostly small."""
        heads = self.dice.choice([1, 2, 3, 4, 7, 8, 16])
        n = self.dice.choice([1, 2, 3, 5, 8, 16, 17, 33, self.dice.randint(1, 70)])
        return self.dice.randint(1, 4), n, heads * self.dice.choice([1, 2, 3, 4, 8, 16]), heads

    def rollout(self) -> tuple[Callable[..., Any], Call]:
        """Greedy or sampled tours."""
        call, b, n, p = self.decoder()
        room = 2 * n + 1 if "demand" in call["tables"] else n
        call |= {
            "moves": torch.full((b, p, room), -9, dtype=torch.int16),
            "length": torch.zeros(b, p, dtype=torch.int32),
        }
        call["seeds"] = self.dice.choice([None, torch.arange(b)])
        call["log_prob"] = self.dice.choice([None, torch.zeros(b, p)])
        return native._native.rollout, call

    def score(self) -> tuple[Callable[..., Any], Call]:
        """Probabilities of tours, with gradients or without."""
        call, b, n, p = self.decoder()
        tables = call["tables"]
        depot = "demand" in tables
        tours = torch.zeros(b, p, n + 1 if depot else n, dtype=torch.int64)
        for i in range(b):
            for k, start in enumerate(tables["starts"].tolist()):
                rest = [j for j in range(int(depot), n) if j != start]
                self.dice.shuffle(rest)
                walk = [0, start, *rest, 0][: n + 1] if depot else [start, *rest]
                tours[i, k] = torch.tensor(walk)
        d = tables["key"].shape[-1]
        rows, pairs = torch.zeros(b, n, d), torch.zeros(b, n, n)
        optional = {"first": rows, "load": torch.zeros(b, d), "near": pairs, "space": pairs}
        grads = [rows.clone() for _ in range(4)] + [torch.zeros(b, n)]
        for name in ("first", "load", "near", "space"):
            used = name in tables and (name != "load" or depot)
            grads.append(optional[name].clone() if used else torch.zeros(0))
        grads.append(torch.zeros(b, call["heads"]) if "fade" in tables else torch.zeros(0))
        call |= {"tours": tours, "weight": self.floats(b, p), "total": torch.zeros(b), "log_prob": torch.zeros(b, p)}
        call["grads"] = self.dice.choice([[], grads])
        return native._native.score, call

    def decoder(self) -> tuple[Call, int, int, int]:
        b, n, d, heads = self.size()
        depot = self.dice.random() < 0.5 and n > 1
        p = self.dice.randint(1, 20)
        starts = torch.randint(int(depot), n, (p,), generator=self.rng)
        tables: Call = {name: self.floats(b, n, d) for name in ("last", "key", "value", "pointer")}
        tables |= {"bias": self.floats(b, n), "starts": starts}
        if depot:
            units = torch.randint(0, 10, (b, n), generator=self.rng).double()
            units[:, 0] = 0
            tables |= {"demand": (units / 12).float(), "units": units, "limit": torch.full((b,), 12.0).double()}
        if self.dice.random() < 0.5:
            tables["load"] = self.floats(d)
        if self.dice.random() < 0.5:
            tables["first"] = self.floats(b, n, d)
        if self.dice.random() < 0.3:
            tables["near"] = self.floats(b, n, n)
        if self.dice.random() < 0.3:
            tables |= {"space": self.floats(b, n, n).abs(), "fade": self.floats(heads)}
        if self.dice.random() < 0.4:
            nearest = torch.rand(b, n, n, generator=self.rng).argsort(-1).short()
            tables |= {"nearest": nearest, "candidates": self.dice.choice([1, 2, 5, 8, n, 2 * n])}
        clip = self.dice.choice([10.0, 10.0, 50.0, 1.0])
        return {"tables": tables, "heads": heads, "clip": clip, **self.how()}, b, n, p

    def how(self) -> Call:
        return {"threads": self.dice.choice([1, 1, 2, 3]), "isa": self.dice.choice(["", *native.instruction_sets()])}

    def layers(self) -> tuple[Callable[..., Any], Call]:
        """The encoder, forward and then, where something was kept, backward."""
        heads = self.dice.choice([1, 2, 4, 8])
        d, f = 16 * heads * self.dice.choice([1, 2]), 16 * self.dice.randint(1, 6)
        b, n, count = self.dice.randint(1, 5), self.dice.choice([1, 2, 7, 16, 33]), self.dice.randint(1, 2)
        group, kernels = self.dice.choice([1, 2, b, b + 3]), native._native
        sizes = [(d, d)] * 4 + [(d,)] * 3 + [(f, d), (f,), (d, f), (d,), (d,), (d,)]
        weights = [self.floats(*size) * 0.2 for _ in range(count) for size in sizes]
        far = self.dice.random() < 0.3
        space, fade = (self.floats(b, n, n).abs(), self.floats(count, heads)) if far else (None, None)
        call = {"x": self.floats(b, n, d), "weights": weights, "heads": heads, "group": group, **self.how()}
        call |= {"space": space, "fade": fade}
        saved = torch.zeros(kernels.layers_room(b, n, d, f, count))
        if self.dice.random() < 0.5:
            return kernels.layers, call | {"out": torch.empty(b, n, d), "saved": self.dice.choice([None, saved])}
        kernels.layers(**call, out=torch.empty(b, n, d), saved=saved)
        groups = -(-b // group)
        d_weights = torch.empty(groups, sum(w.numel() for w in weights))
        call |= {"saved": saved, "d_out": self.floats(b, n, d), "d_in": torch.empty(b, n, d)}
        call |= {"d_weights": self.dice.choice([None, d_weights])}
        call |= {"d_space": torch.zeros(b, n, n) if far else None}
        return kernels.layers_backward, call | {"d_fade": torch.zeros(groups, count, heads) if far else None}

    def mixed(self) -> tuple[Callable[..., Any], Call]:
        """MatNet's attention, forward or backward."""
        kernels, heads = native._native, self.dice.choice([1, 2, 4])
        b, n, d = self.dice.randint(1, 5), self.dice.choice([1, 2, 7, 16, 33]), heads * 4 * self.dice.choice([1, 2, 4])
        x, group = kernels.HIDDEN, self.dice.choice([1, 2, b, b + 3])
        call: Call = {name: self.floats(b, n, d) for name in "qkv"}
        net = [self.floats(heads, 2, x), self.floats(heads, x), self.floats(heads, x), self.floats(heads)]
        call |= {"cost": self.floats(b, n, n), "flipped": self.dice.random() < 0.5, "net": net, "heads": heads}
        call |= {"group": group, "out": None, "d_out": None, "grads": [], "d_weights": None, **self.how()}
        if self.dice.random() < 0.5:
            return kernels.mixed, call | {"out": torch.empty(b, n, d)}
        grads = [torch.empty(b, n, d) for _ in range(3)] + [torch.empty(b, n, n)] * self.dice.randint(0, 1)
        sums = torch.zeros(-(-b // group), heads * kernels.MIXING_WEIGHTS)
        return kernels.mixed, call | {"d_out": self.floats(b, n, d), "grads": grads, "d_weights": sums}

    def spoil(self, call: Call) -> None:
        """One argument is no longer what it should be."""
        name = self.dice.choice(list(call))
        value = call[name]
        if isinstance(value, dict):
            self.spoil(value)
        elif isinstance(value, list) and value:
            k = self.dice.randrange(len(value))
            value[k] = self.spoilt(value[k])
        elif isinstance(value, Tensor):
            call[name] = self.spoilt(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return
        else:
            call[name] = self.dice.choice(COUNTS) if isinstance(value, int) else self.dice.choice(ODD)

    def spoilt(self, x: Tensor) -> Tensor:
        """Other numbers in some places or in all, or another size."""
        if self.dice.random() < 0.25:
            shape = list(x.shape)
            if shape:
                k = self.dice.randrange(len(shape))
                shape[k] = max(0, shape[k] + self.dice.choice([-1, 1, 5, -shape[k]]))
            return x.new_zeros(shape)
        out = x.clone()
        if not out.numel():
            return out
        if out.is_floating_point():
            odd: Any = torch.tensor(self.dice.choice(ODD)).to(out.dtype)
        else:
            odd = self.dice.choice([-1, 0, 1, 999, -(2**15), 2**15 - 1])
        flat = out.view(-1)
        many = self.dice.choice([1, 1, 2, len(flat)])
        flat[torch.randint(len(flat), (many,), generator=self.rng)] = odd
        return out


def check(call: Call) -> None:
    """A rollout that was made visits every node once, and with a depot comes home."""
    starts = call["tables"]["starts"].tolist()
    n, depot = call["tables"]["key"].shape[1], "demand" in call["tables"]
    for rows, lengths in zip(call["moves"].tolist(), call["length"].tolist(), strict=True):
        for row, length, start in zip(rows, lengths, starts, strict=True):
            walk = row[:length]
            assert walk[int(depot)] == start
            assert sorted(v for v in walk if v or not depot) == list(range(int(depot), n)), walk
            assert not any(row[length:])
            assert not depot or walk[0] == walk[-1] == 0


def fuzz(calls: int, seed: int) -> Counter[str]:
    """How many of each kernel's calls were answered and refused; anything else has raised or ended the process."""
    maker, count = Maker(seed), Counter[str]()
    searches = SearchCalls(maker.dice, maker.rng)
    makers = (maker.rollout, maker.score, maker.layers, maker.mixed, searches.tours, searches.routes)
    for _ in range(calls):
        kernel, call = maker.dice.choice(makers)()
        for _ in range(maker.dice.choice([0, 1, 1, 2])):
            maker.spoil(call)
        given = dict(call)
        try:
            if "tables" in given:
                rows: Call = dict.fromkeys(OPTIONAL)
                given["tables"] = native._native.Tables(**rows | {"candidates": 0} | given["tables"])
            kernel(**given)
        except REFUSALS:
            count[f"{kernel.__name__} refused"] += 1
        else:
            count[f"{kernel.__name__} answered"] += 1
            if "moves" in call:
                check(call)
    return count


if __name__ == "__main__":
    done = fuzz(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
    print(", ".join(f"{name}: {times}" for name, times in sorted(done.items())), f"- {done.total()} calls")
