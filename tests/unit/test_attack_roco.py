"""ROCO: its moves, its searches, its learned attacker, and every kind of victim."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cnf_cli.attacks import roco
from cnf_cli.attacks.roco_actor import Scene, detour, make_actor
from cnf_cli.attacks.roco_edges import candidates, draw_edges, halve, on_tour
from cnf_cli.attacks.roco_search import _rank
from cnf_cli.attacks.roco_victims import PolicyVictim, victim_of
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.policies import matnet
from cnf_cli.problems import atsp, tsp
from cnf_cli.problems.instances import Instances
from cnf_cli.solvers.base import Instance
from cnf_cli.solvers.exact import held_karp
from tests.unit.defence_kit import Run, same

N = 8
KINDS = ["ppo", "beam", "random", "anneal"]
FAST = {"steps": 3, "width": 2, "branch": 2, "episodes": 20, "fit_batch": 10, "update_epochs": 2}
PROBLEM = atsp.Problem(atsp.Params(n=N))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attack(kind: str = "beam", **keys: Any) -> roco.Attack:
    return roco.Attack(roco.Params(**{"attacker": kind, **FAST, **keys}), PROBLEM, TorchEngine())


def policy(seed: int = 0) -> matnet.Policy:
    return matnet.Policy(matnet.Params(width=16, layers=1, heads=4, feed_forward=16), PROBLEM).init(rng(seed))


def clean(count: int = 6) -> Instances:
    return PROBLEM.sample(count, rng=rng(1))


def optimum(inst: Instances, i: int) -> float:
    assert inst.matrix is not None
    one = Instance("atsp", matrix=inst.matrix[i].double().numpy())
    return one.cost(held_karp(one.distances()))


def halvings(before: Instances, after: Instances) -> torch.Tensor:
    """How often each edge was halved; checks that nothing else happened."""
    assert before.matrix is not None
    assert after.matrix is not None
    ratio = torch.where(before.matrix > 0, before.matrix / after.matrix.clamp_min(1e-30), torch.ones(()))
    times = ratio.log2()
    torch.testing.assert_close(times, times.round(), atol=1e-5, rtol=0)
    return times.round()


def test_candidates_by_rule() -> None:
    """Edges between neighbours on the tour are closed in both directions; `tour` is the opposite; tiny costs too."""
    matrix = torch.rand(1, 5, 5, generator=rng()) + 0.1
    matrix[0, 0, 2] = 1e-5
    tour = torch.tensor([[0, 1, 2, 3, 4]])
    open_ = candidates(matrix, tour)[0]
    assert not open_.diagonal().any()
    assert [open_[i, (i + 1) % 5] or open_[(i + 1) % 5, i] for i in range(5)] == [False] * 5
    assert open_.sum() == 5 * 4 - 10 - 1
    assert open_[2, 0]
    # The published code looks at the edge from the higher to the lower node only.
    assert candidates(matrix, tour, "released")[0, 0, 2]
    flipped = matrix.clone()
    flipped[0, 2, 0] = 1e-5
    assert not candidates(flipped, tour, "released")[0, 0, 2]
    assert candidates(matrix, tour, "tour").sum() == 10
    assert candidates(matrix, tour, "all").sum() == 19
    assert on_tour(tour)[0].nonzero().tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]


def test_the_first_released_level_takes_tour_edges_of_any_cost() -> None:
    """As published, the first level may halve every edge of the tour, also those that cost next to nothing."""
    matrix = torch.rand(1, 5, 5, generator=rng()) + 0.1
    matrix[0, 1, 0] = matrix[0, 2, 3] = 1e-6
    assert candidates(matrix, torch.tensor([[0, 1, 2, 3, 4]]), "tour").sum() == 10


def test_halving_changes_one_direction() -> None:
    """One directed edge costs half, its way back and the input stay; edge -1 changes nothing."""
    matrix = torch.rand(2, 4, 4, generator=rng())
    kept = matrix.clone()
    out = halve(matrix, torch.tensor([1 * 4 + 3, -1]))
    assert out[0, 1, 3] == matrix[0, 1, 3] / 2
    assert (out != matrix).sum() == 1
    assert torch.equal(matrix, kept)


def test_drawn_edges_are_allowed_distinct_and_spread() -> None:
    """Draws are without replacement, only allowed edges, -1 when they run out, and all come up equally often."""
    may = torch.zeros(3000, 3, 3, dtype=torch.bool)
    may[:, 0, 1] = may[:, 1, 2] = may[:, 2, 0] = True
    two = draw_edges(may, 2, rng())
    assert (two[:, 0] != two[:, 1]).all()
    counts = two.flatten().bincount()
    assert set(counts.nonzero()[:, 0].tolist()) == {1, 5, 6}
    assert ((counts[counts > 0] - 2000).abs() < 150).all()
    assert draw_edges(may[:1], 5, rng())[0, 3:].tolist() == [-1, -1]


def test_rank_counts_earlier_rows_of_the_same_owner() -> None:
    """The k-th row of an owner has rank k, in any order of owners."""
    assert _rank(torch.tensor([2, 0, 2, 1, 0, 2])).tolist() == [0, 0, 1, 0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_optimum_can_only_improve_and_the_victim_never_gains(kind: str) -> None:
    """At most T halvings and nothing else; the proved optimum does not rise; the victim's cost does not fall."""
    before, victim = clean(), policy()
    out = attack(kind)([victim], before, rng=rng(2))
    times = halvings(before, out.instances)
    assert (times >= 0).all()
    assert (times.sum((1, 2)) <= FAST["steps"]).all()
    assert torch.equal((times > 0).sum((1, 2)).float(), out.stats["edges"])
    assert (out.stats["cost_after"] >= out.stats["cost_before"]).all()
    assert (out.stats["cost_after"] > out.stats["cost_before"] + 1e-6).any()
    for i in range(len(before)):
        best, was = optimum(out.instances, i), optimum(before, i)
        assert best <= was + 1e-9
        # What the attack calls hard is never more than the true gap.
        assert float(out.stats["hardness"][i]) <= float(out.stats["cost_after"][i]) / best - 1 + 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("models", [1, 2])
