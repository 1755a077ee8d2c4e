"""Theorems about Fisher matrices, as tests: what must hold whatever the implementation."""

from __future__ import annotations

import itertools

import oracle
import pytest
import torch
from cases import ZOO, Case, every_case
from oracle import assert_close
from torch import Tensor, nn

import torchtangent as tt

ONE_LOCATION = ["mlp", "deep-linear", "linear", "frozen-layer", "bottleneck"]


# ------------------------------------------------------------------------------------- KFAC is exact


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("name", ONE_LOCATION)
def test_kfac_is_exact_for_one_sample(name: str, likelihood: str) -> None:
    """One sample, one location: aaᵀ ⊗ Σ_c ddᵀ is the block itself."""
    model, x, _ = ZOO[name].build()
    x = x[:1]
    K = tt.fisher(model, (x, None), tt.KFAC, likelihood=likelihood).dense()
    F = oracle.block_diagonal(oracle.fisher(model, [(x, None)], likelihood), model)
    assert (K - F).norm() <= 1e-10 * F.norm() + 1e-16


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_kfac_is_exact_for_deep_linear_nets_with_squared_loss(samples: int) -> None:
    """There d does not depend on the sample, so the mean of products is the product of means."""
    model, _, _ = ZOO["deep-linear"].build()
    x = torch.randn(samples, 4, dtype=torch.float64)
    K = tt.fisher(model, (x, None), tt.KFAC, likelihood="gaussian").dense()
    F = oracle.block_diagonal(oracle.fisher(model, [(x, None)], "gaussian"), model)
    assert_close(K, F)


def test_kfac_is_not_exact_in_general() -> None:
    """The two tests above can fail: with a nonlinearity and several samples KFAC is an approximation."""
    model, x, _ = ZOO["mlp"].build()
    K = tt.fisher(model, (x, None), tt.KFAC, likelihood="gaussian").dense()
    F = oracle.block_diagonal(oracle.fisher(model, [(x, None)], "gaussian"), model)
    assert oracle.relative_error(K, F) > 1e-3


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_expand_and_reduce_agree_at_one_location(sharing: str) -> None:
    model, x, _ = ZOO["mlp"].build()
    K = tt.fisher(model, (x, None), tt.KFAC(sharing=sharing)).dense()
    assert_close(K, tt.fisher(model, (x, None), tt.KFAC).dense())


def test_reduce_is_exact_for_a_deep_linear_net_with_averaged_locations() -> None:
    """KFAC-reduce is exact where the network averages over locations (Eschenhagen et al., 2023)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64)
    output = lambda y: y.mean(1)  # noqa: E731
    K = tt.fisher(model, (x, None), tt.KFAC(sharing="reduce"), likelihood="gaussian", output=output).dense()
    F = oracle.fisher(model, [(x, None)], "gaussian", output=output)
    assert_close(K, oracle.block_diagonal(F, model))


def test_expand_is_exact_for_a_deep_linear_net_with_a_loss_per_location() -> None:
    """KFAC-expand is exact where every location has its own loss term (the same paper)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64)
    K = tt.fisher(model, (x, None), tt.KFAC(sharing="expand"), likelihood="gaussian").dense()
    assert_close(K, oracle.block_diagonal(oracle.fisher(model, [(x, None)], "gaussian"), model))


# ----------------------------------------------------------------------------------- EKFAC, traces


