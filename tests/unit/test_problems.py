"""TSP and CVRP: generators, capacity rule, cost, projection, conversion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Block
from cnf_cli.problems import cvrp, sampling, tsp
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.project import project, project_demand

TSP = tsp.Problem(tsp.Params())
CVRP = cvrp.Problem(cvrp.Params())


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("dist", "nearest", "deviation", "shorter"),
    [("explosion", 0.0404, 0.243, 0.852), ("rotation", 0.0405, 0.229, 0.769)],
)
def test_shifted_maps_look_like_the_published_ones(dist: str, nearest: float, deviation: float, shorter: float) -> None:
    """Nearest-neighbour distance, spread and shorter side are within 7% of the published sets'; both minima are 0."""
    xy = sampling.coordinates(dist, 600, 100, rng(3))
    far = torch.cdist(xy, xy, compute_mode="donot_use_mm_for_euclid_dist") + 9 * torch.eye(100)
    assert float(far.amin(-1).mean()) == pytest.approx(nearest, rel=0.07)
    assert float(xy.std(1).mean()) == pytest.approx(deviation, rel=0.07)
    high = xy.amax(1)
    assert float(high.amin(1).mean()) == pytest.approx(shorter, rel=0.07)
    assert (xy.amin(1) == 0).all()
    assert (high.amax(1) == 1).all()


