"""What the problems share: one method each for what differs, everything else written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cnf_cli.errors import DataError
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.load import FLOAT32_UNITS, whole_units
from cnf_cli.problems.load import TOLERANCE as TOLERANCE  # the only slack; defined where no torch is needed
from cnf_cli.problems.project import DemandRule, How, project
from cnf_cli.problems.scaled import Scaled, frame
from cnf_cli.problems.validate import check_tour
from cnf_cli.problems.world import World
from cnf_cli.recipe.sections import Normalise

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Block


class BaseProblem(ABC):
    """A routing problem on coordinates, unless its methods say otherwise; `Problem` in each plugin file."""

    kind: str
    feature_groups: Mapping[str, int]
    """Feature count of each group of nodes, the groups in node order."""
    query: tuple[str, ...]
    """What the decoder's query is made of: "first", "last", "load"."""
    movable: tuple[str, ...]
    """What an attack may change."""
    depots = 0
    """How many of the first nodes are depots."""

    @abstractmethod
    def sample(self, count: int, *, rng: torch.Generator, n: int | None = None, dist: str | None = None) -> Instances:
        """`count` fresh instances."""

    @abstractmethod
    def features(self, inst: Instances) -> dict[str, Float[Tensor, "b k f"]]:
        """What the policy sees of each node, by group, the groups in node order."""

    @abstractmethod
    def masks(self, inst: Instances, names: Sequence[str]) -> dict[str, Bool[Tensor, "b n"]]:
        """For each field of `inst` that the movable attributes `names` touch: which of its nodes may change."""

    def world(self, inst: Instances, starts: int | Int[Tensor, " p"] | None = None) -> World:
        """The rules of `inst`; all starts, that many spread evenly over the nodes, or exactly these nodes."""
        if isinstance(starts, Tensor):
            return World(starts.to(inst.device), inst.demand, inst.capacity)
        count = inst.nodes - self.depots
        few = count if starts is None else max(1, min(starts, count))
        evenly = torch.arange(few, device=inst.device) * count // few + self.depots
        return World(evenly, inst.demand, inst.capacity)

    def distances(self, inst: Instances) -> Float[Tensor, "b n n"]:
        """Cost of going from each node to each other; its derivative is 0, not NaN, between equal points."""
        assert inst.xy is not None
        squared = (inst.xy[:, :, None] - inst.xy[:, None]).square().sum(-1)
        apart = squared > 0
        return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)

    def cost(self, inst: Instances, tours: Int[Tensor, "b p t"]) -> Float[Tensor, "b p"]:
        """Length of the closed tours, differentiable with respect to the instance."""
        matrix, tours = self.distances(inst).flatten(1), tours.long()
        legs = tours * inst.nodes + tours.roll(-1, -1)
        return matrix.gather(1, legs.flatten(1)).view(tours.shape).sum(-1)

    def augment(self, inst: Instances, k: int = 8) -> Instances:
        """k symmetric copies of each instance, copy a of instance i at i * k + a; copy 0 is the instance itself."""
        if not 1 <= k <= 8:
            raise ValueError(f"a square has 8 symmetries, not {k}")
        assert inst.xy is not None
        x, y = inst.xy.unbind(-1)
        pairs = [(x, y), (1 - x, y), (x, 1 - y), (1 - x, 1 - y), (y, x), (1 - y, x), (y, 1 - x), (1 - y, 1 - x)]
        copies = torch.stack([torch.stack(pair, -1) for pair in pairs[:k]], 1)
        return inst.repeat_interleave(k).with_(xy=copies.flatten(0, 1))

    def project(
        self,
        inst: Instances,
        names: Sequence[str],
        how: How = "minmax",
        demand: DemandRule = "released",
        *,
        was: Instances | None = None,
    ) -> Instances:
        """`inst` with the attributes `names` back in their domain; those moved together are stretched together.

        `was`: the instances before their last step; what a user's own has already is in its domain too.
        """
        masks = self.masks(inst, names)
        if "xy" in masks and inst.xy is not None:
            inst = inst.with_(xy=project(inst.xy, how, masks["xy"]))
        return inst

    def from_block(self, block: Block) -> Instances:
        """The block's instances as float32 tensors, coordinates as they are stored."""
        if block.xy is None:
            raise DataError(
                f"{self.kind} needs coordinates, and this data has only a distance matrix",
                hint="`cnf list problems` says which problems read a matrix",
            )
        if (block.demand is not None) != (self.depots > 0):
            have = "has" if block.demand is not None else "has no"
            raise DataError(f"this data {have} demands, so it is not a {self.kind}", hint="`cnf list problems`")
        demand = capacity = None
        if block.demand is not None and block.capacity is not None:
            wide = np.float64 if block.capacity.max() > FLOAT32_UNITS else np.float32
            demand, capacity = (_tensor(x, wide) for x in (block.demand / block.capacity[:, None], block.capacity))
        return Instances(_tensor(block.xy), demand, capacity)

    def scaled(self, blocks: Sequence[Block], how: Normalise = "auto") -> list[Scaled]:
        """Every block as a policy is shown it, in order, with its own price and the way back to the user's units."""
        out = []
        for block in blocks:
            try:
                out.append(self._scaled(block, how))
            except DataError as error:
                raise DataError(f"{block.names[0] or 'an instance'}: {error.message}", hint=error.hint) from None
        return out

    def _scaled(self, block: Block, how: Normalise) -> Scaled:
        inst = self.from_block(block)
        low, width = frame(block, how, self.depots)
        assert block.xy is not None
        return Scaled(block, inst.with_(xy=_tensor((block.xy - low) / width)), low, width)

    def to_block(self, inst: Instances, **more: Any) -> Block:
        """The instances as float64 arrays, demands in units; `more` are further fields of `Block`."""
        from cnf_cli.formats.dataset import Block

        arrays: dict[str, Any] = {k: None if v is None else _array(v) for k, v in vars(inst).items() if k != "seed"}
        if arrays["matrix"] is not None:
            more.setdefault("rule", "explicit")
        if arrays["demand"] is not None and arrays["capacity"] is not None:
            assert inst.demand is not None
            assert inst.capacity is not None
            arrays["demand"] = _array(whole_units(inst.demand, inst.capacity)[0])
        return Block(**arrays, **more)

    def check(self, inst: Instances, i: int, tour: Sequence[int] | Int[Tensor, " t"]) -> float:
        """The float64 cost of a feasible tour of instance i, padding ignored; `InvalidTour` for any other."""
        nodes = [int(v) for v in (tour.tolist() if isinstance(tour, Tensor) else tour) if v >= 0]
        row = {k: None if v is None else _array(v[i]) for k, v in vars(inst).items()}
        demand, capacity = row["demand"], None
        if inst.demand is not None and inst.capacity is not None:
            units, _ = whole_units(inst.demand[i : i + 1], inst.capacity[i : i + 1])
            demand, capacity = _array(units[0]), float(inst.capacity[i])
        return check_tour(nodes, xy=row["xy"], matrix=row["matrix"], demand=demand, capacity=capacity)

    def _known(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.movable:
                raise ValueError(f"{self.kind} has no movable {name!r}; it has {', '.join(self.movable)}")


def _tensor(array: Any, dtype: Any = np.float32) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()
