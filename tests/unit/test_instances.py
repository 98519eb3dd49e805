"""A batch of instances behaves like a sequence of its fields."""

from __future__ import annotations

import torch

from cnf_cli.problems.instances import Instances, concatenate


def batch() -> Instances:
    return Instances(torch.arange(24.0).view(3, 4, 2), torch.arange(12.0).view(3, 4), torch.tensor([1.0, 2.0, 3.0]))


def test_indexing_takes_all_fields() -> None:
    """Slices, index tensors and masks select the same instances of every field; absent fields stay absent."""
    inst = batch()
    for index in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True])):
        part = inst[index]
        assert len(part) == 2
        assert torch.equal(part.xy, inst.xy[1:])  # type: ignore[index, arg-type]
        assert part.capacity.tolist() == [2, 3]  # type: ignore[union-attr]
        assert part.matrix is None


def test_concatenate_undoes_slicing() -> None:
    """The parts of a batch, in order, are the batch."""
    inst = batch()
    again = concatenate([inst[:1], inst[1:]])
    assert all(v is None or torch.equal(v, getattr(inst, k)) for k, v in vars(again).items())


def test_repeat_is_instance_major() -> None:
    """Copies of one instance lie side by side."""
    assert batch().repeat_interleave(2).capacity.tolist() == [1, 1, 2, 2, 3, 3]  # type: ignore[union-attr]


def test_detach_and_with() -> None:
    """Detaching cuts the graph of every field; replacing one field leaves the others and the original as they were."""
    xy = torch.zeros(3, 4, 2, requires_grad=True)
    inst = batch().with_(xy=xy * 2)
    assert inst.xy.requires_grad  # type: ignore[union-attr]
    assert not inst.detach().xy.requires_grad  # type: ignore[union-attr]
    assert torch.equal(inst.demand, batch().demand)  # type: ignore[arg-type]


def test_size_without_coordinates() -> None:
    """A batch of matrices knows its size too."""
    inst = Instances(matrix=torch.zeros(5, 7, 7))
    assert (len(inst), inst.nodes, inst.device.type) == (5, 7, "cpu")
