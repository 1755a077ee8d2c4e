"""Rules about curves of training, on made-up curves whose answer is known, and the normalization of progress."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from torchtangent.lab.data import DataError, Groups
from torchtangent.lab.measures import spearman
from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.recipes.george2022 import consistency, pretrained, scaled, spurious
from torchtangent.lab.recipes.george2022.measures import cscores as measures_cscores
from torchtangent.lab.recipes.george2022.measures import curves
from torchtangent.lab.recipes.george2022.measures import linearity_images as measures_linearity
from torchtangent.lab.recipes.george2022.measures import noise as measures_noise
from torchtangent.lab.recipes.george2022.measures import spurious as measures_spurious
from torchtangent.lab.recipes.george2022.measures.seen import advantage, gap
from torchtangent.lab.recipes.george2022.progress import Progress
from torchtangent.lab.recipes.george2022.recipe import STUDY
from torchtangent.lab.results import Run
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Arrays, Part

START = math.log(10)


def context(tmp_path: Path, **config: object) -> Context:
    return Context(Part("made-up", lambda _: {}), config, torch.device("cpu"), Run(tmp_path), tmp_path)


# Progress


def test_levels_are_passed_once_and_several_at_a_time() -> None:
    progress = Progress(START)
    losses = [2.3, START * 0.96, START * 0.95, START * 0.96**4 - 1e-9, 2.0, START * 0.96**5]
    assert [progress.reached(loss) for loss in losses] == [False, True, False, True, False, True]
    assert progress.passed == 5
    assert progress.level == pytest.approx(START * 0.96**5)


def test_progress_is_that_of_the_running_mean() -> None:
    """After k losses of zero the mean is ln 2 · 0.66ᵏ, below ⌊k ln 0.66 / ln 0.96⌋ levels."""
    progress = Progress(math.log(2), 0.66)
    passed = []
    for _ in range(4):
        progress.reached(0.0)
        passed.append(progress.passed)
    assert passed == [math.floor(k * math.log(0.66) / math.log(0.96)) for k in (1, 2, 3, 4)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0])
def test_a_loss_that_is_no_progress(loss: float) -> None:
    assert not Progress(START).reached(loss)


# Curves at equal progress


def test_progress_is_made_monotone() -> None:
    x = np.array([3.0, 1.0, 2.0, 0.5])
    np.testing.assert_array_equal(curves.monotone(x), [3, 1, 1, 0.5])
    np.testing.assert_array_equal(curves.monotone(-x, rising=True), [-3, -1, -1, -0.5])


def test_curves_are_compared_on_the_range_that_all_pass() -> None:
    """Two runs that see the same function of progress do not differ, whatever their looks; shifted, by the shift."""

    def seen(x: np.ndarray) -> np.ndarray:
        return np.stack([3 * x + 1, -x], axis=1)

    slow, fast = np.linspace(2.3, 1.0, 40), np.array([2.3, 2.0, 0.9, 0.1])
    np.testing.assert_allclose(curves.differences((slow, seen(slow)), (fast, seen(fast))), 0, atol=1e-12)
    levels = curves.common([(slow, slow), (fast, fast)])
    assert (levels[0], levels[-1]) == (2.3, 1.0)
    np.testing.assert_allclose(curves.differences((slow, seen(slow) + 0.5), (fast, seen(fast))), 0.5)
    rising = curves.differences((1 - slow, slow), (1 - fast, fast), rising=True)
    np.testing.assert_allclose(rising, 0, atol=1e-12)


def test_looks_without_progress_are_averaged() -> None:
    curve = np.array([2.0, 1.0, 1.5, 1.2]), np.array([0.0, 1.0, 2.0, 6.0])
    np.testing.assert_allclose(curves.at(np.array([1.0, 1.5]), curve), [3.0, 1.5])


def test_the_range_is_that_of_monotone_progress() -> None:
    """A run that first falls back has not passed what lies behind its start, however far back it falls."""
    back, other = np.array([0.8, 0.5, 0.6, 1.0]), np.array([0.6, 0.7, 1.0])
    levels = curves.common([(back, back), (other, other)], rising=True)
    assert (levels[0], levels[-1]) == (0.8, 1.0)
    levels = curves.common([(2 - back, back), (2 - other, other)])
    np.testing.assert_allclose([levels[0], levels[-1]], [1.2, 1.0])
    # Where one is at 0.8 (in the mean over three looks there) and the other interpolates to it.
    seen = curves.differences((back, np.array([3.0, 6.0, 9.0, 0.0])), (other, np.array([0.0, 1.0, 4.0])), rising=True)
    assert seen[0] == pytest.approx(6 - 2)


def test_runs_without_common_progress_cannot_be_compared() -> None:
    high, low = (np.array([2.0, 1.5]), np.zeros(2)), (np.array([1.0, 0.5]), np.zeros(2))
    assert np.isnan(curves.differences(high, low)).all()
    nothing = np.zeros(0), np.zeros(0)
    assert np.isnan(curves.differences(high, nothing)).all()


def test_onset_is_where_the_noisy_loss_is_highest() -> None:
    clean = np.linspace(2.3, 0.3, 41)
    assert curves.onset(clean, 3 - (clean - 1.25) ** 2) == pytest.approx(1.25, abs=0.026)
    assert math.isnan(curves.onset(clean, -clean))
    spike = 3 - (clean - 1.25) ** 2
    spike[5] += 1.0  # of a single look, which the mean over five levels out
    assert curves.onset(clean, spike) == pytest.approx(1.25, abs=0.1)


def test_rank_correlation() -> None:
    from scipy.stats import spearmanr

    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 5, 30), draw.normal(size=30)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    assert math.isnan(spearman(x, np.zeros(30)))


def test_over_seeds() -> None:
    assert curves.over_seeds([1.0, -3.0, 5.0]) == {
        "mean": 1.0,
        "standard error": pytest.approx(4 / math.sqrt(3)),
        "part of seeds": pytest.approx(2 / 3),
    }
    assert curves.over_seeds([2.0]) == {"mean": 2.0, "part of seeds": 1.0}
    assert math.isnan(curves.over_seeds([1.0, float("nan")])["part of seeds"])
    assert curves.late(np.arange(50.0)) == 47.0


# What claims read off made-up runs


def noisy_run(onset: float, *, test: float, looks: int = 60) -> dict[str, np.ndarray]:
    """A run whose noisy loss is highest at a clean loss, and whose best test loss is given."""
    clean = np.linspace(START, 0.2, looks)
    noisy = 3 - (clean - onset) ** 2
    losses = np.stack([clean, noisy, test + (clean - 1) ** 2], axis=1)
    accuracies = np.stack([1 - clean / START, np.exp(-noisy), np.exp(-losses[:, 2])], axis=1)
    return {
        "groups": np.array(["clean", "noisy", "test"]),
        "losses": losses,
        "accuracies": accuracies,
        "metrics": np.array(["signs", "kernel"]),
        "measured_at": np.array([0, 20, 40]),
        "linearity": np.array([[1.0, 1.0], [0.9, 0.95], [0.8, 0.9]]),
    }


def test_memorization_is_read_off_runs() -> None:
    measured = [f"noise-a{alpha}-s{seed}" for alpha in (1, 100) for seed in (0, 1)]
    arrays = Arrays(
        {
            **{f"noise-a1-s{seed}": noisy_run(0.9 + 0.1 * seed, test=0.5) for seed in (0, 1)},
            **{f"noise-a100-s{seed}": noisy_run(1.5, test=0.8) for seed in (0, 1)},
        }
    )
    found = measures_noise.later(measures_noise.NOISE)(arrays)
    assert found["mean"] == pytest.approx(0.55, abs=0.05)
    assert found["part of seeds"] == 1
    values = measures_noise.onset_values(arrays)
    assert values == {"α = 1": pytest.approx(0.95, abs=0.03), "α = 100": pytest.approx(1.5, abs=0.03)}
    assert measures_noise.rise(arrays)["α = 100"] == pytest.approx((START - 1.5) ** 2, abs=0.01)
    diverged = noisy_run(1.5, test=0.8)
    diverged["losses"] += np.linspace(0, 5, 60)[:, None]  # clean samples, too
    assert measures_noise.rise(Arrays(dict.fromkeys(measured, diverged)))["α = 1"] < 0
    best = advantage(measures_noise.NOISE, "losses")(arrays)
    assert best["mean"] == pytest.approx(0.3, abs=0.01)
    clean = np.linspace(START, 0.2, 1000)
    expected = np.mean([(clean - 1.5) ** 2 - (clean - onset) ** 2 for onset in (0.9, 1.0)])
    assert gap(measures_noise.NOISE, measures_noise.noisy("losses"))(arrays)["mean"] == pytest.approx(
        expected, abs=0.02
    )
    assert advantage(measures_noise.NOISE, "accuracies")(arrays)["part of seeds"] == 1


def test_rates_that_see_the_same_coincide() -> None:
    same, other = noisy_run(1.0, test=0.5, looks=60), noisy_run(1.0, test=0.5, looks=45)
    parts = {"noise-a1-s0": same, "rate-third": other, "rate-hundredth": noisy_run(1.0, test=1.5)}
    lazy = noisy_run(1.0, test=0.5) | {"linearity": np.ones((3, 2))}
    arrays = Arrays(parts | {"noise-a100-s0": lazy})
    apart = measures_noise.rates_apart("test", "losses")(arrays)
    assert apart["0.3 η"] < 0.01 < 0.1 < apart["0.01 η"]
    assert measures_noise.less_linear("kernel")(arrays)["η"] == pytest.approx(0.1)


def binned_run(tilt: float) -> dict[str, np.ndarray]:
    """Bins whose losses fan out around the mean; by accuracy likewise."""
    mean = np.linspace(START, 0.2, 50)
    offsets = np.linspace(1, -1, 10)
    fan = (mean * (START - mean))[:, None] * offsets
    losses = np.concatenate([mean[:, None] + tilt * fan, mean[:, None]], axis=1)
    return {
        "groups": np.array([*measures_cscores.BINS, "test"]),
        "losses": losses,
        "accuracies": 1 - losses / START,
        "metrics": np.array(["kernel"]),
        "measured_at": np.array([0, 10, 20, 30]),
        "linearity": np.array([[1.0], [1 - tilt], [1 - 2 * tilt], [1 - 1.5 * tilt]]),
    }


def test_the_spread_of_bins_is_read_off_runs() -> None:
    parts = {f"cscores-a{a}-s{s}": binned_run(tilt) for a, tilt in ((1, 0.3), (100, 0.1)) for s in (0, 1)}
    parts |= {f"noise-a{a}-s{s}": binned_run(tilt) for a, tilt in ((1, 0.3), (100, 0.1)) for s in (0, 1)}
    arrays = Arrays(parts)
    easiest = gap(measures_cscores.CSCORES, measures_cscores.decile(-1), sign=-1)(arrays)
    hardest = gap(measures_cscores.CSCORES, measures_cscores.decile(0))(arrays)
    mean = np.linspace(START, 0.2, 1000)
    assert easiest["mean"] == pytest.approx(0.2 * np.mean(mean * (START - mean)), abs=0.01)
    assert hardest["mean"] == pytest.approx(easiest["mean"])
    assert measures_cscores.order(measures_cscores.CSCORES)(arrays) == {
        "α = 1": pytest.approx(-1),
        "α = 100": pytest.approx(-1),
    }
    signs = measures_cscores.signs(arrays)
    assert signs["easiest"] < 0 < signs["most difficult"]
    assert measures_cscores.tilt(arrays) == pytest.approx(-1)
    spread = gap(measures_cscores.CSCORES, measures_cscores.spread, rising=True)
    assert spread(arrays)["mean"] == pytest.approx(2 * easiest["mean"] / START, abs=0.02)
    turned = Arrays({f"cscores-a{a}-s{s}": binned_run(tilt) for a, tilt in ((1, -0.3), (100, 0.1)) for s in (0, 1)})
    assert spread(turned)["part of seeds"] == 0  # the easiest are learned last: that is no spread
    assert measures_linearity.lowest("kernel")(arrays) == {"kernel": pytest.approx(0.8)}
    assert measures_linearity.steadiness("kernel")(arrays) == {
        "C-scores": pytest.approx(-0.8),
        "label noise": pytest.approx(-0.8),
    }
    short = binned_run(0.3) | {"linearity": np.array([[1.0], [0.9]])}
    found = measures_linearity.steadiness("kernel")(Arrays(dict.fromkeys(parts, short)))
    assert all(math.isnan(value) for value in found.values())


def grouped_run(lag: float, helped: tuple[str, str]) -> dict[str, np.ndarray]:
    """Without the spurious feature accuracy lags behind that with it."""
    accuracy = np.linspace(0.5, 1, 30)
    names = ["train", *(f"{part} {name}" for part in ("train", "test") for name in measures_spurious.GROUPS)]
    behind = lag * (1 - accuracy)
    seen = np.stack(
        [accuracy if name == "train" or name[-2:] in helped else accuracy - behind for name in names], axis=1
    )
    return {"groups": np.array(names), "accuracies": seen, "losses": 1.5 - seen, "with": np.array(helped)}


LAGS = {"a05": 0.8, "a1": 0.6, "a100": 0.2}
"""By how much each α lags behind."""


@pytest.mark.parametrize("helped", [("00", "11"), ("01", "11")])
def test_dependence_on_a_spurious_feature_is_read_off_runs(helped: tuple[str, str]) -> None:
    mean = 0.25 * 28 / 29  # the mean of 1 − accuracy from the second of thirty looks on
    arrays = Arrays({f"patch-{key}-{s}": grouped_run(lag, helped) for key, lag in LAGS.items() for s in ("s0", "s1")})
    for part in ("train", "test"):
        found = measures_spurious.less_prone(measures_spurious.PATCH, measures_spurious.without(part))(arrays)
        assert found == {
            "over α = 0.5": pytest.approx(0.6 * mean),
            "over α = 1": pytest.approx(0.4 * mean),
            "part of seeds": 1.0,
        }
    by_loss = measures_spurious.less_prone(
        measures_spurious.PATCH, measures_spurious.without("test", "losses"), "losses"
    )
    assert by_loss(arrays)["over α = 1"] == pytest.approx(0.1)
    tested = measures_spurious.less_prone(measures_spurious.PATCH, measures_spurious.tested)(arrays)
    assert tested["over α = 1"] == pytest.approx(0.2 * mean)
    assert measures_spurious.convergence(measures_spurious.PATCH, measures_spurious.tested)(arrays) < 0.2
    end = measures_spurious.late_advantage(measures_spurious.PATCH, measures_spurious.without("test"))(arrays)
    assert end["part of seeds"] == 0
    assert end["mean"] == pytest.approx(-0.4 * 0.5 * 28 / 29 * 2 / 49)  # 1 − accuracy at the third level from the end


def test_runs_that_cross_have_not_converged() -> None:
    """Differences that change their sign are far apart at both ends, and zero in the mean."""
    run, other = grouped_run(0.0, ("00", "11")), grouped_run(0.0, ("00", "11"))
    hurt = [measures_spurious.GROUPS.index(name) + 5 for name in ("01", "10")]
    other["accuracies"][:, hurt] += 0.4 * (other["accuracies"][:, [0]] - 0.75)
    arrays = Arrays({f"patch-{key}-{s}": run if key == "a1" else other for key in LAGS for s in ("s0", "s1")})
    found = measures_spurious.convergence(measures_spurious.PATCH, measures_spurious.tested)(arrays)
    assert found == pytest.approx(1.9, abs=0.15)


def test_what_was_not_measured_is_not_a_number() -> None:
    """Runs that never reach one another's accuracies are not called contrary to the claim."""
    lazy, rich = grouped_run(0.2, ("00", "11")), grouped_run(0.6, ("00", "11"))
    lazy["accuracies"] = lazy["accuracies"] / 2
    arrays = Arrays({f"patch-{key}-{s}": lazy if key == "a100" else rich for key in LAGS for s in ("s0", "s1")})
    found = measures_spurious.less_prone(measures_spurious.PATCH, measures_spurious.tested)(arrays)
    assert all(math.isnan(value) for value in found.values())


