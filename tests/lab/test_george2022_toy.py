"""The yin-yang task: ensembles beside autograd on single networks, and when training is looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.data.synthetic import yin_yang_grid
from torchtangent.lab.models import mlp
from torchtangent.lab.recipes.george2022 import toy
from torchtangent.lab.recipes.george2022.ensembles import Ensemble, Linearizations, Networks
from torchtangent.lab.recipes.george2022.measures import toy as measures_toy
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Arrays

LR, STEPS = 0.3, 4


@pytest.fixture
def task() -> tuple[list[nn.Module], Tensor, Tensor, Tensor]:
    """Three networks, with samples for each, and a grid; in float64."""
    torch.manual_seed(0)
    models: list[nn.Module] = [mlp([2, 5, 4, 1]).double() for _ in range(3)]
    x, grid = torch.randn(3, 7, 2, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    return models, x, x.sum(2).sign(), grid


def advance(ensemble: Ensemble) -> tuple[Tensor, Tensor]:
    """Train; the losses of all steps, and the outputs on the grid: of the second, third and first network."""
    losses = []
    for _ in range(STEPS):
        losses.append(ensemble.loss())
        ensemble.step()
    last = torch.tensor([False, True, True])
    return torch.stack(losses), torch.cat([ensemble.on_grid(last), ensemble.on_grid(~last)])


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_networks_are_trained_as_each_alone(task: tuple[Any, ...], alpha: float) -> None:
    models, x, y, grid = task
    losses, outputs = advance(Networks(models, x, y, grid, alpha, LR))
    for k, model in enumerate(models):
        weights = list(model.parameters())
        start, start_grid = (model(z).squeeze(1).detach() for z in (x[k], grid))
        for step in range(STEPS):
            loss = F.softplus(-y[k] * alpha * (model(x[k]).squeeze(1) - start)).mean()
            torch.testing.assert_close(losses[step, k], loss.detach(), rtol=1e-10, atol=1e-12)
            with torch.no_grad():
                torch._foreach_add_(weights, torch.autograd.grad(loss, weights), alpha=-LR / alpha**2)
        expected = alpha * (model(grid).squeeze(1).detach() - start_grid)
        torch.testing.assert_close(outputs[k - 1], expected, rtol=1e-9, atol=1e-10)


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """∂f(x_n)/∂θ, a row for each sample."""
    rows = [torch.autograd.grad(model(row[None])[0, 0], list(model.parameters())) for row in x]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def test_linearizations_are_trained_as_by_their_parameters(task: tuple[Any, ...]) -> None:
    models, x, y, grid = task
    losses, outputs = advance(Linearizations(models, x, y, grid, LR))
    for k, model in enumerate(models):
        J = jacobian(model, x[k])
        moved = torch.zeros(J.shape[1], dtype=torch.float64)
        for step in range(STEPS):
            moved.requires_grad_()
            loss = F.softplus(-y[k] * (J @ moved)).mean()
            torch.testing.assert_close(losses[step, k], loss.detach(), rtol=1e-10, atol=1e-12)
            moved = (moved - LR * torch.autograd.grad(loss, moved)[0]).detach()
        torch.testing.assert_close(outputs[k - 1], jacobian(model, grid) @ moved, rtol=1e-10, atol=1e-12)


class Scripted(Ensemble):
    """Two runs whose losses are written down; on the grid each shows the iteration."""

    def __init__(self, losses: list[list[float]]) -> None:
        self.script, self.at = torch.tensor(losses), 0

    def loss(self) -> Tensor:
        return self.script[self.at]

    def step(self) -> None:
        self.at += 1

    def on_grid(self, chosen: Tensor) -> Tensor:
        return torch.full((int(chosen.sum()), 4), float(self.at))


def trained(losses: list[list[float]], least: int, most: int) -> toy.Trained:
    config = {"runs": 2, "levels": [0.5, 0.3], "least": least, "most": most, "side": 2, "marks": [0, 1], "points": 3}
    context = SimpleNamespace(config=config, device=torch.device("cpu"), stepped=lambda done, total: None)
    return toy._train(cast(Context, context), Scripted(losses), 0)


def test_training_is_looked_at_when_a_loss_first_falls_below_a_level() -> None:
    losses = [[0.7, 0.7], [0.4, 0.6], [0.6, 0.2], [0.2, 0.4], [0.1, 0.1]]
    found = trained(losses, least=1, most=4)
    assert found.reached.tolist() == [[1, 2], [3, 2]]
    assert found.at_levels[:, :, 0].tolist() == [[1, 2], [3, 2]]
    assert found.at_marks[:, 0, 0].tolist() == [0, 1]
    assert found.end == 3  # all are below the last level
    assert trained(losses, least=4, most=4).end == 4


def test_training_ends_at_the_most_iterations() -> None:
    found = trained([[0.7, 0.7], [0.4, 0.6], [0.6, 0.6]], least=0, most=2)
    assert (found.end, found.reached.tolist()) == (2, [[1, -1], [-1, -1]])
    torch.testing.assert_close(found.losses, torch.tensor([[0.7, 0.7], [0.4, 0.6], [0.6, 0.6]]))


def test_regions_are_the_quarters_the_disks_and_what_is_between_them_and_the_boundary() -> None:
    x, _ = yin_yang_grid(400)
    areas, disks, strips = toy._regions(x)
    assert not ((areas & disks) | (areas & strips) | (disks & strips)).any()
    part = [float(region.double().mean()) for region in (areas, disks, strips)]
    # Two quarters; two disks; two strips of 0.6 × 0.5 less half a disk, all of a square of area 4.
    disk = np.pi * 0.09
    np.testing.assert_allclose(part, [0.5, disk / 2, (0.6 * 0.5 - disk / 2) / 2], rtol=0.02)
    assert ((x[strips, 0] * x[strips, 1]) < 0).all()


def test_only_runs_that_reach_a_level_in_both_regimes_count() -> None:
    losses = torch.tensor(
        [[[[5.0], [7.0]]], [[[1.0], [2.0]]], [[[0.0], [0.0]]]]
    )  # regimes, one level, two runs, a point
    reached = torch.tensor([[[3, 4]], [[6, -1]], [[2, 2]]])
    assert toy._map_sum(losses, reached, 1).tolist() == [[4.0]]
    assert toy._map_sum(losses, reached, 2).tolist() == [[12.0]]


def arrays(reached: list[list[list[int]]]) -> Arrays:
    """Two parts with half of the runs each; one level, one point, all regions alike."""
    parts = {}
    for k, half in enumerate(np.split(np.array(reached)[:, None], 2, axis=-1)):
        first = np.arange(half.shape[-1]) + 10.0 * k
        losses = np.stack([first, np.zeros_like(first), np.zeros_like(first)])[:, None, None]
        parts[f"yin-yang-{k}"] = {
            "reached": half,
            "levels": np.array([0.5]),
            "ends": np.full((3, half.shape[-1]), 64),
            "region_losses": np.broadcast_to(losses, (3, 3, 1, half.shape[-1])),
            "map_sums": np.full((2, 1, 1), k + 1.0),
        }
    return Arrays(parts)


def test_means_are_over_the_runs_of_all_parts() -> None:
    found = arrays([[1, 1, 1, 1], [8, 4, -1, 2], [1, 1, 1, 1]])  # type: ignore[list-item]
    assert measures_toy.common(found).tolist() == [[True, True, False, True]]
    assert measures_toy.differences(found, "disks")[0.5].tolist() == [0.0, 1.0, 11.0]
    np.testing.assert_allclose(measures_toy.maps(found)[:, 0, 0], [3 / 3, 3 / 4])
    logs = np.log([8, 4, 64, 2])
    expected = np.exp(logs.mean() - 2 * logs.std(ddof=1) / 2)
    assert measures_toy.speedup(found) == {"at 0.5": pytest.approx(expected)}


def test_levels_that_hardly_any_run_reaches_are_left_out() -> None:
    found = arrays([[1, 1], [-1, 2], [1, 1]])  # type: ignore[list-item]
    assert measures_toy.differences(found, "disks") == {}
    assert np.isnan(cast(float, measures_toy.difference("disks", measures_toy.low)(found)))
