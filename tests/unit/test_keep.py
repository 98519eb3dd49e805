"""What a training keeps: running means of its weights."""

from __future__ import annotations

import torch
from torch import nn

from cnf_cli.stages.keep import Average


def walk(average: Average, model: nn.Module, values: list[float]) -> None:
    for step, value in enumerate(values):
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(value)
        average.follow(step)


def test_a_short_run_keeps_the_plain_mean() -> None:
    """Until there were `steps` steps every one of them counts alike, and the start does not count."""
    model = nn.Linear(3, 2)
    average = Average([model], steps=10)
    walk(average, model, [1.0, 2.0, 6.0])
    for mean in average.means[0].parameters():
        torch.testing.assert_close(mean, torch.full_like(mean, 3.0))
        assert not mean.requires_grad
    assert all(bool((weight == 6.0).all()) for weight in model.parameters()), "the model itself goes on unchanged"


def test_a_long_run_forgets_its_beginning() -> None:
    """After many more than `steps` steps at one place the mean is there; the last step alone moves it by 1/steps."""
    model = nn.Linear(3, 2)
    average = Average([model], steps=5)
    walk(average, model, [100.0] * 5 + [1.0] * 100)
    torch.testing.assert_close(average.means[0].bias, torch.ones(2), atol=1e-4, rtol=0)
    before = average.means[0].bias.clone()
    with torch.no_grad():
        model.bias.fill_(11.0)
    average.follow(105)
    torch.testing.assert_close(average.means[0].bias, before + (11.0 - before) / 5)


def test_norm_statistics_follow_too() -> None:
    """Running means and variances are averaged like weights; the count of batches is the model's own."""
    model = nn.BatchNorm1d(2)
    average = Average([model], steps=4)
    for step in range(2):
        model(torch.randn(8, 2, generator=torch.Generator().manual_seed(step)) + 5)
        average.follow(step)
    mean = average.means[0]
    assert int(mean.num_batches_tracked) == 2
    assert 0 < float(mean.running_mean.mean()) < float(model.running_mean.mean())


def test_each_model_has_its_own_mean() -> None:
    """An ensemble's means are apart, and named for the saved state."""
    models = [nn.Linear(1, 1), nn.Linear(1, 1)]
    average = Average(models, steps=3)
    with torch.no_grad():
        models[0].weight.fill_(1.0)
        models[1].weight.fill_(2.0)
    average.follow(0)
    assert [float(mean.weight.detach()) for mean in average.modules().values()] == [1.0, 2.0]
    assert list(average.modules()) == ["average-0", "average-1"]
