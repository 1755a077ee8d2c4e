"""What is made of eigenpairs: extension to new points, tasks, effective rank, trace ratios, centering."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import torchtangent as tt
from torchtangent import spectrum
from torchtangent.kernel import matrix
from torchtangent.kernel.sketch import Features
from torchtangent.operators import DenseOperator, ImplicitOperator, LowRankOperator


def features(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64)


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, z).square() / 8)


def entropy_rank(values: Tensor) -> float:
    """The effective rank in numpy, of positive eigenvalues."""
    mu = values.numpy() / values.numpy().sum()
    return float(np.exp(-(mu * np.log(mu)).sum()))


# --------------------------------------------------------------------------------------------------- new points


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_extension_to_its_own_points_is_the_eigenvectors(dtype: torch.dtype) -> None:
    x = features(60, 5)
    K = gaussian(x, x).to(dtype)
    pairs = spectrum.top(K, 12)
    extended = pairs.extend(K)
    assert extended.dtype == dtype
    assert torch.allclose(extended, pairs.vectors, atol=1e-10 if dtype == torch.float64 else 1e-5)


def test_extension_is_exact_for_a_kernel_of_few_features(tmp_path: Path) -> None:
    """With K = ZZᵀ of rank R, Σ_j λ_j φ_j(x) φ_j(y) over R pairs is the kernel at all points, old and new."""
    old, new = features(40, 6), features(7, 6)
    pairs = spectrum.top(old @ old.T, 6)
    phi = pairs.extend(new @ old.T)
    assert phi.shape == (7, 6)
    assert torch.allclose(phi * pairs.values @ phi.T, new @ new.T, rtol=1e-10)
    assert torch.allclose(phi * pairs.values @ pairs.vectors.T, new @ old.T, rtol=1e-10)
    np.save(tmp_path / "new.npy", (new @ old.T).numpy())
    assert torch.allclose(pairs.extend(np.load(tmp_path / "new.npy", mmap_mode="r")), phi)


def test_extension_to_outputs_of_new_points() -> None:
    J, J_new = features(10 * 3, 50), features(4 * 3, 50)
    K_new = (J_new @ J.T).view(4, 3, 10, 3).transpose(1, 2)
    pairs = spectrum.top(J @ J.T, 5)
    assert torch.allclose(pairs.extend(K_new), J_new @ J.T @ pairs.vectors / pairs.values)


def test_pairs_at_rounding_level_are_not_extended() -> None:
    Z = features(40, 6)
    pairs = spectrum.top(Z @ Z.T, 8)
    with pytest.raises(ValueError, match=r"Eigenvalue 6 of 8 is .*zero to rounding.*Ask top for k=6"):
        pairs.extend(Z @ Z.T)
    with pytest.raises(ValueError, match=r"\(40, 39\).*40 entries"):
        pairs.extend(torch.ones(40, 39))


# -------------------------------------------------------------------------------------------------------- tasks


def test_tasks_are_signs_of_eigenvectors() -> None:
    vectors = torch.tensor([[0.5, -0.1], [0.0, 0.3], [-0.5, -0.0], [0.7, 0.9]])
    pairs = spectrum.Eigenpairs(torch.tensor([2.0, 1.0]), vectors, torch.zeros(2), True)
    labels = spectrum.eigentasks(pairs)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [[1, 0], [0, 1], [0, 0], [1, 1]]
    assert torch.equal(labels, ((vectors.sign() + 1) // 2).long())  # as the study defines them, zeros included
    train, rest = spectrum.eigentasks(pairs, train=3)
    assert torch.equal(train, labels[:3])
    assert torch.equal(rest, labels[3:])
    for wrong in (0, 4, -1):
        with pytest.raises(ValueError, match=f"of the 4 there are, got {wrong}"):
            spectrum.eigentasks(pairs, train=wrong)


def test_the_leading_task_of_a_positive_kernel_is_constant() -> None:
    x = features(30, 4)
    labels = spectrum.eigentasks(spectrum.top(gaussian(x, x), 5))
    assert labels[:, 0].min() == 1
    assert (labels[:, 1:].float().mean(0) < 1).all()


# ----------------------------------------------------------------------------------------- all eigenvalues at once


@pytest.mark.parametrize("n", [1, 7, 50])
def test_effective_rank_of_known_spectra(n: int) -> None:
    """N for the identity, 1 for rank one; 2^H for powers of a half; the extremes of 1 ≤ erank ≤ rank."""
    assert spectrum.effective_rank(torch.eye(n, dtype=torch.float64)).item() == pytest.approx(n, rel=1e-12)
    v = features(n, 1)
    assert spectrum.effective_rank(v @ v.T).item() == pytest.approx(1, rel=1e-12)
    halves = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    assert spectrum.effective_rank(halves).item() == pytest.approx(2**1.75, rel=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 20, 40])
def test_effective_rank_lies_between_one_and_the_rank(rank: int) -> None:
    Z = features(40, rank) * torch.rand(rank, dtype=torch.float64)
    K = Z @ Z.T
    expected = entropy_rank(torch.linalg.eigvalsh(K)[-rank:])
    found = spectrum.effective_rank(K).item()
    assert found == pytest.approx(expected, rel=1e-10)
    assert 1 - 1e-12 <= found <= rank + 1e-12


def test_effective_rank_does_not_see_scale_rotation_or_order() -> None:
    Z = features(30, 10)
    K = Z @ Z.T
    expected = spectrum.effective_rank(K)
    Q = torch.linalg.qr(features(30, 30)).Q
    order = torch.randperm(30)
    for same in (1e6 * K, 1e-9 * K, Q @ K @ Q.T, K[order][:, order], Z.T @ Z):
        assert torch.allclose(spectrum.effective_rank(same), expected, rtol=1e-10)


def test_measures_of_every_kind_of_kernel(tmp_path: Path) -> None:
    """A matrix, a file, an operator by factor or products, features, blocks of outputs, eigenvalues."""
    Z = features(12 * 2, 5)
    K = Z @ Z.T
    np.save(tmp_path / "K.npy", K.numpy())
    kinds = {
        "tensor": K,
        "file": np.load(tmp_path / "K.npy", mmap_mode="r"),
        "factor": LowRankOperator(Z.T),
        "products": ImplicitOperator(lambda V: K @ V, 24, torch.float64, torch.device("cpu")),
        "features": Features(Z, 0.0, 0.0, lambda x: x),
        "outputs": K.view(12, 2, 12, 2).transpose(1, 2),
        "values": torch.linalg.eigvalsh(K),
        "array of values": torch.linalg.eigvalsh(K).numpy(),
    }
    values = torch.linalg.eigvalsh(K).flip(0)
    expected = values[:4].cumsum(0) / values.sum()
    rank = entropy_rank(values[:5])
    for name, kind in kinds.items():
        assert spectrum.effective_rank(kind).item() == pytest.approx(rank, rel=1e-10), name
        assert torch.allclose(spectrum.trace_ratio(kind, [1, 2, 3, 4]), expected, rtol=1e-10), name
        single = spectrum.trace_ratio(kind, 3)
        assert single.shape == ()
        assert torch.allclose(single, expected[2], rtol=1e-10), name
    for measure in (spectrum.effective_rank(K.float()), spectrum.trace_ratio(K.float(), 1)):
        assert measure.dtype == torch.float32
    assert spectrum.effective_rank(K.float()).item() == pytest.approx(rank, rel=1e-5)


def test_trace_ratio_of_a_large_kernel_needs_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the size at which matrices are decomposed whole, of K only products and the diagonal are asked for."""
    Z = features(2100, 30) / torch.arange(1, 31, dtype=torch.float64)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda K: pytest.fail("all eigenvalues"))
    found = spectrum.trace_ratio(Z @ Z.T, (1, 5, 20))
    expected = torch.linalg.svdvals(Z).square()
    assert torch.allclose(found, expected.cumsum(0)[[0, 4, 19]] / expected.sum(), rtol=1e-8)