# Training


def made_up() -> scaled.Task:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 3, 3, generator=draw)
    y = torch.randint(10, (40,), generator=draw)
    return scaled.Task(x, y, {"first": (x[:8], y[:8]), "others": (x[8:], y[8:])}, x[:4])


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_training_is_that_of_the_scaled_network(alpha: float, tmp_path: Path) -> None:
    """Against torch.optim.SGD on α(f − f₀), both computed anew, at η/α²: losses at the end, and the steps of looks."""
    task = made_up()
    config = {"alpha": alpha, "lr": 0.1, "batch": 10, "smoothing": 0.0, "seed": 3, "epochs": 6, "until": 0.0}
    model = seeded(partial(mlp, [9, 12, 10]), 0).double()
    task = scaled.Task(
        task.x.double(), task.y, {k: (x.double(), y) for k, (x, y) in task.groups.items()}, task.probed.double()
    )
    expected, first = copy.deepcopy(model), copy.deepcopy(model)
    found = scaled.train(context(tmp_path, **config), model, task)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1 / alpha**2, momentum=0.9)
    order = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(6):
        for index in torch.randperm(40, generator=order).split(10):
            optimizer.zero_grad()
            loss = F.cross_entropy(alpha * (expected(task.x[index]) - first(task.x[index]).detach()), task.y[index])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    for name, (x, y) in task.groups.items():
        f = alpha * (expected(x) - first(x))
        column = found["groups"].tolist().index(name)
        assert found["losses"][-1, column] == pytest.approx(F.cross_entropy(f, y).item(), rel=1e-5)
        assert found["accuracies"][-1, column] == pytest.approx((f.argmax(1) == y).double().mean().item())
    np.testing.assert_allclose(found["losses"][0], START, rtol=1e-6)
    passed, levels = [0], 0
    for step, loss in enumerate(losses, start=1):
        while loss <= START * 0.96 ** (levels + 1):
            levels += 1
            passed.append(step)
    assert set(found["steps"]) == {*passed, 4, 8, 12, 16, 20, 24}  # the latter after every epoch
    np.testing.assert_allclose(found["linearity"][0], 1)
    assert len(found["linearity"]) == len(found["measured_at"]) == len(set(passed[::5]))