@every_case
@pytest.mark.usefixtures("quiet")
def test_ekfac_on_every_model(case: Case) -> None:
    """EKFAC is never worse than KFAC, whose eigenbasis it shares, and keeps the trace."""
    model, x, output = case.build()
    f, J = oracle.outputs(model, x, output), oracle.jacobian_of(case)
    likelihood = "categorical" if f.shape[-1] > 1 else "bernoulli"
    F = oracle.exact_fisher(f, J, likelihood)
    kfac, ekfac = (
        tt.fisher(model, (x, None), representation, likelihood=likelihood, output=output)
        for representation in (tt.KFAC, tt.EKFAC)
    )
    assert abs(float(ekfac.trace()) - float(F.trace())) <= 1e-10 * F.trace()
    assert (F - ekfac.dense()).norm() <= (F - kfac.dense()).norm() + 1e-12 * F.norm()


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_ekfac_keeps_the_trace_with_either_sharing(sharing: str, kind: str) -> None:
    """Whatever the basis, its diagonal has the trace."""
    model, x, _ = ZOO["lenet"].build()
    y = torch.randint(3, (len(x),))
    E = tt.fisher(model, (x, y), tt.EKFAC(sharing=sharing), kind=kind)
    trace = oracle.fisher(model, [(x, y)], kind=kind).trace()
    assert abs(float(E.trace()) - float(trace)) <= 1e-10 * trace


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu"])
def test_positive_semidefinite(name: str) -> None:
    model, x, _ = ZOO[name].build()
    for representation in (tt.Dense, tt.Diagonal, tt.BlockDiagonal, tt.KFAC, tt.EKFAC):
        M = tt.fisher(model, (x, None), representation).dense()
        assert_close(M, M.T)
        assert torch.linalg.eigvalsh(M).min() >= -1e-12 * M.norm(), representation


# --------------------------------------------------------------------------------- implicit and dense


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("name", ["mlp", "sequence-outputs"])
def test_implicit_draws_what_dense_draws(name: str, likelihood: str) -> None:
    """With one seed, at every product, whatever the targets; without draws, both are held against the formulas."""
    model, x, _ = ZOO[name].build()
    f = oracle.outputs(model, x)
    y = {
        "categorical": torch.randint(f.shape[-1], f.shape[:-1]),
        "bernoulli": torch.randint(2, f.shape).double(),
        "gaussian": torch.randn_like(f),
    }[likelihood]
    loader = [(x[:1], y[:1]), (x[1:], y[1:])]
    options = {"likelihood": likelihood, "kind": "sampled", "samples": 2, "seed": 1}
    dense = tt.fisher(model, loader, tt.Dense, **options)
    implicit = tt.fisher(model, loader, tt.Implicit, **options)
    V = torch.randn(dense.size, 3, dtype=torch.float64)
    for _ in range(5):  # from the fourth product on, the data is kept as a linear map
        assert_close(implicit @ V, dense @ V)
    assert_close(implicit @ V[:, 0], dense @ V[:, 0])


# ------------------------------------------------------------------------------- Fisher and kernel


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu", "sequence-outputs"])
def test_fisher_and_kernel_share_their_spectrum(name: str) -> None:
    """JᵀJ / N and JJᵀ / N have the same non-zero eigenvalues (gaussian: Λ = I)."""
    model, x, _ = ZOO[name].build()
    J = tt.jacobian(model, x).dense()
    J = J.flatten(0, -2)
    F = tt.fisher(model, (x, None), tt.Dense, likelihood="gaussian").dense()
    k = min(J.shape)
    kernel = torch.linalg.eigvalsh(J @ J.T / len(x)).flip(0)[:k]
    fisher = torch.linalg.eigvalsh(F).flip(0)
    assert (fisher[:k] - kernel).norm() <= 1e-10 * kernel.norm()
    assert fisher[k:].norm() <= 1e-10 * kernel.norm()


def test_fisher_is_invariant_under_relabelling_the_classes() -> None:
    model, x, _ = ZOO["mlp"].build()
    before = tt.fisher(model, (x, None), tt.Dense).dense()
    permuted = tt.fisher(model, (x, None), tt.Dense, output=lambda y: y[:, [2, 0, 1]]).dense()
    assert_close(permuted, before)


def test_categorical_fisher_ignores_a_common_shift_of_the_logits() -> None:
    """Adding one number to all logits of a sample changes no probability, so F vanishes along it."""
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x, None), tt.Dense).dense()
    shift = torch.cat([torch.full_like(p, float(n == "3.bias")).flatten() for n, p in model.named_parameters()])
    assert (F @ shift).norm() <= 1e-12 * F.norm()


# --------------------------------------------------------------------------------- sampled converges


