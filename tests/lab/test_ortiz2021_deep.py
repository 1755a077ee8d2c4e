"""ResNet18's own way of training and being linearized."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from torchtangent.lab.recipes import registry
from torchtangent.lab.recipes.ortiz2021 import deep
from torchtangent.lab.recipes.ortiz2021.learning import Problem, problem
from torchtangent.lab.results import Run
from torchtangent.lab.runner import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    study = registry()["ortiz2021"]
    part = study.part("table-ResNet18-train")
    config = study.configuration("test")[part.name] | {"epochs": 2}
    return Context(part, config, torch.device("cpu"), Run(tmp_path), None)


def trained_by_torch(setting: Problem, y: torch.Tensor, config: Any, statistics: str) -> torch.nn.Module:
    """The study's recipe written with torch.optim."""
    model = copy.deepcopy(setting.model).train(statistics == "train")
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    steps = setting.train // config["batch"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / (config["epochs"] * steps))
    generator = torch.Generator().manual_seed(config["seed"])
    for _ in range(config["epochs"]):
        order = torch.randperm(setting.train, generator=generator)
        for batch in order[: steps * config["batch"]].view(steps, -1):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(setting.x[batch])[:, 0], y[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@pytest.mark.parametrize("statistics", ["train", "frozen"])
def test_training_is_the_recipe_of_the_study(context: Context, statistics: str) -> None:
    setting = problem(context)
    y = (setting.classes <= 4).float()
    expected = trained_by_torch(setting, y, context.config, statistics)
    model, curves = deep._trained(context, setting, y, statistics)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    moved = [
        (p - q).detach().square().sum() for p, q in zip(expected.parameters(), setting.model.parameters(), strict=True)
    ]
    assert curves["network_distance"] == pytest.approx(float(sum(moved)) ** 0.5, rel=1e-4)
    assert curves["network_test"].shape == (context.config["epochs"],)


def test_statistics_are_gathered_or_put_back(context: Context) -> None:
    setting = problem(context)
    model, _ = deep._trained(context, setting, (setting.classes <= 4).float(), "train")
    norms = {s: deep._with_statistics(model, s)[1] for s in ("running", "initial")}  # type: ignore[index]
    assert torch.equal(norms["initial"].running_mean, torch.zeros_like(norms["initial"].running_mean))
    assert torch.equal(norms["running"].running_mean, model[1].running_mean)  # type: ignore[index]
    assert not torch.equal(norms["running"].running_mean, norms["initial"].running_mean)
    assert torch.equal(norms["running"].weight, norms["initial"].weight)


def test_runs_are_collected_in_the_order_of_their_indices(tmp_path: Path, context: Context) -> None:
    study = registry()["ortiz2021"]
    part = study.part("eigenfunctions-ResNet18")
    config = study.configuration("test")[part.name]
    stored = {index: np.full((1, 2), float(index)) for index in config["indices"]}
    kernel = {"indices": np.array(config["indices"])}
    kernel |= {name: np.array(config["indices"], dtype=float) for name in deep.PER_INDEX}
    kernel |= {name: np.zeros(1) for name in deep.WHOLE}

    class Stored(Context):
        def arrays(self, part: str) -> Any:
            if part == part_names[0]:
                return kernel
            index = config["indices"][part_names.index(part) - 1]
            return dict.fromkeys(deep.PER_RUN, stored[index]) | {"network_seconds": np.ones(1)}

    part_names = part.needs
    found = deep.collected(Stored(**{**vars(context), "part": part, "config": config}))
    assert found["indices"].tolist() == sorted(config["indices"])
    assert found["network_loss"][:, 0].tolist() == found["linear_loss"].tolist() == sorted(config["indices"])
    assert found["network_seconds"] == len(config["indices"])