def test_uniform_is_not_fitted() -> None:
    """Uniform maps have mean 1/2 and deviation 1/sqrt(12), and do not touch the border."""
    xy = sampling.coordinates("uniform", 500, 100, rng())
    assert float(xy.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(xy.std()) == pytest.approx(12**-0.5, abs=0.003)
    assert float(xy.amin(1).mean()) > 0.005


def test_mixture_is_clustered_and_stretched() -> None:
    """Gaussian mixtures reach from 0 to 1 on both axes, with neighbours far closer than on uniform maps."""
    xy = sampling.coordinates("gaussian_mixture", 300, 100, rng())
    assert (xy.amin(1) == 0).all()
    assert (xy.amax(1) == 1).all()
    far = torch.cdist(xy, xy, compute_mode="donot_use_mm_for_euclid_dist") + 9 * torch.eye(100)
    assert float(far.amin(-1).mean()) < 0.03


def test_unknown_distribution() -> None:
    """An unknown distribution is named together with the known ones."""
    with pytest.raises(ValueError, match="rotation"):
        sampling.coordinates("clustered", 1, 5, rng())


def test_capacity_rule() -> None:
    """The literature's table, the paper's formula elsewhere, the recipe's number above both."""
    assert [CVRP.capacity(n) for n in (20, 50, 100, 200)] == [30, 40, 50, 70]
    assert [CVRP.capacity(n) for n in (10, 21, 500)] == [32, 35, 130]
    assert cvrp.Problem(cvrp.Params(capacity=77)).capacity(20) == 77


def test_demands_are_whole_units() -> None:
    """Sampled demands are 1..9 units, all of them, and never more than a small vehicle carries."""
    inst = CVRP.sample(200, rng=rng(), n=20)
    units = CVRP.to_block(inst).demand
    assert units is not None
    assert set(np.unique(units[:, 1:])) == set(range(1, 10))
    small = cvrp.Problem(cvrp.Params(capacity=4)).sample(50, rng=rng(), n=20)
    assert small.demand is not None
    assert small.demand.max() == 1


def test_augmentation_order() -> None:
    """The eight symmetries come in the published order."""
    inst = Instances(torch.tensor([[[0.1, 0.3], [0.2, 0.4]]]))
    copies = TSP.augment(inst).xy
    assert copies is not None
    x, y, X, Y = 0.1, 0.3, 0.9, 0.7
    want = [(x, y), (X, y), (x, Y), (X, Y), (y, x), (Y, x), (y, X), (Y, X)]
    assert torch.allclose(copies[:, 0], torch.tensor(want))
    with pytest.raises(ValueError, match="8"):
        TSP.augment(inst, 9)


def test_cost_by_hand() -> None:
    """A square costs 4 round, a CVRP walk counts both ways of each route, and padding is free."""
    square = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    assert TSP.cost(Instances(square), torch.tensor([[[0, 1, 2, 3], [0, 2, 1, 3]]])).tolist()[0] == pytest.approx(
        [4, 2 + 2 * 2**0.5]
    )
    walks = torch.tensor([[[0, 1, 0, 3, 0, 0, 0], [0, 1, 3, 0, 0, 0, 0]]])
    assert CVRP.cost(Instances(square), walks).tolist()[0] == pytest.approx([4, 2 + 2**0.5])


def test_cost_gradient_is_right_and_zero_on_empty_legs() -> None:
    """The derivative equals a finite difference; a leg between equal points adds nothing, not NaN."""
    xy = torch.rand(2, 5, 2, generator=rng(), dtype=torch.float64)
    tours = torch.stack([torch.stack([torch.randperm(5, generator=rng(s)) for s in range(3)]) for _ in range(2)])
    assert torch.autograd.gradcheck(lambda v: TSP.cost(Instances(v), tours), xy.requires_grad_())
    same = torch.full((1, 4, 2), 0.3, requires_grad=True)
    cost = TSP.cost(Instances(same), torch.tensor([[[0, 1, 2, 3]]]))
    assert float(cost.detach()) == 0
    assert torch.equal(torch.autograd.grad(cost.sum(), same)[0], torch.zeros(1, 4, 2))


def test_projection_modes() -> None:
    """minmax always stretches, if_needed only what left the square, clip clamps, none does nothing."""
    inside = torch.tensor([[0.2, 0.4], [0.6, 0.5]])
    outside = torch.tensor([[-1.0, 0.4], [1.0, 0.5]])
    xy = torch.stack([inside, outside])
    full = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert torch.equal(project(xy, "minmax"), torch.stack([full, full]))
    assert torch.equal(project(xy, "if_needed"), torch.stack([inside, full]))
    assert torch.equal(project(xy, "clip"), torch.stack([inside, torch.tensor([[0.0, 0.4], [1.0, 0.5]])]))
    assert torch.equal(project(xy, "none"), xy)


def test_projection_of_an_axis_without_extent() -> None:
    """Where all moved nodes share a coordinate it is clamped, not divided by zero."""
    xy = torch.tensor([[[0.3, 2.0], [0.3, 2.0]]])
    assert torch.equal(project(xy, "minmax"), torch.tensor([[[0.3, 1.0], [0.3, 1.0]]]))


def test_customers_are_stretched_without_the_depot() -> None:
    """As published: the depot stays and is no part of the customers' min and max; with it, both go together."""
    xy = torch.tensor([[[0.9, 0.9], [0.2, 0.2], [0.6, 0.4]]])
    inst = Instances(xy, torch.tensor([[0, 0.1, 0.2]]), torch.tensor([30.0]))
    alone = CVRP.project(inst, ["customers"]).xy
    assert alone is not None
    assert torch.equal(alone, torch.tensor([[[0.9, 0.9], [0.0, 0.0], [1.0, 1.0]]]))
    both = CVRP.project(inst, ["customers", "depot"]).xy
    assert both is not None
    assert torch.equal(both[0, 0], torch.ones(2))


def test_demand_projection() -> None:
    """released: ceil(9u) within 1..9; paper: ceil(8u); equal demands and whole units stay; the capacity is kept."""
    demand = torch.tensor([[0.0, -0.5, 0.5, 0.05]])
    customers = torch.tensor([[False, True, True, True]])
    capacity = torch.tensor([30.0])
    assert (project_demand(demand, capacity, customers) * 30).round().tolist() == [[0, 1, 9, 5]]
    assert (project_demand(demand, capacity, customers, "paper") * 30).round().tolist() == [[0, 0, 8, 5]]
    equal = torch.tensor([[0.0, 7 / 30, 7 / 30, 7 / 30]])
    for rule in ("released", "paper"):
        assert torch.equal(project_demand(equal, capacity, customers, rule), equal)  # type: ignore[arg-type]
    tight = project_demand(demand, torch.tensor([4.0]), customers)
    assert tight.max() == 1


def test_normalise_keeps_the_shape_of_the_map() -> None:
    """Any units are fitted to the unit square with one scale for both axes, however large or small."""
    xy = np.array([[[100.0, 50.0], [300.0, 150.0], [200.0, 50.0]]])
    for scale, shift in ((1.0, 0.0), (1e9, 7e9), (1e-9, 0.0)):
        got = TSP.scaled([Block(xy=xy * scale + shift)], "fit")[0].instances.xy
        assert got is not None
        assert got.dtype == torch.float32
        assert torch.allclose(got, torch.tensor([[[0.0, 0.0], [1.0, 0.5], [0.5, 0.0]]]))
    flat = TSP.scaled([Block(xy=np.full((1, 3, 2), 5.0))], "fit")[0].instances.xy
    assert flat is not None
    assert torch.equal(flat, torch.zeros(1, 3, 2))


def test_blocks_of_another_problem_are_refused() -> None:
    """Demands do not belong in a TSP, a CVRP needs them, and neither reads a bare matrix."""
    block = CVRP.to_block(CVRP.sample(1, rng=rng(), n=4))
    with pytest.raises(DataError, match="demands"):
        TSP.from_block(block)
    with pytest.raises(DataError, match="no demands"):
        CVRP.from_block(TSP.to_block(TSP.sample(1, rng=rng(), n=4)))
    with pytest.raises(DataError, match="coordinates"):
        TSP.from_block(Block(matrix=np.zeros((1, 3, 3)), rule="explicit"))


def test_whole_demands_survive_large_capacities() -> None:
    """Units come back whole although their share of the capacity was stored in float32."""
    demand = np.array([[0.0, 1.0, 99_999.0, 54_321.0]])
    block = Block(xy=np.random.default_rng(0).random((1, 4, 2)), demand=demand, capacity=np.array([100_000.0]))
    assert CVRP.to_block(CVRP.from_block(block)).demand.tolist() == demand.tolist()  # type: ignore[union-attr]