def moments(f: Tensor, Jv: Tensor, likelihood: str) -> tuple[Tensor, Tensor]:
    """Mean and variance of the sampled vᵀFv with one draw, exactly.

    With y ~ p(·|x_n), q = 1/N Σ_n r_n² and r_n = Σ_{t,c} ∇log p(y[t])[c] (J v)[n,t,c]. The discrete
    likelihoods are enumerated; for the gaussian r_n is normal, so that r_n² has variance 2 (E r_n²)².
    """
    means, variances = [], []
    for fn, u in zip(f.flatten(1), Jv.flatten(1), strict=True):
        if likelihood == "gaussian":
            mean = u @ u
            variance = 2 * mean**2
        else:
            if likelihood == "categorical":
                p = fn.softmax(-1)
                outcomes = torch.eye(len(fn), dtype=f.dtype)
                weights = p
            else:
                p = fn.sigmoid()
                outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(fn))), dtype=f.dtype)
                weights = (p * outcomes + (1 - p) * (1 - outcomes)).prod(-1)
            r2 = ((outcomes - p) @ u) ** 2
            mean = weights @ r2
            variance = weights @ r2**2 - mean**2
        means.append(mean)
        variances.append(variance)
    return torch.stack(means).mean(), torch.stack(variances).sum() / len(f) ** 2


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_sampled_converges_at_one_over_root_s(likelihood: str) -> None:
    """The error of vᵀFv has the standard deviation σ/√S, with σ known exactly, at every S.

    Σ z² over 40 seeds is about χ² with 40 degrees of freedom: mean 40, standard deviation 9. The bounds are
    nearly four of them, and the seeds are fixed. Draws that did not help, or helped as 1/S, would change the
    sum sixteenfold and more.
    """
    model, x, _ = ZOO["mlp"].build()
    f, J = oracle.outputs(model, x), oracle.jacobian(model, x)
    v = torch.randn(J.shape[-1], dtype=torch.float64)
    mean, variance = moments(f, J @ v, likelihood)
    assert_close(mean, v @ oracle.fisher(model, [(x, None)], likelihood) @ v)
    options = {"likelihood": likelihood, "kind": "sampled"}
    for samples in (16, 128):
        z = []
        for seed in range(40):
            F = tt.fisher(model, (x, None), tt.Dense, samples=samples, seed=seed, **options)
            z.append((F.quad(v) - mean) / (variance / samples).sqrt())
        z = torch.as_tensor(z)
        assert abs(z.mean()) * 40**0.5 < 4.5, f"biased at {samples} draws"
        assert 8 < z.square().sum() < 75, f"wrong spread at {samples} draws"


@pytest.mark.parametrize("representation", ["Diagonal", "BlockDiagonal", "KFAC"])
def test_sampled_representations_are_unbiased(representation: str) -> None:
    """With many draws the matrix is near the exact one, ten times nearer than with a hundredth of them.

    (KFAC too: its A is exact, and B is linear in what is drawn.)
    """
    model, x, _ = ZOO["mlp"].build()
    chosen = getattr(tt, representation)
    exact = tt.fisher(model, (x, None), chosen).dense()

    def error(samples: int) -> float:
        runs = [tt.fisher(model, (x, None), chosen, kind="sampled", samples=samples, seed=s).dense() for s in range(20)]
        return (sum((run - exact).square().sum() for run in runs) / 20) ** 0.5 / exact.norm()

    coarse, fine = error(2), error(200)
    # Each mean square is over 20 seeds: its relative spread is about √(2/20) at most, so the ratio 10 is
    # between 6 and 16 well beyond four standard deviations of its logarithm.
    assert 6 < coarse / fine < 16


def test_sampled_sequence_terms_are_unbiased() -> None:
    """(N, T, C): the draws of the terms are independent, so the mean is the sum of the terms' matrices."""
    model, x, _ = ZOO["sequence-outputs"].build()
    exact = oracle.fisher(model, [(x, None)])
    runs = torch.stack(
        [tt.fisher(model, (x, None), tt.Dense, kind="sampled", samples=200, seed=s).dense() for s in range(20)]
    )
    spread = (runs - runs.mean(0)).square().sum((1, 2)).mean().sqrt()
    assert (runs.mean(0) - exact).norm() < 3 * spread / 20**0.5
    assert spread < 0.3 * exact.norm()