def test_all_eigenvalues_have_the_whole_trace() -> None:
    K = gaussian(x := features(25, 3), x)
    assert spectrum.trace_ratio(K, 25).item() == pytest.approx(1, rel=1e-12)
    assert (spectrum.trace_ratio(K, list(range(1, 26))).diff() > -1e-12).all()


def test_bad_kernels_and_counts_are_named() -> None:
    K = torch.eye(5, dtype=torch.float64)
    for measured in (K, torch.ones(5)):
        for k in (0, 6, [1, 6]):
            with pytest.raises(ValueError, match="k must be between 1 and N = 5"):
                spectrum.trace_ratio(measured, k)
    for measure in (spectrum.effective_rank, lambda K: spectrum.trace_ratio(K, 1)):
        with pytest.raises(ValueError, match=r"zero|nothing to divide"):
            measure(0 * K)
        with pytest.raises(ValueError, match="finite floating-point"):
            measure(torch.tensor([1.0, float("nan")]))
        with pytest.raises(ValueError, match="NaN or infinity"):
            measure(K / 0)
        with pytest.raises(ValueError, match=r"square matrix.*\(4, 5\)"):
            measure(K[:4])
        with pytest.raises(ValueError, match="not symmetric"):
            measure(K + torch.ones(5, 5).triu(1))
    with pytest.raises(ValueError, match=r"from -5.0e-01 to 1.0e\+00: it is no kernel"):
        spectrum.effective_rank(torch.tensor([1.0, -0.5, 0.2]))
    # The noise of a kernel in low precision is no error.
    assert spectrum.effective_rank(torch.tensor([1.0, 1.0, -1e-3])).item() == pytest.approx(2)