def test_training_ends_when_the_loss_is_reached(tmp_path: Path) -> None:
    config = {"alpha": 1.0, "lr": 0.1, "batch": 10, "smoothing": 0.66, "seed": 0, "epochs": 500, "until": 0.5}
    found = scaled.train(context(tmp_path, **config), seeded(partial(mlp, [9, 64, 10]), 0), made_up())
    assert found["steps"][-1] < 500 * 4
    assert found["steps"][-1] % 4 == 0
    assert found["finite"]


def test_two_classes_have_one_output(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 3, 3, generator=draw)
    y = (x[:, 0, 0, 0] > 0).long()
    config = {"alpha": 1.0, "lr": 0.1, "batch": 10, "smoothing": 0.66, "seed": 0, "epochs": 30, "until": 0.2}
    task = scaled.Task(x, y, {"all": (x, y)}, x[:4])
    found = scaled.train(context(tmp_path, **config), seeded(partial(mlp, [9, 12, 1]), 0), task)
    assert found["losses"][0, 0] == pytest.approx(math.log(2))
    assert found["accuracies"][-1, 0] > 0.9


def test_training_that_diverges_is_kept_until_then(tmp_path: Path) -> None:
    config = {"alpha": 1.0, "lr": 1e30, "batch": 10, "smoothing": 0.0, "seed": 0, "epochs": 50, "until": 0.0}
    found = scaled.train(context(tmp_path, **config), seeded(partial(mlp, [9, 12, 10]), 0), made_up())
    assert not found["finite"]
    assert found["steps"].tolist() == [0]
    np.testing.assert_allclose(found["losses"], [[START, START]], rtol=1e-6)


