"""Routing strategies: who trains on what."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from cnf_cli.defences import shares
from cnf_cli.defences.routing import CLEAN, GLOBAL, LOCAL, STRATEGIES, Question, Selection, overlap, statistics

B, M = 6, 3
N = (M + 2) * B


def question(seed: int = 0, **changes) -> Question:
    rng = torch.Generator().manual_seed(seed)
    kind = torch.tensor([CLEAN] * B + [LOCAL] * M * B + [GLOBAL] * B)
    maker = torch.tensor([-1] * B + [j for j in range(M) for _ in range(B)] + [-1] * B)
    keys = {
        "cost": torch.rand(N, M, generator=rng),
        "kind": kind,
        "maker": maker,
        "top_k": B,
        "rng": rng,
        "logits": torch.randn(N, M, generator=rng, requires_grad=True),
    }
    return Question(**(keys | changes))


def rows(selection: Selection) -> list[list[int]]:
    return [r.tolist() for r in selection.trained]


def test_m_topk_takes_the_largest_logits() -> None:
    """Each model gets exactly the K rows with its largest logits; probabilities sum to one over rows."""
    q = question()
    got = STRATEGIES["m-topk"](q)
    for j in range(M):
        assert rows(got)[j] == sorted(q.logits[:, j].topk(B).indices.tolist())
    assert torch.allclose(got.log_prob.exp().sum(0), torch.ones(M))
    assert got.routed == got.trained


@pytest.mark.parametrize("name", ["m-topk", "m-sample"])
@pytest.mark.parametrize("k", [1, B, N, 10 * N])
def test_model_choice_gives_every_model_exactly_k(name: str, k: int) -> None:
    """The load is K for every model (all rows when there are fewer), each row at most once per model."""
    got = STRATEGIES[name](question(top_k=k))
    assert [len(set(r)) for r in rows(got)] == [len(r) for r in rows(got)] == [min(k, N)] * M


@pytest.mark.parametrize("name", ["i-topk", "i-sample"])
@pytest.mark.parametrize("k", [1, 2])
def test_instance_choice_uses_every_row_k_times(name: str, k: int) -> None:
    """Each row goes to k models; probabilities sum to one over models."""
    got = STRATEGIES[name](question(instance_top_k=k))
    counts = torch.bincount(torch.cat(got.trained), minlength=N)
    assert torch.equal(counts, torch.full((N,), k))
    assert torch.allclose(got.log_prob.exp().sum(1), torch.ones(N))


def test_i_topk_takes_the_argmax() -> None:
    """A row's one model is the one with its largest logit."""
    q = question()
    chosen = torch.full((N,), -1)
    for j, r in enumerate(STRATEGIES["i-topk"](q).trained):
        chosen[r] = j
    assert torch.equal(chosen, q.logits.argmax(1))


def test_m_sample_follows_the_probabilities() -> None:
    """Drawn one at a time, rows come up as often as their probability says (chi-square over 2000 draws)."""
    logits = torch.log(torch.tensor([[0.5], [0.3], [0.15], [0.05]]))
    zero = torch.zeros(4, dtype=torch.long)
    q = question(cost=torch.ones(4, 1), logits=logits, top_k=1, kind=zero, maker=zero)
    counts = torch.zeros(4)
    for _ in range(2000):
        counts[STRATEGIES["m-sample"](q).trained[0]] += 1
    expected = logits.exp()[:, 0] * 2000
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # 3 degrees of freedom, p = 0.001


def test_i_sample_follows_the_probabilities() -> None:
    """Over many equal rows, models are drawn as often as their probability says (chi-square)."""
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).expand(3000, 3)
    zero = torch.zeros(3000, dtype=torch.long)
    got = STRATEGIES["i-sample"](question(cost=torch.ones(3000, 3), logits=logits, kind=zero, maker=zero))
    counts = torch.tensor([float(len(r)) for r in got.trained])
    expected = logits[0].exp() * 3000
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # 2 degrees of freedom, p = 0.001


def test_temperature_sharpens_sampling() -> None:
    """A low temperature turns sampling into TopK."""
    q = question(temperature=1e-4)
    assert rows(STRATEGIES["m-sample"](q)) == rows(STRATEGIES["m-topk"](q))


