"""The rules that read claims off curves, on made-up curves whose readings are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchtangent.lab.claims import Untested
from torchtangent.lab.recipes.baratin2021.heldout import label_alignment
from torchtangent.lab.recipes.baratin2021.measures import capacity, curves, heldout, mixtures, noise
from torchtangent.lab.recipes.baratin2021.recipe import STUDY
from torchtangent.lab.recipes.baratin2021.training import descend, halts, network, scores, with_random_labels
from torchtangent.lab.results import Run
from torchtangent.lab.rules import Rule
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Arrays

STEPS = np.array([0, 9, 99, 999, 9999])  # step + 1 is a power of ten
CLOSE = 3e-3  # relative, of steps: curves are read on a fine grid


def rule(identifier: str, name: str) -> Rule:
    """The rule of a claim of the study."""
    return next(claim.rule for claim in STUDY.claims if (claim.id, claim.name) == (identifier, name))


# Curves


@pytest.mark.parametrize(("level", "power"), [(1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (0.0, 0.0)])
def test_a_level_is_reached_on_the_line_over_the_logarithm(level: float, power: float) -> None:
    rising = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert curves.reached(STEPS, rising, level) + 1 == pytest.approx(10**power, rel=CLOSE)


def test_a_level_above_all_is_never_reached() -> None:
    assert curves.reached(STEPS, np.array([0.0, 1.0, 0.5, 1.0, 0.2]), 1.01) == math.inf


def test_the_first_crossing_counts() -> None:
    assert curves.reached(STEPS, np.array([0.0, 2.0, 0.0, 2.0, 2.0]), 1.0) + 1 == pytest.approx(10**0.5, rel=CLOSE)


def test_a_rise_is_measured_from_start_to_peak() -> None:
    curve = np.array([1.0, 1.0, 3.0, 2.0, 0.0])
    assert curves.risen(STEPS, curve) + 1 == pytest.approx(10**1.5, rel=CLOSE)
    assert curves.risen(STEPS, curve, 0.1) + 1 == pytest.approx(10**1.1, rel=CLOSE)


def test_time_above_is_counted_in_steps() -> None:
    curve = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
    expected = 10**2.5 - 10**0.5  # down to one half between 100 and 1,000, up between 1 and 10
    assert curves.time_above(STEPS, curve, 0.5) == pytest.approx(expected, rel=CLOSE)
    assert curves.time_above(STEPS, curve, 2.0) == 0


def test_learning_ends_at_the_peak() -> None:
    found = curves.learning(np.array([0.1, 0.5, 0.7, 0.9, 0.85]))
    assert found.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize(("accuracy", "index"), [([0.1, 0.9995, 1.0], 1), ([0.1, 0.9, 0.99], 2)])
def test_fitted(accuracy: list[float], index: int) -> None:
    assert curves.fitted(np.array(accuracy)) == index


def test_curves_are_compared_at_equal_loss() -> None:
    """One run is ten times as fast, its curve is one higher at the same loss; where the loss rises nothing counts."""
    loss = np.array([4.0, 2.0, 1.0, 0.5, 0.25])
    slow = (loss[:4], -np.log2(loss[:4]))
    fast = (np.array([4.0, 1.0, 3.0, 0.25]), np.array([-1.0, 1.0, 99.0, 3.0]))
    a, b = curves.at_equal_loss(fast, slow, count=7)
    np.testing.assert_allclose(b, np.linspace(-2, 1, 7))
    np.testing.assert_allclose(a, b + 1)


# Spectrum and alignment


def noisy(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """One seed of a run in which all that the paper says is true; `changes` replaces curves."""
    rank = np.array([600.0, 50.0, 40.0, 60.0, 90.0])
    values = np.outer([1, 10, 100, 300, 1000], [50.0, 20.0, 5.0]) ** np.array([1.0, 0.8, 0.5])
    layers = np.array([[0.1] * 4, [0.2] * 4, [0.6, 0.7, 0.55, 0.2], [0.5] * 3 + [0.1], [0.4] * 3 + [0.1]])
    curve = {
        "train_loss": np.array([3.0, 1.0, 0.5, 0.1, 0.01]),
        "train_accuracy": np.array([0.1, 0.5, 0.8, 0.9, 1.0]),
        "test_accuracy": np.array([0.1, 0.6, 0.8, 0.7, 0.5]),
        "train_rank": rank,
        "test_rank": rank,
        "train_eigenvalues": values,
        "test_eigenvalues": 1.1 * values,
        "train_mean": values.mean(1),
        "test_mean": values.mean(1),
        "train_shares": np.array([[0.2, 0.4]] * 4 + [[0.5, 0.8]]),
        "train_cka": np.array([0.05, 0.1, 0.15, 0.2, 0.25]),
        "test_cka": np.array([0.05, 0.3, 0.4, 0.3, 0.25]),
        "test_start": np.array([1.0, 0.8, 0.6, 0.5, 0.4]),
        "train_layers": layers,
        "test_layers": layers,
    } | changes
    return {name: a[None] for name, a in curve.items()} | {
        "steps": STEPS,
        "indices": np.array([1, 10, 100]),
        "shares": np.array([10, 40]),
    }


def parts(**changes: np.ndarray) -> Arrays:
    """Such a run under the names of all parts; at the small rate the rank falls to three times the value."""
    slow = noisy(**{"train_rank": np.array([600.0, 300.0, 120.0, 150.0, 200.0])} | changes)
    return Arrays({"noise-0": noisy(**changes), "noise-50": noisy(**changes), "slow-0": slow, "slow-50": slow})


READINGS = [
    ("TG-Fig6.2", "growth", noise.growth("noise-0"), {"largest": 1000.0, "mean": None}),
    ("TG-Fig6.2", "anisotropy", noise.growth_by_index("noise-0"), {"mean": -1.0}),
    ("TG-Fig6.2", "effective rank, 0 %", noise.drop("noise-0"), {"mean": 40 / 600}),
    ("TG-Fig6.2", "effective rank, 50 %", noise.drop("noise-50"), {"mean": 40 / 600}),
    ("TG-Fig6.2", "trace ratio", noise.share("noise-0", 40), {"mean": 0.8}),
    ("TG-Fig6.2", "rebound", noise.rebound("noise-50"), {"rank, end over least": 2.25, "test accuracy lost": 0.3}),
    ("TG-Fig6.2", "test kernel, 0 %", noise.sets_differ("noise-0"), {"mean": math.log10(1.1)}),
    ("TG-Fig6.3", "increases", noise.cka_growth("noise-0"), {"train": 5.0, "test": 5.0}),
    ("TG-Fig6.3", "end", noise.cka_end("noise-0"), {"mean": 0.25}),
    ("TG-Fig6.3", "clean labels first", noise.clean_over_noisy("noise-50"), {"mean": 0.35 / 0.125}),
    ("TG-Fig6.3", "layers", noise.layers_above("noise-0", 0.5), {"mean": 3.0}),
    ("TG-Fig6.3", "top layer", noise.last_layer("noise-0"), {"mean": 2 / 7}),
    ("TG-Fig6.3", "peak", noise.layer_peaks("noise-50"), {"train": 1.0, "test": 1.0}),
    ("TG-FigB.8", "drop, 0 %", noise.drop("slow-0"), {"mean": 0.2}),
    ("TG-FigB.8", "three times", noise.slower("noise-0", "slow-0"), {"mean": 3.0}),
]


@pytest.mark.parametrize(("identifier", "name", "measure", "expected"), READINGS, ids=lambda item: str(item)[:20])
def test_a_run_like_the_papers_is_read_and_held(identifier: str, name: str, measure, expected: dict) -> None:  # type: ignore[no-untyped-def]
    measured = measure(parts())
    for key, value in expected.items():
        assert value is None or measured[key] == pytest.approx(value, rel=1e-6)
    assert rule(identifier, name).holds(measured)
    claim = next(claim for claim in STUDY.claims if (claim.id, claim.name) == (identifier, name))
    assert claim.measure(parts()) == measured  # it is this measure that the claim takes


def test_the_mean_eigenvalue_grows_less_than_the_largest() -> None:
    values = np.array([[50.0, 20.0, 5.0], [50e3, 20.0, 5.0]])[[0, 0, 0, 0, 1]]
    found = noise.growth("noise-0")(parts(train_eigenvalues=values, train_mean=values.mean(1)))
    assert found == {"largest": pytest.approx(1000), "mean": pytest.approx(50025 / 75)}


def test_growth_is_read_where_the_training_set_is_fitted_first() -> None:
    accuracy = np.array([0.1, 0.9, 1.0, 1.0, 1.0])
    found = noise.growth("noise-0")(parts(train_accuracy=accuracy))
    assert found["largest"] == pytest.approx(100)  # type: ignore[index]


@pytest.mark.parametrize("before", [1, 2])
def test_an_early_drop(before: int) -> None:
    """From 600 at 10 (or 100) of 10,000 steps to 100 at ten times as many: half of the way down to 80 is at 340."""
    rank = np.array([600.0] * (before + 1) + [100.0] * (3 - before) + [80.0])
    measured = noise.drop_early("noise-0")(parts(train_rank=rank))
    expected = (10 ** (before + 260 / 500) - 1) / 9999
    assert measured["mean"] == pytest.approx(expected, rel=CLOSE)  # type: ignore[index]
    assert rule("TG-Fig6.2", "early, 0 %").holds(measured)


def test_a_late_drop_does_not_hold() -> None:
    late = noise.drop_early("noise-0")(parts(train_rank=np.array([600.0, 600, 600, 600, 50])))
    assert not rule("TG-Fig6.2", "early, 0 %").holds(late)


@pytest.mark.parametrize(("rank", "held"), [([9.0, 2, 1, 3, 4], True), ([1.0, 3, 4, 3, 2], False)])
def test_rank_against_accuracy(rank: list[float], held: bool) -> None:
    measured = noise.rank_against_accuracy("noise-50")(parts(train_rank=np.array(rank)))
    assert rule("TG-Fig6.2", "rank against accuracy").holds(measured) is held


def test_no_rebound_without_overfitting() -> None:
    measured = noise.rebound("noise-50")(parts(test_accuracy=np.array([0.1, 0.2, 0.3, 0.4, 0.5])))
    assert not rule("TG-Fig6.2", "rebound").holds(measured)


def test_rates_are_compared_at_equal_loss() -> None:
    """The usual rate has the higher alignment at each loss, though the small one, which goes on longer, ends above."""
    loss = np.array([8.0, 4.0, 2.0, 1.0, 0.5])
    usual = noisy(train_loss=4 * loss, test_cka=np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    small = noisy(train_loss=loss, test_cka=np.array([0.2, 0.3, 0.4, 0.5, 0.6]))
    measured = noise.rates_at_equal_loss("test_cka", "noise-0", "slow-0")(Arrays({"noise-0": usual, "slow-0": small}))
    assert measured["usual"] == pytest.approx(0.4)  # type: ignore[index]
    assert measured["small"] == pytest.approx(0.3)  # type: ignore[index]
    assert rule("TG-lr-claim", "alignment, 0 %").holds(measured)
    assert not rule("TG-lr-claim", "features, 0 %").holds(measured)


def test_seeds_are_read_one_by_one() -> None:
    two = {name: a if name in ("steps", "indices", "shares") else np.concatenate([a, a]) for name, a in noisy().items()}
    two["train_rank"] = np.array([[600.0, 60, 60, 60, 60], [100.0, 30, 30, 30, 30]])
    assert noise.drop("noise-0")(Arrays({"noise-0": two})) == {
        "mean": pytest.approx(0.2),
        "standard error": pytest.approx(0.1),
    }


@pytest.mark.parametrize(
    ("curve", "held"), [([1.0, 2, 3, 4, 5], True), ([1.0, 2, 3, 2, 1.05], False), ([5.0, 1, 2, 3, 4], False)]
)
def test_an_increase_has_a_trend_and_an_end(curve: list[float], held: bool) -> None:
    arrays = Arrays({"held-out-MLP": {"steps": STEPS, "cka": np.array([curve])}})
    assert rule("TG-FigB.5", "MLP").holds(heldout.increases("held-out-MLP", "cka")(arrays)) is held


# Easy and difficult images


def mixture(easy: list[float], difficult: list[float]) -> dict[str, np.ndarray]:
    """Two seeds, the second of which is the first times 0.9."""
    scale = np.array([[1.0], [0.9]])
    return {"steps": STEPS, "easy": scale * np.array(easy), "difficult": scale * np.array(difficult)}


EARLY_LATE = mixture([0.1, 0.3, 0.5, 0.5, 0.5], [0.1, 0.1, 0.1, 0.2, 0.4])


def test_difficult_images_come_later_and_lower() -> None:
    arrays = Arrays({"mixture-kmnist": EARLY_LATE})
    assert mixtures.higher("mixture-kmnist")(arrays) == 1.0
    assert mixtures.largest_ratio("mixture-kmnist")(arrays)["mean"] == pytest.approx(5.0)  # type: ignore[index]
    # 0.3 is reached at 10 and half-way between 1,000 and 10,000.
    assert mixtures.delays("mixture-kmnist")(arrays) == {
        "share of seeds": 1.0,
        "median delay": pytest.approx(10**3.5 / 10, rel=2 * CLOSE),
    }
    # Half-way up, at 0.25, between the same.
    assert mixtures.rise_of_difficult("mixture-kmnist")(arrays) == {
        "largest over start": pytest.approx(4.0),
        "delay": pytest.approx(10**3.25 / 10, rel=2 * CLOSE),
    }
    for name in ("higher, other characters", "earlier, other characters", "ratio, other characters", "later"):
        claim = next(claim for claim in STUDY.claims if (claim.id, claim.name) == ("TG-Fig6.4", name))
        assert claim.rule.holds(claim.measure(arrays)), name


def test_what_is_never_reached_counts_as_the_end() -> None:
    pair = mixtures.Pair(STEPS, np.array([0.1, 0.3, 0.5, 0.5, 0.5]), np.full(5, 0.1))
    assert mixtures.delay(pair) == pytest.approx(10_000 / 10, rel=CLOSE)


def test_easy_images_that_are_no_easier_do_not_hold() -> None:
    swapped = Arrays(
        {"mixture-random": {**EARLY_LATE, "easy": EARLY_LATE["difficult"], "difficult": EARLY_LATE["easy"]}}
    )
    for name in ("higher, random labels", "earlier, random labels", "ratio, random labels"):
        claim = next(claim for claim in STUDY.claims if (claim.id, claim.name) == ("TG-Fig6.4", name))
        assert not claim.rule.holds(claim.measure(swapped)), name


def test_readings_of_one_pair() -> None:
    pair = mixtures.Pair(STEPS, np.array([0.1, 0.1, 1.1, 1.1, 1.1]), np.array([0.1, 0.1, 0.1, 1.1, 1.1]))
    assert mixtures.onset(pair) + 1 == pytest.approx(10**1.1, rel=CLOSE)
    assert mixtures.rise_time(pair) == pytest.approx(10**0.8, rel=2 * CLOSE)
    assert mixtures.height(pair) == pytest.approx(1.1)
    assert mixtures.ratio_peak(pair) == pytest.approx(11.0)
    # The ratio is 5.5 at 10^1.45 on its way up from 1 to 11, and at 10^2.55 down again.
    assert mixtures.ratio_time(pair) == pytest.approx(10**2.55 - 10**1.45, rel=CLOSE)


def test_depths_are_ordered_over_all_seeds() -> None:
    arrays = Arrays({f"depth-{d}": mixture([0.1, 0.2, 0.3, 0.4, 0.1 * d], [0.1] * 5) for d in (3, 5, 7, 9)})
    assert mixtures.with_depth((3, 5, 7, 9), mixtures.height)(arrays) > 0.8  # type: ignore[operator]
    assert mixtures.with_depth((9, 7, 5, 3), mixtures.height)(arrays) > 0.8  # type: ignore[operator]
    assert mixtures.with_depth((3, 5, 7, 9), lambda pair: -pair.easy.max())(arrays) < -0.8  # type: ignore[operator]


# Capacity


def swept(complexity: list[float], error: list[float], **more: list[float]) -> dict[str, np.ndarray]:
    """A sweep of one seed with a training error of 0."""
    count = len(error)
    measures = {"neyshabur": np.arange(count), "spectral": -np.arange(count), "parameters": np.full(count, 7)}
    return {
        "values": np.arange(1, count + 1),
        "goal": np.array(0.01),
        "names": np.array(list(measures)),
        "measures": np.stack([values + 10.0 for values in measures.values()], 1)[:, None],
        "margins": np.full((count, 1), 2.0),
        "complexity": np.array(complexity)[:, None],
        "losses": np.array(more.get("losses", [0.005] * count))[:, None],
        "train_error": np.zeros((count, 1)),
        "test_error": np.array(error)[:, None],
    }


def test_a_measure_follows_the_gap() -> None:
    arrays = Arrays({"widths": swept([1, 2, 4, 8], [0.1, 0.2, 0.3, 0.4]), "corruption": swept([9, 8, 7], [3, 2, 1])})
    assert capacity.follows("widths")(arrays) == {"mean": pytest.approx(1.0)}
    assert capacity.follows("corruption")(arrays) == {"mean": pytest.approx(1.0)}
    assert capacity.with_value("corruption")(arrays) == {"mean": pytest.approx(-1.0)}
    assert capacity.follows("widths", "neyshabur")(arrays) == {"mean": pytest.approx(1.0)}
    assert capacity.follows("widths", "spectral")(arrays) == {"mean": pytest.approx(-1.0)}
    np.testing.assert_allclose(capacity.capacities(arrays, "widths")["spectral"][:, 0], [5.0, 4.5, 4.0, 3.5])
    np.testing.assert_allclose(capacity.capacities(arrays, "widths")["parameters"], 17.0)


def test_runs_that_did_not_come_to_the_goal_are_not_compared() -> None:
    losses = [0.005, 0.01, 0.02, 0.005]
    arrays = Arrays({"widths": swept([1, 2, 99, 3], [0.1, 0.2, 0.0, 0.3], losses=losses)})
    assert capacity.follows("widths")(arrays) == {"mean": pytest.approx(1.0)}
    few = Arrays({"widths": swept([1, 2, 99, 3], [0.1, 0.2, 0.0, 0.3], losses=[0.5, 0.5, 0.005, 0.005])})
    for measure in (capacity.follows("widths"), capacity.with_value("widths"), capacity.others_following("widths")):
        with pytest.raises(Untested, match=r"only 2 of 4 networks \(widths\) reached a loss of 0\.01"):
            measure(few)


def test_others_are_counted_if_they_follow_in_every_sweep() -> None:
    falling = swept([3, 2, 1], [0.3, 0.2, 0.1])  # so does "spectral", which falls along every sweep
    rising = swept([1, 2, 3], [0.1, 0.2, 0.3])
    assert capacity.others_following("a", "b")(Arrays({"a": falling, "b": falling})) == 1.0
    assert capacity.others_following("a", "b")(Arrays({"a": falling, "b": rising})) == 0.0
    assert rule("TG-Fig6.6", "only these").holds(0.0)
    assert not rule("TG-Fig6.6", "only these").holds(1.0)


# What the experiments are made of


@pytest.mark.parametrize(("steps", "most"), [(10, 4), (600, 14), (9000, 20), (400, 1)])
def test_halts_are_the_released_steps_thinned_out(steps: int, most: int) -> None:
    found = halts(steps, most)
    assert found[0] == 0
    assert found[-1] == steps
    assert found == sorted(set(found))
    assert len(found) <= max(most, 3)
    assert set(found[1:-1]) <= {5 * math.floor(1.15**k) for k in range(100)}


def test_descent_stops_where_it_should_and_says_the_mean_loss() -> None:
    x, y = torch.randn(12, 1, 2, 2), torch.arange(12) % 10
    stops, models = [0, 2, 5, 7], []
    for given in (stops, [7]):
        model = network({"network": "MLP", "width": 4, "depth": 3}, (1, 2, 2), seed=0)
        losses = dict(descend(model, x, y, lr=0.1, batch=5, seed=1, stops=given))
        assert list(losses) == given
        models.append((model, losses))
    (piecewise, pieces), (at_once, whole) = models
    for a, b in zip(piecewise.parameters(), at_once.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert pieces[0] == 0.0
    assert (2 * pieces[2] + 3 * pieces[5] + 2 * pieces[7]) / 7 == pytest.approx(whole[7], rel=1e-6)


def sweep_of_one(lr: float, goal: float) -> dict[str, np.ndarray]:
    """A sweep of one width on 40 digits in batches of 10."""
    part = STUDY.part("widths")
    config = STUDY.configuration("test")["widths"] | {"values": [6], "lr": lr, "goal": goal, "steps": 60}
    context = Context(part, config, torch.device("cpu"), Run(Path()), None)
    return dict(part.run(context))


def test_a_sweep_stops_after_the_epoch_that_comes_to_the_goal() -> None:
    first, later = sweep_of_one(lr=0.05, goal=100.0), sweep_of_one(lr=0.05, goal=1.5)
    assert first["steps"] == [[4]]
    assert later["steps"][0, 0] % 4 == 0
    assert 4 < later["steps"][0, 0] < 60
    assert later["losses"][0, 0] <= 1.5 < first["losses"][0, 0]
    assert later["complexity"][0, 0] > first["complexity"][0, 0] > 0


def test_a_run_that_diverges_is_infinite_and_not_compared() -> None:
    found = sweep_of_one(lr=1e30, goal=0.01)
    assert found["steps"] == [[4]]
    assert np.isinf(found["margins"]).all()
    assert not any(np.isnan(array).any() for name, array in found.items() if name != "names")
    assert np.isnan(capacity.capacities(Arrays({"widths": found}), "widths")[capacity.THEIRS]).all()
    assert not capacity.reached(Arrays({"widths": found}), "widths").any()


def test_scores_are_those_of_eval_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.99), nn.Linear(4, 10)).train()
    x, y = torch.randn(7, 1, 2, 2), torch.arange(7)
    loss, accuracy = scores(model, x, y)
    assert model.training
    f = model[2](x.flatten(1)).detach()
    assert loss == pytest.approx(float(nn.functional.cross_entropy(f, y)), rel=1e-6)
    assert accuracy == pytest.approx(float((f.argmax(1) == y).float().mean()))


def test_random_labels_are_uniform_over_all_classes() -> None:
    y = torch.zeros(10_000, dtype=torch.int64)
    drawn = with_random_labels(y, 0.5, seed=3)
    assert torch.equal(drawn, with_random_labels(y, 0.5, seed=3))
    assert float((drawn != y).float().mean()) == pytest.approx(0.45, abs=0.02)


def test_alignment_with_labels_is_that_of_the_dense_formula() -> None:
    """A linear network in float64: K = (xxᵀ + 1) ⊗ I, so both alignments are those of XXᵀ + 1 with one-hot labels."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 10
    Y = nn.functional.one_hot(y, 10).double()
    K = torch.kron(x @ x.T + 1, torch.eye(10, dtype=torch.float64))
    flat = Y.flatten()
    mean = torch.kron(torch.full((12, 12), 1 / 12, dtype=torch.float64), torch.eye(10, dtype=torch.float64))
    H = torch.eye(120, dtype=torch.float64) - mean
    centred, labels = H @ K @ H, H @ flat
    model = nn.Linear(3, 10).double().train()
    cka, uncentred = label_alignment(model, x, y)
    assert model.training
    assert cka == pytest.approx(float(labels @ centred @ labels / (centred.norm() * labels @ labels)), rel=1e-10)
    assert uncentred == pytest.approx(float(flat @ K @ flat / (K.norm() * flat @ flat)), rel=1e-10)


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="no network 'LSTM'; there are: MLP, VGG19, ResNet18, ConvNet"):
        network({"network": "LSTM"}, (1, 8, 8), seed=0)