def test_calls_are_counted_and_bounded(kind: str, models: int) -> None:
    """The stats count every answer that was asked for, and no instance gets more than the budget."""
    asked = 0

    def counting(inner: matnet.Policy) -> Any:
        inner_victim = victim_of(inner, PROBLEM, TorchEngine())

        def victim(inst: Instances) -> Any:
            nonlocal asked
            asked += len(inst)
            return inner_victim(inst)

        return victim

    hit = attack(kind, calls=20)
    victims = [counting(policy(j)) for j in range(models)]
    hit.fit(victims, clean(4), rng=rng())
    asked = 0
    out = hit(victims, clean(), rng=rng(2))
    assert int(out.stats["calls"].sum()) == asked
    assert int(out.stats["calls"].max()) <= 20 + models
    assert int(out.stats["calls"].min()) >= 10


def test_any_callable_and_any_solver_is_a_victim() -> None:
    """A plain function and reference solvers by name are attacked; an exact solver cannot be hurt."""

    def stubborn(inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefers low-numbered nodes unless an edge from 0 looks cheap: easily led astray."""
        assert inst.matrix is not None
        first = inst.matrix[:, 0, 1:].argmin(1) + 1
        rest = [[0, int(f), *(k for k in range(1, N) if k != int(f))] for f in first]
        tours = torch.tensor(rest)
        return tours, PROBLEM.cost(inst, tours[:, None])[:, 0]

    out = attack("beam")([stubborn], clean(), rng=rng())
    assert (out.stats["cost_after"] > out.stats["cost_before"]).any()
    nearest = attack("beam")(["nearest"], clean(), rng=rng())
    assert (nearest.stats["cost_after"] > nearest.stats["cost_before"]).any()
    perfect = attack("random", calls=8)([exact], clean(2), rng=rng())
    assert torch.equal(perfect.stats["cost_after"], perfect.stats["cost_before"])
    assert torch.equal(perfect.instances.matrix, clean(2).matrix)


def exact(inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
    assert inst.matrix is not None
    tours = torch.tensor([held_karp(m.double().numpy()) for m in inst.matrix])
    return tours, PROBLEM.cost(inst, tours[:, None])[:, 0]


def test_a_victim_with_wrong_answers_is_named() -> None:
    """A callable that answers with the wrong shapes is an error at once."""
    with pytest.raises(ValueError, match="the victim answered 6 matrices"):
        attack()([lambda inst: (torch.zeros(1, 2), torch.zeros(1))], clean(), rng=rng())


def test_global_attack_follows_the_best_model() -> None:
    """Every level attacks the model that is best now; with choose = clean, the one that was best on clean."""
    log: list[tuple[int, int]] = []

    def model(j: int, costs: list[float]) -> Any:
        def victim(inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
            assert inst.matrix is not None
            changed = (inst.matrix != clean(1).matrix).flatten(1).sum(1)
            log.append((j, int(changed.max())))
            tours = torch.arange(N).expand(len(inst), -1)
            return tours, torch.tensor([costs[int(c)] for c in changed])

        return victim

    # Model 0 is best on clean, model 1 after one halving, model 0 again after two.
    victims = [model(0, [1.0, 5.0, 6.0, 9.0]), model(1, [2.0, 3.0, 7.0, 8.0])]
    out = attack("beam", width=1, branch=1, calls=100)(victims, clean(1), rng=rng())
    assert log == [(0, 0), (1, 0), (0, 1), (0, 1), (1, 1), (1, 2), (0, 2), (1, 2), (0, 3), (0, 3), (1, 3)]
    assert float(out.stats["cost_after"]) == 8.0  # as hard as for the best of them
    log.clear()
    attack("beam", width=1, branch=1, choose="clean")(victims, clean(1), rng=rng())
    assert log == [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3)]


def test_released_search_always_changes_something() -> None:
    """With at_least_one an edge is halved even for a victim that cannot be hurt; the first is one of its tour."""
    out = attack("beam", at_least_one=True, candidates="released", steps=1)([exact], clean(3), rng=rng())
    changed = halvings(clean(3), out.instances) > 0
    assert (changed.flatten(1).sum(1) == 1).all()
    along = on_tour(exact(clean(3))[0])
    assert (changed & (along | along.transpose(1, 2))).flatten(1).any(1).all()


def test_each_instance_has_its_own_limit() -> None:
    """`step` gives T instance by instance; 0 leaves the instance as it is."""
    step = torch.tensor([0.0, 1, 2, 3, 1, 0])
    for kind in KINDS:
        out = attack(kind)([policy()], clean(), rng=rng(2), step=step)
        assert (halvings(clean(), out.instances).sum((1, 2)) <= step).all()
        assert torch.equal(out.stats["alpha"], step)


def test_actor_is_not_uniform() -> None:
    """Even untrained, its choice depends on the edges' costs: not uniform, and other after one cost has changed.

    The published network is uniform over all legal edges whatever its weights.
    """
    inst = clean(20)
    assert inst.matrix is not None
    tour = torch.arange(N).expand(20, -1)
    scene = Scene(inst.matrix, tour, candidates(inst.matrix, tour))
    actor = make_actor(0, 32)
    log_p, _ = actor(scene)
    legal = scene.may.flatten(1)
    assert torch.allclose(log_p.exp().sum(1), torch.ones(20), atol=1e-5)
    assert (log_p.exp()[~legal] == 0).all()
    spread = [float(row[ok].detach().std()) for row, ok in zip(log_p, legal, strict=True)]
    assert min(spread) > 0.01
    other = Scene(halve(inst.matrix, torch.full((20,), 0 * N + 3)), tour, scene.may)
    assert ((actor(other)[0] - log_p)[legal].abs() > 1e-4).any()


def test_actor_does_not_depend_on_node_order_or_scale() -> None:
    """Renaming the nodes renames the probabilities; scaling all costs changes nothing; any n can be read."""
    matrix, tour = clean(4).matrix, torch.arange(N).expand(4, -1)
    assert matrix is not None
    actor, may = make_actor(0, 16), candidates(matrix, tour)
    log_p = actor(Scene(matrix, tour, may))[0].view_as(matrix)
    order = torch.randperm(N, generator=rng(3))
    place = order.argsort()
    renamed = Scene(matrix[:, order][:, :, order], place[tour], may[:, order][:, :, order])
    torch.testing.assert_close(actor(renamed)[0].view_as(matrix), log_p[:, order][:, :, order], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(actor(Scene(matrix * 50, tour, may))[0].view_as(matrix), log_p, rtol=1e-4, atol=1e-4)
    big = PROBLEM.sample(2, rng=rng(), n=13).matrix
    assert big is not None
    actor(Scene(big, torch.arange(13).expand(2, -1), torch.ones(2, 13, 13, dtype=torch.bool)))


def test_detour_is_the_price_of_moving_a_node() -> None:
    """The feature equals the difference of two tours' costs, the new edge at half price."""
    matrix = clean(1).matrix
    assert matrix is not None
    tour = torch.randperm(N, generator=rng(4))[None]
    found = detour(matrix, tour)[0]
    order = tour[0].tolist()
    for i, j in [(order[0], order[3]), (order[5], order[2]), (order[6], order[1])]:
        rest = [v for v in order if v != j]
        at = rest.index(i)
        new = torch.tensor([[[*rest[: at + 1], j, *rest[at + 1 :]]]])
        half = Instances(matrix=halve(matrix, torch.tensor([i * N + j])))
        price = PROBLEM.cost(half, new) - PROBLEM.cost(Instances(matrix=matrix), tour[:, None])
        assert float(found[i, j]) == pytest.approx(float(price), abs=1e-5)


def test_proposals_follow_the_probabilities() -> None:
    """`top`: from the likeliest first nodes to their likeliest second nodes; drawn ones are distinct and legal."""
    matrix, tour = clean(3).matrix, torch.arange(N).expand(3, -1)
    assert matrix is not None
    scene, actor = Scene(matrix, tour, candidates(matrix, tour)), make_actor(0, 16)
    log_p = actor(scene)[0].detach().view_as(matrix)
    top = actor.propose(scene, 2)
    for i in range(3):
        first = set(log_p[i].exp().sum(1).topk(2).indices.tolist())
        want = {a * N + int(b) for a in first for b in log_p[i, a].topk(2).indices}
        assert set(top[i].tolist()) == want
        drawn = actor.propose(scene, 3, rng())[i].tolist()
        assert len(set(drawn)) == 9
        assert scene.may[i].flatten()[drawn].all()


def test_ppo_learns_which_edges_hurt() -> None:
    """Against a victim that is hurt by the dearest edges only, the trained actor finds them: far above chance."""
    base = clean(1).matrix
    assert base is not None

    def victim(inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
        """Each of the dearest edges that is halved adds one to the cost; others change nothing."""
        assert inst.matrix is not None
        hits = ((base - inst.matrix).flatten(1) > 0.3 * base.max()).sum(1)
        return torch.arange(N).expand(len(inst), -1), 10.0 + hits.float()

    hit = attack("ppo", episodes=400, fit_batch=20, update_epochs=5, steps=2, lr=3e-3)
    found = hit.fit([victim], clean(1), rng=rng())
    assert found["last_0"] > 2 * found["first_0"]


def test_fit_is_saved_loaded_and_lazy() -> None:
    """Weights survive state_dict; a bound attack attacks without fitting; an unbound one fits itself, repeatably."""
    victim = policy()
    one, two = attack("ppo"), attack("ppo")
    one.bind([victim])
    assert list(one.modules()) == ["attacker-0"]
    fresh = {k: v.clone() for k, v in one.state_dict().items()}
    one.fit([victim], clean(10), rng=rng(5))
    assert any(not torch.equal(v, fresh[k]) for k, v in one.state_dict().items())
    two.bind([victim])
    two.load_state_dict(one.state_dict())
    a, b = (x([victim], clean(), rng=rng(2)).instances.matrix for x in (one, two))
    assert torch.equal(a, b)
    lazy = [attack("ppo") for _ in range(2)]
    c, d = (x([victim], clean(), rng=rng(2)).instances.matrix for x in lazy)
    assert torch.equal(c, d)
    assert len(lazy[0].modules()) == 1
    assert attack("beam").modules() == {}


def test_repeatable_answers_make_a_clean_measurement() -> None:
    """The cost the attack reports is what the victim, asked again, still pays: no lucky noise was selected."""
    victim = policy()
    for augment in (1, 4):
        out = attack("beam", augment=augment)([victim], clean(), rng=rng(2))
        again = PolicyVictim(victim, PROBLEM, TorchEngine(), augment, None)(out.instances)[1]
        torch.testing.assert_close(again, out.stats["cost_after"])


def test_wrong_problem_is_refused() -> None:
    """Coordinates have no matrix to halve."""
    with pytest.raises(RecipeError, match="cost matrix"):
        roco.Attack(roco.Params(), tsp.Problem(tsp.Params()), TorchEngine())


@pytest.mark.parametrize("kind", ["at", "cnf", "cnf_greedy", "hac"])
def test_defences_train_against_it(kind: str) -> None:
    """One step of a defence with ROCO inside changes all models, and equal seeds give equal weights."""
    models = [policy(j) for j in range(2)]
    more = {"router_features": "nonlinear"} if kind == "cnf" else {}
    runs = [Run(kind, PROBLEM, models=models, attack=attack("beam", calls=6), **more) for _ in range(2)]
    before = runs[0].weights()
    metrics = runs[0].step()
    runs[1].step()
    assert same(runs[0].weights(), runs[1].weights())
    assert not same(before, runs[0].weights())
    assert all(math.isfinite(v) for v in metrics.values())
