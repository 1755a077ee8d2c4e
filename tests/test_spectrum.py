"""spectrum.top against matrices of known spectrum, and what it says about inputs that have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import torchtangent as tt
from torchtangent import spectrum
from torchtangent.kernel import matrix
from torchtangent.operators import ConvergenceWarning, ImplicitOperator, LowRankOperator
from torchtangent.spectrum import leading

N, K_TOP = 1060, 40  # five times the room that the iterations have for their vectors, so that they must restart
EPS = {torch.float64: 2.2e-16, torch.float32: 1.2e-7}


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of N rows are above the size at which they are decomposed whole, which is 2048 as is documented."""
    assert leading.DENSE_LIMIT == 2048
    monkeypatch.setattr(leading, "DENSE_LIMIT", N - 1)


def rotated(values: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix with these eigenvalues and its eigenvectors, in float64: a diagonal one, reflected in eight directions.

    With orthonormal directions V the reflection is Q = I − 2VVᵀ, and Q diag(values) Q differs from the diagonal
    matrix by one of low rank, so that no large product is needed.
    """
    generator = torch.Generator().manual_seed(0)
    V = torch.linalg.qr(torch.randn(len(values), 8, generator=generator, dtype=torch.float64)).Q
    DV = values[:, None] * V
    change = 2 * V @ (DV - V @ (V.T @ DV)).T
    return torch.diag(values) - change - change.T, torch.eye(len(values), dtype=torch.float64) - 2 * V @ V.T


def line(start: float, end: float, steps: int) -> Tensor:
    return torch.linspace(start, end, steps, dtype=torch.float64)


def padded(*leading: float, tail: Tensor | None = None) -> Tensor:
    tail = line(0, 0, N) if tail is None else tail
    return torch.cat([torch.tensor(leading, dtype=torch.float64), tail])[:N]


INDEX = torch.arange(1, N + 1, dtype=torch.float64)
SPECTRA = {
    "power": 1 / INDEX,
    "exponential": torch.exp(-INDEX / 20),
    "outlier": padded(1e3, tail=1 / INDEX),  # the other eigenvalues are as many times smaller
    "flat": line(1, 0, N),
    "repeated more often than a block is wide": padded(*[4.0] * 30, tail=line(3.99, 0, N)),
    "one eigenvalue": torch.ones(N, dtype=torch.float64),
    "rank 5": padded(5, 4, 3, 2, 1),
    "zero": padded(),
    "indefinite": padded(3, 2, 2, tail=line(1, -9, N)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", SPECTRA)
def test_known_spectra(name: str, dtype: torch.dtype) -> None:
    values = SPECTRA[name].sort(descending=True).values
    K = rotated(values)[0].to(dtype)
    found = spectrum.top(K, K_TOP, tol=1e-5)
    lam, phi = (t.double() for t in found)
    assert found.converged
    assert found.values.dtype == found.vectors.dtype == dtype
    assert (lam.diff() <= 0).all()
    # The error of a Rayleigh quotient is of second order in the residual, down to rounding.
    assert ((lam - values[:K_TOP]).abs() <= 1e-8 * values[:K_TOP].abs() + 40 * EPS[dtype] * values.abs().max()).all()
    assert (phi.T @ phi - torch.eye(K_TOP)).abs().max() <= 100 * EPS[dtype]
    true = (K.double() @ phi - phi * lam).norm(dim=0)
    assert (true <= 2e-5 * lam.abs() + 60 * EPS[dtype] * values.abs().max()).all()
    assert ((found.residuals - true).abs() <= 0.1 * true + 60 * EPS[dtype] * values.abs().max()).all()


def test_eigenvectors_of_separate_eigenvalues() -> None:
    K, Q = rotated(1 / INDEX)
    phi = spectrum.top(K, K_TOP, tol=1e-9).vectors
    signs = torch.sign((Q[:, :K_TOP] * phi).sum(0))
    assert (phi - signs * Q[:, :K_TOP]).abs().max() <= 1e-6
    assert (phi.gather(0, phi.abs().argmax(0, keepdim=True)) > 0).all()


def test_against_the_whole_decomposition() -> None:
    """A kernel that was not made from its eigenvalues, of more than 2048 rows."""
    x = torch.randn(2100, 8, dtype=torch.float64)
    K = torch.exp(-torch.cdist(x, x).square() / 8)
    expected = torch.linalg.eigvalsh(K).flip(0)[:100]
    assert ((spectrum.top(K, 100).values - expected).abs() <= 1e-8 * expected).all()


def test_the_tail_is_right_beside_a_large_eigenvalue() -> None:
    """Residuals are held against each pair's own eigenvalue: against the largest, any would do."""
    values = padded(1e7, tail=line(1, 0, N))
    lam = spectrum.top(rotated(values)[0], K_TOP).values
    assert ((lam - values[:K_TOP]).abs() <= 1e-6 * values[:K_TOP]).all()


def test_small_matrices_are_decomposed_whole() -> None:
    K, _ = rotated(line(5, -1, 30))
    found = spectrum.top(K, 30)
    assert torch.allclose(found.values, line(5, -1, 30))
    assert torch.allclose(found.vectors * found.values @ found.vectors.T, K)
    assert found.residuals.max() < 1e-13
    assert found.converged
    assert torch.equal(spectrum.top(K, 4).vectors, found.vectors[:, :4])
    single = spectrum.top(K.float(), 3)
    assert single.values.dtype == torch.float32
    assert torch.allclose(single.values.double(), found.values[:3])


def test_more_than_a_quarter_of_a_large_spectrum() -> None:
    values = 1 / INDEX
    lam = spectrum.top(rotated(values)[0], N // 3).values
    assert torch.allclose(lam, values[: N // 3], rtol=1e-9)


def test_a_seed_fixes_the_answer() -> None:
    K = rotated(1 / INDEX)[0].float()
    first, again, other = spectrum.top(K, 10), spectrum.top(K, 10), spectrum.top(K, 10, seed=1)
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.vectors, other.vectors)
    assert torch.allclose(first.values, other.values, rtol=1e-5)


def test_a_kernel_on_disk_is_read_in_blocks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    K = rotated(1 / INDEX)[0].float()
    np.save(tmp_path / "K.npy", K.numpy())
    disk = np.load(tmp_path / "K.npy", mmap_mode="r")
    read: list[int] = []
    convert = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda a: read.append(len(a)) or convert(a))
    monkeypatch.setattr(matrix, "_BLOCK_BYTES", 300 * 4 * N)
    found = spectrum.top(disk, K_TOP)
    assert max(read) == 300
    assert found.values.dtype == torch.float32
    assert torch.allclose(found.values, (1 / INDEX)[:K_TOP].float(), rtol=1e-5)
    small = np.array(disk[:50, :50])
    assert torch.allclose(spectrum.top(small, 3).values, torch.linalg.eigvalsh(K[:50, :50]).flip(0)[:3], rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    K = rotated(1 / INDEX)[0].to(dtype)
    found = spectrum.top(K, 10)
    expected = spectrum.top(K.float(), 10)
    assert found.values.dtype == torch.float32
    assert torch.allclose(found.values, expected.values, rtol=1e-5)


class Scaled:
    """Something that only multiplies."""

    shape = (N, N)
    dtype = torch.float64

    def __matmul__(self, V: Tensor) -> Tensor:
        return V / INDEX[:, None]


def test_products_are_enough() -> None:
    expected = (1 / INDEX)[:K_TOP]
    implicit = ImplicitOperator(lambda V: V / INDEX[:, None], N, torch.float64, torch.device("cpu"))
    for K in (Scaled(), implicit):
        assert torch.allclose(spectrum.top(K, K_TOP).values, expected, rtol=1e-9)
    rows = torch.randn(6, N, dtype=torch.float64)
    found = spectrum.top(LowRankOperator(rows), 8).values
    assert torch.allclose(found[:6], torch.linalg.svdvals(rows).square(), rtol=1e-9)
    assert found[6:].abs().max() <= 1e-10 * found[0]
    few = LowRankOperator(rows[:, :20])
    assert torch.allclose(spectrum.top(few, 6).values, torch.linalg.svdvals(rows[:, :20]).square(), rtol=1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_kernel_with_outputs_has_a_row_for_each(outputs: int, tmp_path: Path) -> None:
    J = torch.randn(7, outputs, 50, dtype=torch.float64)
    K = torch.einsum("ncp,mep->nmce", J, J)
    rows = J.reshape(7 * outputs, 50)  # row n·C + c
    values, vectors = np.linalg.eigh((rows @ rows.T).numpy())
    np.save(tmp_path / "K.npy", K.numpy())
    for kernel in (K, K.numpy(), np.load(tmp_path / "K.npy", mmap_mode="r")):
        lam, phi = spectrum.top(kernel, 4)
        assert np.allclose(lam, values[::-1][:4], rtol=1e-10)
        assert np.allclose(np.abs((phi.numpy() * vectors[:, ::-1][:, :4]).sum(0)), 1, rtol=1e-10)


def test_what_does_not_converge_is_said() -> None:
    K, _ = rotated(line(1, 0.9, N))
    with pytest.warns(ConvergenceWarning, match=r"of the 40 leading eigenpairs.*in 2 restarts"):
        found = spectrum.top(K, K_TOP, max_restarts=2)
    assert not found.converged
    true = (K @ found.vectors - found.vectors * found.values).norm(dim=0)
    assert torch.allclose(found.residuals, true)
    assert true.max() > 1e-4


@pytest.mark.parametrize("n", [20, N])
def test_bad_matrices_are_refused(n: int) -> None:
    K = torch.diag(torch.rand(n, dtype=torch.float64))
    for k in (0, -1, n + 1):
        with pytest.raises(ValueError, match=f"between 1 and N = {n}"):
            spectrum.top(K, k)
    with pytest.raises(ValueError, match=r"square matrix.*\(5, 4\)"):
        spectrum.top(torch.ones(5, 4), 1)
    with pytest.raises(ValueError, match=r"\(N, N, C, C\) for C outputs, got shape \(5, 4, 2, 2\)"):
        spectrum.top(torch.ones(5, 4, 2, 2), 1)
    with pytest.raises(ValueError, match=r"\(M, N, C, C\), got \(5, 5, 2, 3\)"):
        spectrum.top(torch.ones(5, 5, 2, 3), 1)
    with pytest.raises(ValueError, match="floating-point"):
        spectrum.top(K.long(), 1)
    holed = K.clone()
    holed[n // 2, n // 3] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity"):
        spectrum.top(holed, 2)
    skew = K.clone()
    skew[: n // 2, n // 2 :] = 0.1
    with pytest.raises(ValueError, match="not symmetric"):
        spectrum.top(skew, 2)
    with pytest.raises(ValueError, match="cannot be moved"):
        spectrum.top(Scaled(), 2, device="meta")


def test_a_product_may_return_what_it_was_given() -> None:
    identity = ImplicitOperator(lambda V: V, 4000, torch.float64, torch.device("cpu"))
    pairs = spectrum.top(identity, 2)
    torch.testing.assert_close(pairs.values, torch.ones(2, dtype=torch.float64))
    assert repr(pairs).startswith("Eigenpairs(2 of size 4000, values 1 … 1, residuals ≤ ")


@pytest.mark.parametrize("scale", [1e-34, 1e-24, 1e25])
def test_leading_pairs_of_any_scale(scale: float) -> None:
    """Squares of such numbers underflow, or overflow, in float32."""
    A = torch.randn(2200, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = A @ A.T
    found = tt.spectrum.top((K * scale).float(), k=3)
    expected = torch.linalg.eigvalsh(A.T @ A)[-3:].flip(0)
    torch.testing.assert_close(found.values.double() / scale, expected, rtol=1e-5, atol=0.0)
    assert bool(((found.residuals > 0) & (found.residuals < 1e-4 * found.values)).all())