# Data


def test_groups_are_those_of_label_and_attribute(tmp_path: Path) -> None:
    y, attribute = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([0, 1, 0, 1, 1, 0])
    x = torch.arange(6.0).view(6, 1, 1, 1)
    found = spurious._by_group("test", Groups(x, y, attribute), most=1)
    assert {name: x.flatten().tolist() for name, (x, _) in found.items()} == {
        "test 00": [0.0],
        "test 01": [1.0],
        "test 10": [2.0],
        "test 11": [3.0],
    }


def test_samples_to_probe_come_from_all_groups() -> None:
    x = torch.arange(8.0).view(8, 1, 1, 1)
    assert spurious._spread(x, 4).flatten().tolist() == [0, 2, 4, 6]
    assert spurious._spread(x, 3).flatten().tolist() == [0, 2, 5]


def test_consistency_counts_only_networks_that_did_not_see_the_sample() -> None:
    right = torch.tensor([[[True, True, False], [False, True, False]]])
    outside = torch.tensor([[[True, False, True], [True, True, False]]])
    torch.testing.assert_close(consistency._estimate(right, outside), torch.tensor([[0.5, 1.0, 0.0]]))


def test_a_network_trained_on_imagenet_is_read(tmp_path: Path) -> None:
    """From a file with the published names, each value where it belongs."""
    with pytest.raises(DataError, match=r"model\.safetensors is not in the data folder"):
        pretrained.from_imagenet(tmp_path)
    model = seeded(pretrained.resnet18_imagenet, 1)
    state = {pretrained.published_name(k): v for k, v in model.state_dict().items() if "num_batches" not in k}
    assert {"conv1.weight", "layer1.0.conv2.weight", "layer4.1.bn2.running_var", "layer3.0.downsample.0.weight"} < set(
        state
    )
    path = tmp_path / pretrained.WEIGHTS
    path.parent.mkdir()
    save_file(state, path)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(pretrained.from_imagenet(tmp_path).eval()(x), model.eval()(x))
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="is not that of a ResNet18"):
        pretrained.from_imagenet(tmp_path)


def test_a_new_head_is_all_that_changes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))
    found = pretrained.with_new_head(model, seed=0)
    assert not found.training
    assert found[1] is model[1]
    assert found(torch.randn(2, 1, 3, 3)).shape == (2, 1)


def test_photographs_are_named_when_they_are_absent(tmp_path: Path) -> None:
    """At paper scale the parts on CelebA and Waterbirds say which file belongs where."""
    config = STUDY.configuration("paper")
    for part, file in (("celeba-a1", "celeba/list_attr_celeba.txt"), ("waterbirds-a1", "metadata.csv")):
        with pytest.raises(DataError, match=file):
            spurious.groups(context(tmp_path, **config[part]))