# ---------------------------------------------------------------------------------------------------- centering


@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_centering_is_that_of_the_features(outputs: int | None) -> None:
    if outputs is None:
        J = features(11, 40)
        K, centred = J @ J.T, J - J.mean(0)
        expected = centred @ centred.T
    else:
        J = features(11 * outputs, 40).view(11, outputs, 40)
        K = torch.einsum("ncp,mep->nmce", J, J)
        expected = torch.einsum("ncp,mep->nmce", J - J.mean(0), J - J.mean(0))
    before = K.clone()
    found = spectrum.center(K)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(K, before)
    assert torch.allclose(spectrum.center(found), found, rtol=1e-10, atol=1e-12)
    assert spectrum.center(K.half()).dtype == torch.float32


def test_a_kernel_centred_per_class_has_a_zero_eigenvalue_for_each() -> None:
    J = features(9 * 4, 200).view(9, 4, 200)
    K = tt.flatten(spectrum.center(torch.einsum("ncp,mep->nmce", J, J)))
    values = torch.linalg.eigvalsh(K)
    assert int((values.abs() < 1e-12 * values.max()).sum()) == 4
    assert spectrum.effective_rank(K).item() == pytest.approx(entropy_rank(values[4:]), rel=1e-10)


def test_what_cannot_be_centred_is_named() -> None:
    for shape in ((3, 4), (3, 4, 2, 2), (3,), (3, 3, 2)):
        with pytest.raises(ValueError, match="one set of points, got"):
            spectrum.center(torch.ones(shape))
    for bad in (torch.nan, torch.inf, -torch.inf):
        for shape in ((3, 3), (3, 3, 2, 2)):
            K = torch.ones(shape)
            K[1, 2] = bad
            with pytest.raises(ValueError, match=r"^K has NaN or infinity"):
                spectrum.center(K)


