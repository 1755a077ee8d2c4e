"""The computations of the study of EKFAC, beside dense matrices and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.recipes.george2018 import kfe
from torchtangent.lab.recipes.george2018.measures import basis, curves, images
from torchtangent.lab.recipes.george2018.training import How, Task, best, make, train
from torchtangent.lab.study import Arrays

N, I, O = 12, 5, 4


@pytest.fixture
def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, d = (torch.randn(N, size, dtype=torch.float64, generator=generator) for size in (I, O))
    return a, d * a[:, :1].tanh()


def gradients(a: Tensor, d: Tensor) -> np.ndarray:
    """Every sample's d aᵀ as a row."""
    return np.stack([np.outer(row_d, row_a).ravel() for row_a, row_d in zip(a.numpy(), d.numpy(), strict=True)])


def dense(a: Tensor, d: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G, the eigenbasis of E[ddᵀ] ⊗ E[aaᵀ] and its eigenvalues."""
    g = gradients(a, d)
    A, B = (t.T @ t / N for t in (a.numpy(), d.numpy()))
    (s_A, U_A), (s_B, U_B) = np.linalg.eigh(A), np.linalg.eigh(B)
    return g.T @ g / N, np.kron(U_B, U_A), np.kron(s_B, s_A)


def test_the_spectrum_is_that_of_the_dense_matrix(samples: tuple[Tensor, Tensor]) -> None:
    G, _, values = dense(*samples)
    true = kfe.spectrum(*samples)
    expected = np.linalg.eigvalsh(G)[::-1]
    np.testing.assert_allclose(true.numpy(), expected, atol=1e-12)
    far = np.linalg.norm(np.sort(values)[::-1] - expected) / np.linalg.norm(expected)
    assert float(kfe.distance(true, kfe.Basis.of(*samples).values)) == pytest.approx(far, rel=1e-10)


def test_with_more_samples_than_parameters_the_spectrum_has_no_more_values(samples: tuple[Tensor, Tensor]) -> None:
    a, d = samples[0][:, :2], samples[1][:, :2]
    g = gradients(a, d)
    np.testing.assert_allclose(kfe.spectrum(a, d).numpy(), np.linalg.eigvalsh(g.T @ g / N)[::-1], atol=1e-12)


@pytest.mark.parametrize("kind", ["KFAC", "EKFAC", "another"])
def test_errors_are_those_of_dense_matrices(kind: str, samples: tuple[Tensor, Tensor]) -> None:
    G, U, values = dense(*samples)
    ours = kfe.Basis.of(*samples)
    if kind == "KFAC":
        diagonal, D = ours.values, values
    elif kind == "EKFAC":
        diagonal, D = ours.scalings(*samples), np.diag(U.T @ G @ U)
    else:
        diagonal, D = torch.full((O, I), 0.3, dtype=torch.float64), np.full(O * I, 0.3)
    expected = np.linalg.norm(G - U * D @ U.T) / np.linalg.norm(G)
    assert float(kfe.error(*samples, ours, diagonal)) == pytest.approx(expected, rel=1e-10)


def test_scalings_in_an_old_basis_are_the_second_moments_of_rotated_gradients(samples: tuple[Tensor, Tensor]) -> None:
    a, d = samples
    old = kfe.Basis.of(a.flip(1), d + 1)
    rotated = [old.rotate(torch.outer(row_d, row_a)).square() for row_a, row_d in zip(a, d, strict=True)]
    torch.testing.assert_close(old.scalings(a, d), torch.stack(rotated).mean(0))


def test_correlations_are_the_normalized_second_moments(samples: tuple[Tensor, Tensor]) -> None:
    a, d = samples
    chosen = torch.tensor([0, 3, 7, 19])
    g = gradients(a, d)[:, chosen.numpy()]
    np.testing.assert_allclose(kfe.coordinates(a, d, chosen).numpy(), g)
    size = np.sqrt((g**2).mean(0))
    np.testing.assert_allclose(kfe.correlations(torch.from_numpy(g)).numpy(), g.T @ g / N / np.outer(size, size))


def test_a_coordinate_that_never_moves_is_correlated_with_nothing() -> None:
    found = kfe.correlations(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    assert torch.equal(found, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_factors_make_up_every_sample_s_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3))
    x, y = torch.randn(7, 2, 3), torch.randint(3, (7,))
    a, d = kfe.factors(model.double(), 1, x.double(), y, F.cross_entropy)
    layer = model[3]
    for n in range(7):
        W, b = torch.autograd.grad(F.cross_entropy(model(x[n : n + 1].double()), y[n : n + 1]), layer.parameters())
        torch.testing.assert_close(torch.outer(d[n], a[n]), torch.cat([W, b.unsqueeze(1)], 1))


# Trials.


def task() -> Task:
    """Lines through noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])

    def network(seed: int, norm: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)) if norm else nn.Sequential(nn.Linear(3, 1))
        nn.init.normal_(model[0].weight, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(model[0].bias)
        return model

    return Task(x, y, x[:5], y[:5], network, F.mse_loss, F.mse_loss)


@pytest.mark.parametrize("name", ["SGD", "SGD+BN", "Adam+BN", "KFAC", "EKFAC", "EKFAC-ra"])
def test_a_trial_learns_and_says_what_it_took(name: str) -> None:
    found = train(task(), How(name, lr=0.1, other=0.5, batch=5, epochs=8))
    assert {key: len(curve) for key, curve in found.items()} == {"loss": 8, "valid": 8, "seconds": 8, "steps": 32}
    assert found["loss"][-1] < found["loss"][0]
    np.testing.assert_allclose(found["steps"].reshape(8, 4).mean(1), found["loss"])
    assert np.all(np.diff(found["seconds"]) > 0)


@pytest.mark.parametrize("name", ["SGD", "EKFAC"])
def test_a_trial_that_diverges_is_a_result(name: str) -> None:
    found = train(task(), How(name, lr=1e30, other=1e-3, batch=5, epochs=3))
    assert np.isinf(found["loss"][-1])
    assert np.isinf(found["valid"][-1])
    assert np.all(np.isfinite(found["seconds"]))


def test_rates_are_halved() -> None:
    """Two epochs of plain SGD, by hand."""
    how = How("SGD", lr=0.1, other=0.0, batch=20, epochs=2, halve_every=1)
    work = task()
    model = work.network(0, False)
    losses = []
    for lr in (0.1, 0.05):
        loss = F.mse_loss(model(work.x), work.y)
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p -= lr * g
    with torch.no_grad():
        after = float(F.mse_loss(model(work.x[:5]), work.y[:5]))
    found = train(work, how)
    assert found["loss"] == pytest.approx(losses, rel=1e-5)
    assert found["valid"][-1] == pytest.approx(after, rel=1e-5)


def test_the_same_seed_gives_the_same_trial() -> None:
    how = How("EKFAC-ra", lr=0.1, other=0.1, batch=5, epochs=2, seed=3)
    np.testing.assert_array_equal(train(task(), how)["steps"], train(task(), how)["steps"])


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(ValueError, match="no optimizer 'LBFGS'; there are: KFAC, EKFAC, EKFAC-ra, SGD"):
        make(nn.Linear(1, 1), How("LBFGS", 0.1, 0.1, 1, 1))


def test_the_best_setting_is_not_one_that_diverged() -> None:
    loss = np.array([[[1.0, np.inf], [2.0, 0.5]], [[3.0, 0.7], [0.1, 0.9]]])
    assert best({"loss": loss, "rates": np.array([0.1, 0.2]), "others": np.array([5.0, 6.0])}) == (0.1, 6.0)


# What is read off the arrays.


def test_lower_by_more_than_the_standard_error() -> None:
    arrays = Arrays(
        {
            "curves-A": {"loss": np.array([[1.0, 1.0], [1.0, 1.0]])},
            "curves-B": {"loss": np.exp([[1.0, 1.0], [3.0, 3.0]])},
            "curves-C": {"loss": np.array([[np.inf, np.inf], [1.0, 1.0]])},
        }
    )
    assert curves.lower_per_epoch("A", ["B"])(arrays) == {"B": pytest.approx(2.0 - 1.0)}
    assert np.isnan(curves.lower_per_epoch("C", ["C"])(arrays)["C"])  # type: ignore[index]


def test_times_to_the_loss_of_the_best_other() -> None:
    clock = np.array([1.0, 2.0, 3.0])
    found = curves.times_to_best(
        {
            "ours": (np.array([3.0, 1.0, 0.5]), clock),
            "A": (np.array([4.0, 2.0, 1.2]), clock),
            "B": (np.full(3, 9.0), clock),
        },
        ["A", "B"],
    )
    assert found == {"ours": 2.0, "A": 3.0, "B": float("inf")}


def test_drift_is_growth_until_the_basis_is_renewed() -> None:
    errors = np.array([[[0.1, 0.3, 0.5, 0.2, 0.3, 0.4, 0.2], [0.1, 0.1, 0.2, 0.1, 0.1, 0.2, 0.1]]])
    arrays = Arrays({"p": {"steps": np.arange(7) * 10, "errors": errors, "basis_every": np.array(30)}})
    np.testing.assert_allclose(basis.drifts(arrays, 30), [[0.3, 0.1]])
    assert basis.drift_ratio(arrays) == pytest.approx(1 / 3)


def test_the_clock_ignores_trials_that_broke_off() -> None:
    loss = np.array([[[2.0, 1.0]], [[2.0, np.inf]], [[2.0, 1.5]]])
    seconds = np.array([[[1.0, 2.0]], [[0.1, 0.1]], [[3.0, 6.0]]])
    arrays = Arrays({"VGG11-A": {"loss": loss, "seconds": seconds}})
    np.testing.assert_allclose(images.clock(arrays, "VGG11-A"), [2.0, 4.0])
    np.testing.assert_allclose(images.envelope(arrays, "VGG11-A"), [2.0, 1.0])
