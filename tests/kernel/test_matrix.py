"""A kernel as a matrix: every kind of it gives the same products, rows and diagonal."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import aslinearoperator
from torch import Tensor

import torchtangent as tt
from torchtangent.kernel import matrix
from torchtangent.kernel.matrix import Matrix, as_matrix
from torchtangent.operators import DenseOperator, ImplicitOperator

N, C = 5, 3


def kernel(columns: int = N, outputs: int = 1, seed: int = 0) -> Tensor:
    """(N, columns, outputs, outputs), part of a symmetric kernel."""
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(N, outputs, 7, generator=generator, dtype=torch.float64)
    return torch.einsum("ncp,mep->nmce", J, J[:columns])


def flat(K: Tensor) -> Tensor:
    """Entry by entry: row n·C + c, column m·C + e."""
    n, m, c, e = K.shape
    out = K.new_empty(n * c, m * e)
    for index in np.ndindex(*K.shape):
        out[index[0] * c + index[2], index[1] * e + index[3]] = K[index]
    return out


def check(found: Matrix, expected: Tensor) -> None:
    V = torch.randn(expected.shape[1], 2, dtype=torch.float64)
    index = torch.tensor([3, 0, 3])
    assert found.shape == tuple(expected.shape)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found @ V, expected @ V)
    torch.testing.assert_close(found.dense(), expected)
    torch.testing.assert_close(found.rows(index), expected[index])
    torch.testing.assert_close(found.diagonal(), expected.diagonal())


@pytest.mark.parametrize("outputs", [None, 1, C], ids=["(N, M)", "(N, M, 1, 1)", "(N, M, C, C)"])
@pytest.mark.parametrize("columns", [N, 4])
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_kinds(outputs: int | None, columns: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_BLOCK_BYTES", block)
    monkeypatch.setattr(matrix, "_COLUMNS", 2)
    K = kernel(columns, outputs or 1)
    expected = flat(K)
    given = K if outputs else K[..., 0, 0]
    np.save(tmp_path / "K.npy", given.numpy())
    check(as_matrix(given), expected)
    check(as_matrix(np.load(tmp_path / "K.npy", mmap_mode="r")), expected)
    if columns == N:
        check(as_matrix(DenseOperator(expected)), expected)
        check(
            as_matrix(ImplicitOperator(lambda V: expected @ V, len(expected), torch.float64, torch.device("cpu"))),
            expected,
        )


class Multiplies:
    """Something with `shape` and `@`, and no dtype."""

    def __init__(self, K: Any) -> None:
        self._K, self.shape = K, K.shape

    def __matmul__(self, V: Any) -> Any:
        return self._K @ V


class Typed(Multiplies):
    """The same with a dtype."""

    def __init__(self, K: Any) -> None:
        super().__init__(K)
        self.dtype = K.dtype


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "scipy's": lambda K: aslinearoperator(K.numpy()),
    "ours as scipy's": lambda K: DenseOperator(K).to_scipy(),
    "sparse": lambda K: csr_array(K.numpy()),
    "of tensors": Typed,
    "of arrays": lambda K: Typed(K.numpy()),
    "of tensors, without a dtype": Multiplies,
    "of arrays, without a dtype": lambda K: Multiplies(K.numpy()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_anything_with_a_shape_and_products(kind: str) -> None:
    K = kernel()[..., 0, 0]
    check(as_matrix(OTHERS[kind](K)), K)
    single = as_matrix(OTHERS[kind](K.float()))
    assert single.dtype == single.dense().dtype == torch.float32


def test_the_diagonal_of_products_takes_a_few_columns_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_COLUMNS", 2)
    K, products = kernel()[..., 0, 0], []

    class Watched(Typed):
        def __matmul__(self, V: Tensor) -> Tensor:
            assert not any(product() is not None for product in products), "an earlier one is still there"
            found = super().__matmul__(V)
            products.append(weakref.ref(found))
            return found

    assert torch.equal(as_matrix(Watched(K)).diagonal(), K.diagonal())
    assert len(products) == 3
    wide = as_matrix(Multiplies(K[:4]))
    assert torch.equal(wide.diagonal(), K[:4].diagonal())


@pytest.mark.parametrize("kind", OTHERS)
def test_what_takes_a_kernel_takes_its_products(kind: str) -> None:
    K, y = kernel()[..., 0, 0], torch.arange(5.0)
    other = OTHERS[kind](K)
    torch.testing.assert_close(tt.spectrum.top(other, 2).values, torch.linalg.eigvalsh(K).flip(0)[:2])
    expected = K @ torch.linalg.solve(K + torch.eye(N, dtype=K.dtype), y.double())
    torch.testing.assert_close(tt.predict.ridge(other, y, ridge=1.0), expected, rtol=1e-4, atol=1e-4)
    fits = [tt.dual.SGD(k, y, loss="mse", lr=0.01).run(epochs=3, batch_size=2) for k in (other, K)]
    torch.testing.assert_close(fits[0].c, fits[1].c)
    torch.testing.assert_close(fits[0].predict(other), fits[1].predict(K))


@pytest.mark.parametrize("kind", OTHERS)
def test_autocast_does_not_reach_products(kind: str) -> None:
    K = kernel()[..., 0, 0].float()
    other, V = as_matrix(OTHERS[kind](K)), torch.randn(N, 2)
    expected = other @ V, other.dense(), other.times(V)
    with torch.autocast("cpu", torch.bfloat16):
        for found, value in zip((other @ V, other.dense(), other.times(V)), expected, strict=True):
            assert torch.equal(found, value)


def test_halves_are_computed_in_float32() -> None:
    found = as_matrix(kernel()[..., 0, 0].half())
    assert found.dtype == (found @ torch.ones(N, 1)).dtype == found.rows(torch.tensor([1])).dtype == torch.float32


def test_a_tensor_is_not_copied() -> None:
    K = kernel()[..., 0, 0]
    assert as_matrix(K).dense().data_ptr() == K.data_ptr()
    assert as_matrix(as_matrix(K)).shape == (N, N)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(M, N\) or \(M, N, C, C\), got \(5, 5, 3\)"):
        as_matrix(torch.zeros(5, 5, 3))
    with pytest.raises(ValueError, match="floating-point"):
        as_matrix(torch.zeros(3, 3, dtype=torch.int64))

    with pytest.raises(ValueError, match="K has dtype int64: a kernel has floating-point numbers"):
        as_matrix(aslinearoperator(np.eye(3, dtype=np.int64)))
    with pytest.raises(ValueError, match="K @ v fails for this Multiplies, with tensors and with arrays"):
        as_matrix(Multiplies(SimpleNamespace(shape=(3, 3))))

    class Wide:
        shape, dtype = (2, 3), torch.float32

        def __matmul__(self, V: Tensor) -> Tensor:
            return torch.ones(2, 3) @ V

    assert (as_matrix(Wide()) @ torch.ones(3, 1)).shape == (2, 1)
    with pytest.raises(ValueError, match="Pass the matrix itself"):
        as_matrix(Wide()).rows(torch.tensor([0]))