def test_best_gives_each_row_to_its_best_model() -> None:
    """Rows are split by the argmin of R: each once, none lost."""
    q = question()
    for j, r in enumerate(STRATEGIES["best"](q).trained):
        assert torch.equal(q.cost[r].argmin(1), torch.full((len(r),), j))
    assert sorted(torch.cat(STRATEGIES["best"](q).trained).tolist()) == list(range(N))


def test_topk_with_best_is_the_union() -> None:
    """The published default trains on TopK plus everything the model is best at, and reinforces TopK only."""
    q = question()
    both, top, best = (rows(STRATEGIES[s](q)) for s in ("topk-with-best", "m-topk", "best"))
    assert both == [sorted(set(a) | set(b)) for a, b in zip(top, best, strict=True)]
    assert [r.tolist() for r in STRATEGIES["topk-with-best"](q).routed] == top


def test_random_deals_equal_shares() -> None:
    """Random routing splits the pool: each row once, loads equal to within one."""
    got = rows(STRATEGIES["random"](question()))
    assert sorted(row for part in got for row in part) == list(range(N))
    assert {len(r) for r in got} == {N // M}


@pytest.mark.parametrize("total", [40, 80, 320])
def test_random_with_the_published_slices(total: int) -> None:
    """The published slices begin at j times the whole part of N/3 and run to the end; a fourth gets what is left."""
    zero = torch.zeros(total, dtype=torch.long)
    q = question(cost=torch.rand(total, 5), logits=None, kind=zero, maker=zero, overlapping_slices=True)
    got = rows(STRATEGIES["random"](q))
    third = total // 3
    assert [len(r) for r in got] == [total, total - third, total - 2 * third, total - 3 * third, 0]
    assert all(set(a) > set(b) for a, b in pairwise(got))


def test_self_training_uses_own_adversarial_rows() -> None:
    """Each model gets the rows its own local attack made, and nothing else."""
    assert rows(STRATEGIES["self-training"](question())) == [list(range(B + j * B, 2 * B + j * B)) for j in range(M)]


def test_statistics_say_what_each_model_was_given() -> None:
    """Loads, shares by kind, overlap and coverage of a selection worked out by hand."""
    q = question()
    chosen = Selection([torch.tensor([0, 1, B, N - 1]), torch.tensor([1]), torch.tensor([], dtype=torch.long)])
    got = statistics(chosen, q.kind)
    assert (got["load_0"], got["load_1"], got["load_2"]) == (4, 1, 0)
    assert (got["share_clean_0"], got["share_local_0"], got["share_global_0"]) == (0.5, 0.25, 0.25)
    assert got["share_clean_2"] == 0
    assert got["overlap"] == pytest.approx((1 / 4 + 0 + 0) / 3)
    assert got["covered"] == pytest.approx(4 / N)


def test_overlap_and_entropy_extremes() -> None:
    """Equal selections overlap fully, disjoint ones not at all; uniform logits have entropy one, a peak nearly none."""
    one, two = torch.tensor([1, 2]), torch.tensor([3])
    assert overlap([one, one]) == 1
    assert overlap([one, two]) == 0
    flat = statistics(STRATEGIES["m-topk"](question(logits=torch.zeros(N, M))), question().kind)
    assert flat["router_entropy"] == pytest.approx(1)
    peak = torch.zeros(N, M)
    peak[:, 0] = 50
    assert statistics(STRATEGIES["i-topk"](question(logits=peak)), question().kind)["router_entropy"] < 0.01


@pytest.mark.parametrize("ties", ["draw", "least-loaded"])
def test_ties_are_shared_among_the_models_that_are_best(ties: str) -> None:
    """Where all models are equally good but for rounding, each gets its share; a row with one best model goes to it."""
    many = 3000
    cost = 1 + 5e-7 * torch.rand(many, M, generator=torch.Generator().manual_seed(1))
    cost[:90] = torch.tensor([2.0, 2.0, 1.0])
    zero = torch.zeros(many, dtype=torch.long)
    got = STRATEGIES["best"](question(cost=cost, kind=zero, maker=zero, ties=ties, logits=None))
    assert sorted(torch.cat(got.trained).tolist()) == list(range(many))
    assert set(range(90)) <= set(rows(got)[2])
    loads = torch.tensor([float(len(r)) for r in got.trained])
    if ties == "least-loaded":
        assert loads.tolist() == [1000.0] * M
    else:  # 2910 fair draws: chi-square, 2 degrees of freedom, p = 0.001
        expected = torch.tensor([970.0, 970.0, 1060.0])
        assert float(((loads - expected) ** 2 / 970).sum()) < 13.8


def test_ties_between_two_never_reach_a_third() -> None:
    """A row that two models are best at goes to one of these two, by every rule."""
    cost = torch.tensor([[1.0, 2.0, 1.0]]).expand(300, 3)
    zero = torch.zeros(300, dtype=torch.long)
    for ties, loads in (("first", [300, 0, 0]), ("least-loaded", [150, 0, 150])):
        got = STRATEGIES["best"](question(cost=cost, kind=zero, maker=zero, ties=ties, logits=None))
        assert [len(r) for r in got.trained] == loads
    drawn = STRATEGIES["best"](question(cost=cost, kind=zero, maker=zero, ties="draw", logits=None))
    assert len(drawn.trained[1]) == 0
    assert 100 < len(drawn.trained[0]) < 200  # 5.8 standard deviations of 300 fair draws


def test_a_lot_depends_on_its_seed_row_and_model_only() -> None:
    """Drawing by counting: more rows or models change none of the lots that were there."""
    seed = torch.tensor([5])
    few, many = shares.lots(seed, 7, 2), shares.lots(seed, 11, 4)
    assert torch.equal(few, many[:7, :2])
    assert not torch.equal(few, shares.lots(seed + 1, 7, 2))
    assert len(many.unique()) == many.numel()


@pytest.mark.parametrize("whole", [False, True], ids=["all different", "many ties"])
@pytest.mark.parametrize(("count", "models"), [(6, 3), (20, 3), (29, 4), (64, 7)])
def test_balanced_is_the_cheapest_equal_share(count: int, models: int, whole: bool) -> None:
    """Loads are equal to within one, and no assignment with these loads costs less (scipy's, as the judge)."""
    from scipy.optimize import linear_sum_assignment

    for seed in range(5):
        cost = torch.rand(count, models, generator=torch.Generator().manual_seed(seed)) + 1
        if whole:
            cost = (3 * cost).round()
        zero = torch.zeros(count, dtype=torch.long)
        got = STRATEGIES["balanced"](question(seed, cost=cost, kind=zero, maker=zero, logits=None))
        assert sorted(torch.cat(got.trained).tolist()) == list(range(count))
        loads = [len(r) for r in got.trained]
        assert sorted(set(loads)) in ([count // models], [count // models, count // models + 1])
        seats = torch.arange(models).repeat_interleave(torch.tensor(loads))
        best = cost[:, seats].numpy()[linear_sum_assignment(cost[:, seats].numpy())].sum()
        assert sum(float(cost[r, j].sum()) for j, r in enumerate(got.trained)) == pytest.approx(best, rel=1e-5)


def test_balanced_settles_ties_by_lot() -> None:
    """Where all models are equal, who gets which row changes with the seed, and no model is always given the rest."""
    zero = torch.zeros(10, dtype=torch.long)
    dealt = [
        rows(STRATEGIES["balanced"](question(seed, cost=torch.ones(10, 3), kind=zero, maker=zero, logits=None)))
        for seed in range(20)
    ]
    assert len({str(each) for each in dealt}) > 10
    assert {len(each[0]) for each in dealt} == {3, 4}


def test_the_tie_rule_is_part_of_a_results_identity() -> None:
    """Ties to the first model, as stored results have them, go unsaid; any other rule makes another key."""
    from cnf_cli.defences.cnf import Params

    def rule(**keys: str) -> str | None:
        return Params(**keys).identity().get("ties")  # type: ignore[arg-type]

    assert rule(routing="best") == "draw"
    assert rule(routing="best", ties="least-loaded") == "least-loaded"
    assert rule(routing="best", ties="first") is None
    assert rule() is None
    assert rule(routing="topk-with-best") is None  # ties as the published code has them