@pytest.mark.parametrize("rank", [3, 40])
def test_an_operator_has_the_effective_rank_of_its_matrix(rank: int) -> None:
    """Eigenvalues in float32 are off by more than the rounding that is cut away."""
    rows = torch.randn(rank, 200)
    K = rows.T @ rows
    wanted = spectrum.effective_rank(K)
    for M in (DenseOperator(K), LowRankOperator(rows)):
        assert spectrum.effective_rank(M) == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_judged_by_its_own_rounding(dtype: torch.dtype) -> None:
    """Eigenvalues of the rounding of K are no modes of it."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (400, 3))
    y = torch.randn(400, generator=generator, dtype=torch.float64)
    K, K_test = A @ A.T, B @ A.T
    exact = tt.predict.flow(K, y, math.inf, K_test)
    found = tt.predict.flow(K.to(dtype), y, math.inf, K_test.to(dtype)).double()
    assert (found - exact).abs().max() < 0.5 * exact.abs().max()
    assert tt.spectrum.effective_rank(K.to(dtype)) <= 5
    with pytest.warns(UserWarning, match=f"below the rounding of {dtype}"):
        assert tt.predict.time_to(K.to(dtype), y, 0.5) == math.inf


def test_residuals_are_those_of_what_is_returned() -> None:
    torch.manual_seed(0)
    A = torch.randn(300, 50)
    K = A @ A.T
    pairs = tt.spectrum.top(K, 5)
    wide = pairs.vectors.double()
    true = torch.linalg.vector_norm(K.double() @ wide - wide * pairs.values.double(), dim=0)
    torch.testing.assert_close(pairs.residuals.double(), true, rtol=1e-3, atol=0)


def test_asymmetry_that_is_rounding_is_no_obstacle() -> None:
    torch.manual_seed(0)
    x, W, g = torch.randn(200, 400) / 20, torch.randn(400, 400) / 20, torch.randn(200)
    K = x @ (W @ W.T) @ x.T
    assert not torch.equal(K, K.T)
    exact = tt.alignment.norm(((K + K.T) / 2).double(), g.double())
    torch.testing.assert_close(tt.alignment.norm(K, g).double(), exact, rtol=1e-3, atol=0)
    E = torch.randn(200, 200)
    E = (E - E.T) * (K.norm() * 1e-5 / (E - E.T).norm())
    found = tt.predict.ridge((K + K.T) / 2 + E, g, ridge=0.1)
    torch.testing.assert_close(found, tt.predict.ridge((K + K.T) / 2, g, ridge=0.1), rtol=1e-2, atol=1e-3)


def test_arrays_are_centred() -> None:
    K = torch.eye(4)
    torch.testing.assert_close(tt.spectrum.center(K.numpy()), tt.spectrum.center(K))


@pytest.mark.parametrize("shape", [(6, 6), (3, 3, 2, 2)])
@pytest.mark.parametrize("block", [2, 256])
def test_centering_has_derivatives(shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """HKH is linear in K: the slope of ⟨G, HKH⟩ is HGH, also at a symmetric K and for a G that is not."""
    monkeypatch.setattr(spectrum.measures, "_TILE", block)
    monkeypatch.setattr(matrix, "_WIDE_BYTES", {"cpu": block * 8 * shape[0] * shape[-1]})
    K, G = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    H = torch.eye(shape[0], dtype=torch.float64) - 1 / shape[0]
    expected = torch.einsum("ij,jk...,kl->il...", H, G, H)
    for point in (K, K + (K.T if K.dim() == 2 else K.permute(1, 0, 3, 2))):
        leaf = point.clone().requires_grad_()
        found = spectrum.center(leaf)
        assert torch.equal(found.detach(), spectrum.center(point))
        torch.testing.assert_close(torch.autograd.grad((G * found).sum(), leaf)[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 6), (3, 3, 2, 2)])
def test_trace_ratios_have_derivatives(shape: tuple[int, ...]) -> None:
    rows = features(6, 8)
    K = (rows @ rows.T).view(shape) if len(shape) == 2 else (rows @ rows.T).view(3, 2, 3, 2).permute(0, 2, 1, 3)
    leaf = K.clone().requires_grad_()
    shares = spectrum.trace_ratio(leaf, [1, 3])
    torch.testing.assert_close(shares.detach(), spectrum.trace_ratio(K, [1, 3]))
    (found,) = torch.autograd.grad(shares.sum(), leaf)
    values = torch.linalg.eigvalsh(leaf if leaf.dim() == 2 else tt.flatten(leaf)).flip(0)
    (expected,) = torch.autograd.grad((values[:1].sum() + values[:3].sum()) / values.sum(), leaf)
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_what_is_no_matrix_of_numbers_is_not_centred() -> None:
    rows = features(7, 3)
    for K in (Features(rows, 0.0, 0.0, extend=lambda x: x), LowRankOperator(rows.T)):
        with pytest.raises(TypeError, match=f"center takes a kernel as a tensor or an array, got {type(K).__name__}"):
            spectrum.center(K)
    with pytest.raises(ValueError, match=r"complex64: a kernel has real numbers"):
        spectrum.center(torch.ones(3, 3, dtype=torch.complex64))


def test_eigenvalues_in_any_order_of_memory() -> None:
    values = np.linalg.eigvalsh((J := features(9, 5).numpy()).T @ J)
    assert spectrum.effective_rank(values[::-1]).item() == pytest.approx(entropy_rank(torch.tensor(values)), rel=1e-10)
    shares = spectrum.trace_ratio(values[::-1], [1, 3])
    assert shares.tolist() == pytest.approx([values[-1:].sum() / values.sum(), values[-3:].sum() / values.sum()])
    leaf = torch.tensor(values, requires_grad=True)
    slopes = torch.autograd.grad(spectrum.effective_rank(leaf), leaf)[0]
    assert float(slopes @ leaf.detach()) == pytest.approx(0, abs=1e-12)  # the scale does not matter


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_k_is_whole() -> None:
    K = torch.eye(4)
    for k in (2.0, []):
        with pytest.raises(ValueError, match="k must be a whole number, or several"):
            tt.spectrum.trace_ratio(K, k)
