"""The disk, the interpolators, SuperNat and sums of tangents against closed forms and plain float64 algebra."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from oracle import flat
from torch import nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.data.synthetic import disk_grid, noisy_regression, rbf_features
from torchtangent.lab.models import mlp
from torchtangent.lab.recipes.baratin2021.copies import Copies, logistic
from torchtangent.lab.recipes.baratin2021.disk import roundness
from torchtangent.lab.recipes.baratin2021.features import solutions
from torchtangent.lab.recipes.baratin2021.measures import disk as disk_measures
from torchtangent.lab.recipes.baratin2021.measures import features as features_measures
from torchtangent.lab.recipes.baratin2021.measures import rates as rates_measures
from torchtangent.lab.recipes.baratin2021.measures import supernat as supernat_measures
from torchtangent.lab.recipes.baratin2021.measures.seeds import over_seeds, surely
from torchtangent.lab.recipes.baratin2021.rates import descend, largest_stable
from torchtangent.lab.recipes.baratin2021.recipe import STUDY
from torchtangent.lab.recipes.baratin2021.spectra import printed_cka
from torchtangent.lab.recipes.baratin2021.supernat import steps_beside_matrices, train
from torchtangent.lab.study import Arrays
from torchtangent.lab.train import Descent

ROUNDING = {"rtol": 1e-9, "atol": 1e-11}


# Copies


def test_copies_train_as_networks_alone() -> None:
    nets = [mlp([2, 5, 5, 1]).double() for _ in range(3)]
    x, y = torch.randn(3, 7, 2).double(), torch.randn(3, 7).double().sign()
    rates = torch.tensor([0.1, 0.5, 2.0]).double()
    copies = Copies(nets)
    descent = Descent(copies, lambda f, y: rates @ logistic(f, y), lr=1.0, momentum=0.0)
    alone = [copy.deepcopy(net) for net in nets]
    for _ in range(4):
        descent(x, y)
    for e, net in enumerate(alone):
        optimizer = torch.optim.SGD(net.parameters(), float(rates[e]))
        for _ in range(4):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(x[e]).squeeze(1), (y[e] + 1) / 2).backward()
            optimizer.step()
        torch.testing.assert_close(flat(copies.network(e)), flat(net), **ROUNDING)


def test_a_copy_of_a_copy_is_not_the_copy() -> None:
    copies = Copies([mlp([2, 3, 1]), mlp([2, 3, 1])])
    other = copies.network(1)
    before = flat(other).clone()
    with torch.no_grad():
        copies.weights[0].zero_()
    assert torch.equal(flat(other), before)
    copies.write(1, other)
    assert not other[1].weight.any()


# The disk


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_roundness_is_the_part_of_the_variance_that_is_radial(weight: float) -> None:
    """f = √w g(r) + √(1 − w) h(r) cos θ has variances w Var g and (1 − w) E[h²] / 2 on the unit disk."""
    x, _ = disk_grid(201)
    x = x.double()
    r, cosine = x.norm(dim=1), x[:, 0] / x.norm(dim=1).clamp(min=1e-12)
    radial, turning = r.square(), r.square() * cosine
    # On the unit disk, of density 2r: Var r² = 1/12, and E[(r² cos θ)²] = E[r⁴] / 2 = 1/6.
    f = (12 * weight) ** 0.5 * radial + (6 * (1 - weight)) ** 0.5 * turning
    assert float(roundness(f[:, None])[0]) == pytest.approx(weight, abs=2e-3)


def test_roundness_does_not_change_when_functions_are_turned_scaled_and_shifted() -> None:
    u = torch.randn(400, 3).double()
    turned = u.view(20, 20, 3).rot90(1, (0, 1)).reshape(400, 3)
    torch.testing.assert_close(roundness(-2 * turned + 5), roundness(u), rtol=1e-6, atol=1e-8)


def test_the_largest_stable_rate_is_that_of_the_gauss_newton_matrix() -> None:
    model, x = mlp([2, 6, 1]).double(), torch.randn(9, 2).double()
    J = tt.jacobian(model, x).dense().squeeze(1)
    p = torch.sigmoid(model(x)).squeeze(1).detach()
    G = J.T @ torch.diag(p * (1 - p)) @ J / len(x)
    assert largest_stable(model, x) == pytest.approx(2 / float(torch.linalg.eigvalsh(G)[-1]), rel=1e-9)


def test_networks_stop_at_the_loss_they_are_compared_at() -> None:
    x, y = torch.randn(2, 20, 2), torch.ones(2, 20)
    net = mlp([2, 4, 1])
    copies = Copies([net, copy.deepcopy(net)])
    steps, losses = descend(copies, x[:1].expand(2, -1, -1), y, [0.05, 0.5], 0.3, 2000)
    assert losses == logistic(copies(x[:1].expand(2, -1, -1)), y).tolist()
    assert steps[0] > steps[1] > 0
    assert max(losses) < 0.3
    assert losses[0] > 0.28  # not a step further than needed
    steps, losses = descend(copies, x, y, [1e-6, 1e-6], 0.01, 30)
    assert min(losses) > 0.01
    assert steps == [30, 30]


def test_networks_that_did_not_reach_the_loss_are_left_out() -> None:
    """Two widths, two rates, three seeds; of the narrow ones at the large rate only one seed came to the goal."""
    reached = np.ones((2, 2, 3))
    reached[0, 1, 1:] = 0
    cka = np.zeros((2, 2, 3))
    cka[:, 1] = [0.1, 0.2, 0.3]
    arrays = Arrays(
        {
            "disk-rates": {
                "widths": np.array([4, 16]),
                "reached": reached,
                "cka": cka,
                "loss": 0.18 * reached,
                "goal": np.array(0.2),
                "unchanged": np.where(reached > 0, 0.5, 0.0),
            }
        }
    )
    effect = rates_measures.rate_effect(arrays)
    assert np.isnan(effect["width 4"])
    assert effect["width 16"] == pytest.approx(0.2 - 2 * 0.1 / 3**0.5)
    assert rates_measures.corners(arrays)["narrow, large"] == 0.5
    assert rates_measures.all_reached(arrays) == pytest.approx({"reached": 10 / 12, "lowest loss / goal": 0.9})


def test_the_drop_and_the_rebound_are_read_off_the_spectrum() -> None:
    """Two seeds at two rates: 2 % → 0.4 % → 0.8 %; and one seed whose ratio stays."""
    path = np.array([0.02, 0.004, 0.008])
    values = np.ones((2, 2, 3, 20))
    values[:, 0, :, 19], values[:, 1, :, 19] = path, 0.02
    arrays = Arrays({"disk": {"lrs": np.array([0.1, 1.0]), "eigenvalues": values**2, "eigenvalues_centred": values}})
    assert disk_measures.dips(arrays) == 0.5
    assert disk_measures.at_start("centred")(arrays) == pytest.approx(0.02)
    assert disk_measures.at_start("uncentred", 0.5)(arrays) == pytest.approx(0.02)
    assert disk_measures.rebound(arrays) == pytest.approx(surely(np.array([2.0, 1.0])))
    assert disk_measures.lowest(arrays) == pytest.approx({"lr 0.1": 0.6, "lr 1": 0.6})


def test_a_mean_and_its_standard_error() -> None:
    assert over_seeds(np.array([1.0, 2.0, 3.0])) == {"mean": 2.0, "standard error": pytest.approx(3**-0.5)}
    assert over_seeds(np.array([5.0])) == {"mean": 5.0}


def test_two_standard_errors() -> None:
    assert surely(np.array([1.0, 2.0, 3.0, 6.0])) == pytest.approx({"mean": 3.0, "mean − 2 s.e.": 3 - 4.3204938 / 2})
    assert surely(np.array([4.0])) == {"mean": 4.0, "mean − 2 s.e.": 4.0}


# TG-FigB.3


def test_interpolators_are_the_shortest() -> None:
    """Against a pseudo-inverse of rescaled features, and the bound against its definition with dense A."""
    _, Phi = rbf_features(24, 24, extent=2.0, gamma=1.0, seed=3)
    psi, roots, _ = torch.linalg.svd(Phi)
    chosen = torch.stack([torch.arange(0, 24, 4), torch.arange(1, 24, 4)])
    cs = [0.3, 0.8]
    found, w = solutions(Phi @ Phi.T, chosen, cs, [1, 4])
    y, n = psi[:, 1].sign(), chosen.shape[1]
    for i, c in enumerate(cs):
        features = psi * (1 + c * (roots.square() - 1)).sqrt()  # in the basis φ
        errors, plain, best = [], [], []
        for k, points in enumerate(chosen):
            part = features[points]
            shortest = torch.linalg.pinv(part) @ y[points]
            other = [j for j in range(24) if j not in points.tolist()]
            errors.append(float(((features[other] @ shortest).sign() != y[other]).double().mean()))
            plain.append(float(shortest.norm() * part.norm() / n))
            U, s, Vt = torch.linalg.svd(part, full_matrices=False)
            nu = s.square() / (U.T @ y[points]).abs()
            A = Vt.T @ torch.diag(nu.sqrt()) @ Vt
            best.append(float((A @ shortest).norm() * (torch.linalg.pinv(A) @ part.T).norm() / n))
            torch.testing.assert_close(w[i, k].abs(), shortest[[1, 4]].abs(), rtol=1e-6, atol=1e-8)
        assert float(found["error"][i]) == pytest.approx(np.mean(errors))
        assert float(found["plain"][i]) == pytest.approx(np.mean(plain), rel=1e-6)
        assert float(found["best"][i]) == pytest.approx(np.mean(best), rel=1e-6)


def bounded(error: list[float], plain: list[float], positive: float = 0.5) -> Arrays:
    """Two equal seeds on one interval at c = ¼, ½ and 1; the best bound is 1."""

    def both(values: list[float]) -> np.ndarray:
        return np.array([[values, values]])

    return Arrays(
        {
            "interpolators": {
                "extents": np.array([3.0]),
                "anisotropies": np.array([0.25, 0.5, 1.0]),
                "error": both(error),
                "plain": both(plain),
                "best": np.ones((1, 2, 3)),
                "positive": np.full((1, 2), positive),
            }
        }
    )


def test_bounds_beside_errors() -> None:
    """The bound grows fourfold where the error falls to a half; log(bound/error) of the best varies with the error."""
    arrays = bounded([0.4, 0.2, 0.1], [1.0, 1.0, 4.0])
    assert features_measures.looseness(arrays) == pytest.approx({"a = 3": 4.0})
    assert features_measures.outgrows(arrays) == pytest.approx({"a = 3": np.log(8)})
    expected = np.std(np.log([2.5, 5, 40])) - np.std(np.log([2.5, 5, 10]))
    assert features_measures.apart(arrays) == pytest.approx({"a = 3": expected})


@pytest.mark.parametrize("arrays", [bounded([0.4, 0.2, 0.0], [1.0] * 3), bounded([0.4] * 3, [1.0] * 3, positive=0.99)])
def test_without_errors_or_without_a_task_nothing_follows(arrays: Arrays) -> None:
    for name, measure in (("grows beyond the error", "outgrows"), ("follows the error", "apart")):
        measured = getattr(features_measures, measure)(arrays)
        assert np.isnan(measured["a = 3"])
        assert not next(claim.rule for claim in STUDY.claims if claim.name == name).holds(measured)


# TG-erank/Tk/CKA


def test_the_printed_centring_is_that_of_one_mean() -> None:
    Phi, Y = torch.randn(6, 3, 4).double(), torch.eye(3).double()[torch.arange(6) % 3]
    K = torch.einsum("ncp,mep->nmce", Phi, Phi)
    C = torch.eye(18).double() - 1 / 18
    centred, y = C @ Phi.flatten(0, 1) @ Phi.flatten(0, 1).T @ C, C @ Y.flatten()
    assert printed_cka(K, Y) == pytest.approx(float(y @ centred @ y / (centred.norm() * (y @ y))), rel=1e-10)


# TG-Fig6.5, TG-SuperNat-id


def test_gradient_descent_on_the_regression_in_closed_form() -> None:
    data = noisy_regression(20, 3, 0.1, torch.Generator().manual_seed(1))
    Phi, y, Phi_test, y_test = data
    errors, noise = train(*data, lr=0.3, scale=None, summed=False, times=[0, 7, 50])
    target = torch.linalg.lstsq(Phi, y[:, None]).solution[:, 0]
    for t, error, size in zip([0, 7, 50], errors, noise, strict=True):
        decay = torch.linalg.matrix_power(torch.eye(4).double() - 0.3 * Phi.T @ Phi / 20, t)
        w = target - decay @ target
        assert error == pytest.approx(float((Phi_test @ w - y_test).square().mean()), rel=1e-9)
        assert size == pytest.approx(float(w[1:].norm()), rel=1e-9, abs=1e-15)


def test_supernat_on_the_regression_by_features_that_are_really_rescaled() -> None:
    data = noisy_regression(20, 3, 0.1, torch.Generator().manual_seed(2), projector="printed")
    Phi, y, Phi_test, y_test = data
    errors, _ = train(*data, lr=0.3, scale="max", summed=False, times=[0, 1, 2, 3, 4])
    f, f_test = torch.zeros(20).double(), torch.zeros(20).double()
    features, features_test = Phi.clone(), Phi_test.clone()
    for error in errors:
        assert error == pytest.approx(float((f_test - y_test).square().mean()), rel=1e-8)
        slope = (f - y) / 20
        step = -0.3 * features.T @ slope
        f, f_test = f + features @ step, f_test + features_test @ step
        U, _, Vt = torch.linalg.svd(features, full_matrices=False)
        kept = (U.T @ slope).abs()
        rescaling = Vt.T @ torch.diag((kept / kept.max()).sqrt()) @ Vt
        features, features_test = features @ rescaling, features_test @ rescaling


def test_a_run_that_diverges_is_a_number() -> None:
    data = noisy_regression(20, 3, 0.1, torch.Generator().manual_seed(3))
    for scale in (None, 1.0):
        errors, noise = train(*data, lr=50.0, scale=scale, summed=True, times=[0, 300])
        assert errors[-1] == 1e6
        assert np.isfinite(noise).all()


def test_supernat_is_natural_gradient_descent() -> None:
    Phi, y, _, _ = noisy_regression(10, 4, 0.1, torch.Generator().manual_seed(4))
    rows = steps_beside_matrices(Phi, y, lr=0.1, steps=4)
    for name in ("natural_error", "function_error", "norm_error"):
        assert max(row[name] for row in rows) < 1e-9
    assert min(row["printed_error"] for row in rows) > 1e-3


def test_the_printed_bound_has_no_minimum() -> None:
    """(B.2.37) without the root: ‖δw‖_Ã Σ λ/ν falls when all ν grow, where √(Σ λ/ν) makes it stay."""
    a, lam, nu = torch.rand(3, 5).double()
    for factor in (1.0, 4.0, 16.0):
        length, total = (a * factor * nu).sum().sqrt(), (lam / (factor * nu)).sum()
        right, printed = float(length * total.sqrt()), float(length * total)
        if factor == 1.0:
            first = right, printed
        assert right == pytest.approx(first[0])
        assert printed == pytest.approx(first[1] / factor**0.5)


def test_which_method_ends_lower() -> None:
    errors = np.zeros((1, 1, 2, 4, 2))
    errors[0, 0, 0, :, 0], errors[0, 0, 0, :, 1] = 0.5, [1.0, 1.0, 1.0, 0.5]
    errors[0, 0, 1, :, 1] = [0.1, 0.95, 2.0, 0.1]
    arrays = Arrays(
        {
            "supernat": {
                "projectors": np.array(["printed"]),
                "lrs": np.array([0.5]),
                "methods": np.array(["gradient descent", "other"]),
                "errors": errors,
            }
        }
    )
    assert supernat_measures.better("other")(arrays) == {"printed, lr 0.5": 0.5}
    assert supernat_measures.overfits(arrays) == {"printed, lr 0.5": 0.75}
    assert supernat_measures.error_ratio("other")(arrays) == pytest.approx({"printed, lr 0.5": 0.575})


# TG-7, TG-MinNorm


def test_summed_tangents_are_exact_for_a_linear_model_and_of_first_order_for_a_network() -> None:
    """f_T − f_0 = Σ_t ⟨δw_t, Φ_t⟩ (7.1.1); with half the step, half is missing."""
    x, y, x_test = torch.randn(8, 3).double(), torch.randn(8, 1).double(), torch.randn(5, 3).double()

    def missing(model: nn.Module, lr: float, steps: int) -> float:
        model = copy.deepcopy(model)
        start, total = model(x_test).detach(), torch.zeros(5, 1).double()
        for _ in range(steps):
            gradient = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
            total += tt.jacobian(model, x_test) @ torch.cat([-lr * g.flatten() for g in gradient])
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradient, strict=True):
                    p -= lr * g
        moved = model(x_test).detach() - start
        return float((total - moved).norm() / moved.norm())

    assert missing(nn.Linear(3, 1).double(), 0.1, 10) < 1e-13
    network = mlp([3, 16, 1], nn.Tanh).double()
    errors = [missing(network, 0.1 / steps, steps) for steps in (4, 8, 16)]
    assert errors[1] / errors[0] == pytest.approx(0.5, abs=0.05)
    assert errors[2] / errors[1] == pytest.approx(0.5, abs=0.03)


def test_the_shortest_interpolator_and_its_covariance() -> None:
    """w* = Σ (uᵀy/√λ) v = Φ⁺y, and for labels of covariance σ²: Σ (σ²/λ) vvᵀ = σ²Φ⁺Φ⁺ᵀ (B.2.30)."""
    model, x, y = mlp([3, 6, 1], nn.Tanh).double(), torch.randn(6, 3).double(), torch.randn(6).double()
    Phi = tt.jacobian(model, x).dense().squeeze(1)
    lam, U = torch.linalg.eigh(tt.ntk(model, x, reduce="trace"))
    V = Phi.T @ U / lam.sqrt()
    inverse = torch.linalg.pinv(Phi)
    torch.testing.assert_close(V @ (U.T @ y / lam.sqrt()), inverse @ y, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(V @ torch.diag(0.25 / lam) @ V.T, 0.25 * inverse @ inverse.T, rtol=1e-7, atol=1e-9)
