"""What every operator must satisfy, against a float64 matrix that is made without it.

An operator's own test says how to build one and what it equals; every check below is inherited:

    class TestDense(OperatorContract):
        operator = DenseOperator
        def build(self, dtype): ...
        def matrix(self): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchtangent.operators import DenseOperator, DiagonalOperator, Operator, Space

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
DAMPINGS = {torch.float64: (0.0, 1e-4, 0.3, 10.0), torch.float32: (0.0, 0.3, 10.0)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers that float32 holds exactly, in float64: the same for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).double()


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Numbers above 1 that float32 holds exactly, in float64."""
    return (draw(*shape, seed=seed).abs() + 1).float().double()


def eye(n: int) -> Tensor:
    """The identity in float64."""
    return torch.eye(n, dtype=torch.float64)


def spd(n: int, seed: int = 0) -> Tensor:
    """A well-conditioned positive definite matrix with entries that float32 holds exactly."""
    A = draw(n, 2 * n, seed=seed)
    return (A @ A.T / (2 * n) + eye(n)).float().double()


def close(ours: Tensor, exact: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Equal up to the tolerance of the dtype, in relative Frobenius norm."""
    assert ours.shape == exact.shape
    assert ours.dtype == dtype
    error = torch.linalg.vector_norm(ours.double() - exact) / torch.linalg.vector_norm(exact).clamp(min=1e-300)
    assert error <= factor * TOLERANCE[dtype], f"relative error {error:.2e}"


class OperatorContract(ABC):
    """Inherit, set `operator`, implement `build` and `matrix`; the rest is checked for you."""

    operator: type[Operator]
    saves = True

    @abstractmethod
    def build(self, dtype: torch.dtype) -> Operator:
        """The operator under test."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """What it equals: a float64 matrix from an independent construction."""

    @pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        return request.param

    @pytest.fixture
    def exact(self) -> Tensor:
        M = self.matrix()
        assert M.dtype == torch.float64
        assert torch.equal(M, M.T) or torch.allclose(M, M.T, rtol=0, atol=1e-14)
        return M

    @pytest.fixture(name="M")
    def _operator(self, dtype: torch.dtype) -> Operator:
        return self.build(dtype)

    @pytest.fixture
    def v(self, exact: Tensor) -> Tensor:
        return draw(len(exact), seed=7)

    @pytest.fixture(name="V")
    def _columns(self, exact: Tensor) -> Tensor:
        return draw(len(exact), 3, seed=8)

    @pytest.fixture
    def space(self, exact: Tensor) -> Space:
        return Space(("weight", "bias"), (torch.Size([1, len(exact) - 2]), torch.Size([2])))

    # --- products

    def test_attributes(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        assert type(M) is self.operator
        assert (M.size, M.dtype, M.device.type) == (len(exact), dtype, "cpu")
        assert self.operator.__name__ in repr(M)

    def test_product_with_a_vector(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        given = v.to(dtype)
        close(M @ given, exact @ v, dtype)
        assert torch.equal(given, v.to(dtype)), "the vector was changed"

    def test_product_with_columns(self, M: Operator, exact: Tensor, V: Tensor, dtype: torch.dtype) -> None:
        close(M @ V.to(dtype), exact @ V, dtype)
        transposed = V.to(dtype).T.contiguous().T
        close(M @ transposed, exact @ V, dtype)

    def test_product_with_a_dict(self, M: Operator, exact: Tensor, v: Tensor, space: Space, dtype: torch.dtype) -> None:
        named = space.split(v.to(dtype))
        out = M.on(space) @ named
        assert isinstance(out, dict)
        assert {name: t.shape for name, t in out.items()} == {name: t.shape for name, t in named.items()}
        close(torch.cat([t.reshape(-1) for t in out.values()]), exact @ v, dtype)

    @pytest.mark.parametrize("kind", [list, tuple])
    def test_product_with_a_list(
        self, M: Operator, exact: Tensor, v: Tensor, space: Space, dtype: torch.dtype, kind: type
    ) -> None:
        out = M.on(space) @ kind(space.split(v.to(dtype)).values())
        assert type(out) is kind
        close(torch.cat([t.reshape(-1) for t in out]), exact @ v, dtype)

    def test_quadratic_form(self, M: Operator, exact: Tensor, v: Tensor, V: Tensor, dtype: torch.dtype) -> None:
        scale = torch.linalg.vector_norm(exact @ v) * torch.linalg.vector_norm(v)
        assert abs(M.quad(v.to(dtype)).double() - v @ exact @ v) <= TOLERANCE[dtype] * scale
        close(M.quad(V.to(dtype)), (V * (exact @ V)).sum(0), dtype, factor=10)

    # --- solves

    def test_solve(self, M: Operator, exact: Tensor, v: Tensor, V: Tensor, dtype: torch.dtype) -> None:
        for damping in DAMPINGS[dtype]:
            A = exact + damping * eye(len(exact))
            if self._rank(A) < len(A):
                with pytest.raises(torch.linalg.LinAlgError, match=r"singular.*damping"):
                    M.solve(v.to(dtype), damping=damping)
                continue
            close(M.solve(v.to(dtype), damping=damping), torch.linalg.solve(A, v), dtype)
            close(M.solve(V.to(dtype), damping=damping), torch.linalg.solve(A, V), dtype)

    def test_solve_returns_the_format_given(
        self, M: Operator, exact: Tensor, v: Tensor, space: Space, dtype: torch.dtype
    ) -> None:
        out = M.on(space).solve(space.split(v.to(dtype)), damping=0.3)
        expected = torch.linalg.solve(exact + 0.3 * eye(len(exact)), v)
        close(torch.cat([out["weight"].reshape(-1), out["bias"]]), expected, dtype)

    def test_inverse(self, M: Operator, exact: Tensor, V: Tensor, dtype: torch.dtype) -> None:
        inverse, expected = M.inverse(damping=0.3), torch.linalg.inv(exact + 0.3 * eye(len(exact)))
        close(inverse @ V.to(dtype), expected @ V, dtype)
        close(inverse.dense(), expected, dtype)
        close(inverse.diag(), expected.diagonal(), dtype)
        close(inverse.trace(), expected.trace(), dtype, factor=10)
        close(inverse.frobenius(), torch.linalg.matrix_norm(expected), dtype)
        close(inverse.solve(V.to(dtype)), (exact + 0.3 * eye(len(exact))) @ V, dtype)
        A = expected + 0.5 * eye(len(exact))
        close(inverse.solve(V.to(dtype), damping=0.5), torch.linalg.solve(A, V), dtype)
        close(inverse.inverse().dense(), exact + 0.3 * eye(len(exact)), dtype)

    def test_damped(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        A = exact + 0.3 * eye(len(exact))
        damped = M.damped(0.3)
        close(damped.dense(), A, dtype)
        close(damped.diag(), A.diagonal(), dtype)
        close(damped.trace(), A.trace(), dtype)
        close(damped.frobenius(), torch.linalg.matrix_norm(A), dtype)
        close(damped.solve(v.to(dtype), damping=0.2), torch.linalg.solve(A + 0.2 * eye(len(A)), v), dtype)

    # --- summaries

    def test_dense(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        close(M.dense(), exact, dtype)

    def test_trace(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        assert abs(M.trace().double() - exact.trace()) <= TOLERANCE[dtype] * exact.diagonal().abs().sum()
        assert M.trace().shape == ()

    def test_diag(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        close(M.diag(), exact.diagonal(), dtype)

    def test_diag_is_a_copy(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        M.diag().zero_()
        M.dense().zero_()
        close(M.dense(), exact, dtype)

    def test_frobenius(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        close(M.frobenius(), torch.linalg.matrix_norm(exact), dtype)

    def test_logdet(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        for damping in DAMPINGS[dtype]:
            values = torch.linalg.eigvalsh(exact + damping * eye(len(exact)))
            if self._rank(exact + damping * eye(len(exact))) < len(exact):
                with pytest.raises(torch.linalg.LinAlgError, match=r"singular.*damping"):
                    M.logdet(damping=damping)
            elif values.min() < 0:
                with pytest.raises(ValueError, match="indefinite"):
                    M.logdet(damping=damping)
            else:
                error = M.logdet(damping=damping).double() - values.log().sum()
                assert abs(error) <= TOLERANCE[dtype] * values.log().abs().sum()

    def test_estimates(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        trace, diagonal = M.estimate_trace(probes=200, seed=3), M.estimate_diag(probes=200, seed=3)
        rounding = TOLERANCE[dtype] * exact.diagonal().abs().sum()
        assert abs(trace.value.double() - exact.trace()) <= 5 * trace.standard_error + rounding
        off = (diagonal.value.double() - exact.diagonal()).abs()
        assert bool((off <= 6 * diagonal.standard_error + rounding).all())
        assert torch.equal(M.estimate_trace(probes=200, seed=3).value, trace.value)

    # --- eigenvalues

    def test_eigh(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        values, vectors = M.eigh()
        Q = vectors.dense()
        assert bool((values.diff() <= 0).all()), "eigenvalues descend"
        assert Q.shape == (len(exact), len(values))
        close(Q.T @ Q, eye(len(values)), dtype)
        close(Q * values @ Q.T, exact, dtype)

    @pytest.mark.parametrize("k", [1, 3])
    def test_leading_eigenpairs(self, M: Operator, exact: Tensor, dtype: torch.dtype, k: int) -> None:
        values, vectors = M.eigh(k)
        expected = torch.linalg.eigvalsh(exact).flip(0)
        assert len(values) <= k
        close(values, expected[: len(values)], dtype)
        assert bool((expected[len(values) : k].abs() <= 1e-12).all()), "only zeros may be left out"
        Q = vectors.dense().double()
        residual = exact @ Q - Q * values.double()
        assert torch.linalg.matrix_norm(residual) <= 10 * TOLERANCE[dtype] * torch.linalg.matrix_norm(exact)

    def test_basis_goes_up_and_down(self, M: Operator, V: Tensor, dtype: torch.dtype) -> None:
        basis = M.eigh().vectors
        Q = basis.dense().double()
        C = draw(basis.rank, 2, seed=9)
        close(basis.project(V.to(dtype)), Q.T @ V, dtype)
        close(basis.lift(C.to(dtype)), Q @ C, dtype)
        close(basis.lift_squared(C.to(dtype)), Q.square() @ C, dtype)

    def test_square_root(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        values, Q = torch.linalg.eigh(exact)
        if values.min() < -1e-8:
            with pytest.raises(ValueError, match="indefinite"):
                M.sqrt_mv(v.to(dtype))
            return
        # The root of a zero eigenvalue is only known up to the square root of rounding.
        close(M.sqrt_mv(M.sqrt_mv(v.to(dtype))), exact @ v, dtype)
        if self._rank(exact) == len(exact):
            close(M.sqrt_mv(v.to(dtype)), Q @ (values.sqrt() * (Q.T @ v)), dtype)

    # --- new operators

    def test_sum_with_itself(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        total = M + self.build(dtype)
        close(total.dense(), 2 * exact, dtype)
        A = 2 * exact + 0.3 * eye(len(exact))
        close(total.solve(v.to(dtype), damping=0.3), torch.linalg.solve(A, v), dtype)

    def test_sum_with_another_structure(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        values, other = positive(len(exact), seed=11), spd(len(exact), seed=12)
        total = DiagonalOperator(values.to(dtype)) + M + DenseOperator(other.to(dtype))
        A = exact + torch.diag(values) + other
        close(total @ v.to(dtype), A @ v, dtype)
        close(total.dense(), A, dtype)
        close(total.diag(), A.diagonal(), dtype)
        close(total.trace(), A.trace(), dtype)
        close(total.frobenius(), torch.linalg.matrix_norm(A), dtype)
        close(total.solve(v.to(dtype), damping=0.3), torch.linalg.solve(A + 0.3 * eye(len(A)), v), dtype)

    @pytest.mark.parametrize("factor", [2, 0.5, -1.5, torch.tensor(3.0)])
    def test_multiple(self, M: Operator, exact: Tensor, v: Tensor, dtype: torch.dtype, factor: Any) -> None:
        expected = float(factor) * exact
        for multiple in (factor * M, M * factor):
            close(multiple.dense(), expected, dtype)
            close(multiple.diag(), expected.diagonal(), dtype)
            close(multiple.frobenius(), torch.linalg.matrix_norm(expected), dtype)
        if float(factor) > 0:
            A = expected + 0.3 * eye(len(exact))
            close(multiple.solve(v.to(dtype), damping=0.3), torch.linalg.solve(A, v), dtype)

    def test_difference(self, M: Operator, exact: Tensor, dtype: torch.dtype) -> None:
        other = spd(len(exact), seed=13)
        close((DenseOperator(other.to(dtype)) - M).dense(), other - exact, dtype)
        close((-M).dense(), -exact, dtype)

    def test_space_follows(self, M: Operator, space: Space) -> None:
        placed = M.on(space)
        assert M.space is None
        for derived in (placed + placed, 2 * placed, placed.inverse(0.3), placed.damped(0.3), M + placed):
            assert derived.space == space

    # --- other programs

    def test_save_and_load(self, M: Operator, exact: Tensor, space: Space, dtype: torch.dtype, tmp_path: Path) -> None:
        path = tmp_path / "operator.safetensors"
        if not self.saves:
            with pytest.raises(ValueError, match="cannot be saved"):
                M.save(path)
            return
        for operator, factor in ((M, 1.0), (M.on(space), 1.0), (2 * M, 2.0), (M.on(space) + M, 2.0)):
            operator.save(path)
            loaded = Operator.load(path)
            assert type(loaded) is type(operator)
            assert loaded.space == operator.space
            assert torch.equal(loaded.dense(), operator.dense())
            close(loaded.dense(), factor * exact, dtype)
        M.inverse(0.3).save(path)
        close(Operator.load(path).dense(), torch.linalg.inv(exact + 0.3 * eye(len(exact))), dtype)

    def test_scipy(self, M: Operator, exact: Tensor, v: Tensor, V: Tensor, dtype: torch.dtype) -> None:
        S = M.to_scipy()
        assert S.shape == tuple(exact.shape)
        assert S.dtype == np.dtype(str(dtype).removeprefix("torch."))
        close(torch.from_numpy(S @ v.to(dtype).numpy()), exact @ v, dtype)
        close(torch.from_numpy(S.T @ V.to(dtype).numpy()), exact @ V, dtype)

    # --- errors

    def test_errors(self, M: Operator, v: Tensor, space: Space, dtype: torch.dtype) -> None:
        good = v.to(dtype)
        with pytest.raises(ValueError, match=f"shape \\({M.size},\\)"):
            M @ good[:-1]
        with pytest.raises(ValueError, match=r"\.on\(space\)"):
            M @ space.split(good)
        with pytest.raises(ValueError, match=r"\.to\(\)"):
            M @ good.half()
        with pytest.raises(ValueError, match=r"missing.*bias"):
            M.on(space) @ {"weight": good[None, :-2]}
        for damping in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="damping"):
                M.solve(good, damping=damping)
        with pytest.raises(ValueError, match="at least 1"):
            M.eigh(0)
        with pytest.raises(ValueError, match="2 probes"):
            M.estimate_trace(probes=1, seed=0)
        with pytest.raises(ValueError, match=f"{M.size + 1} parameters"):
            M.on(Space(("p",), (torch.Size([M.size + 1]),)))
        with pytest.raises(ValueError, match="sizes"):
            M + DiagonalOperator(torch.ones(M.size + 1, dtype=dtype))
        with pytest.raises(ValueError, match="different spaces"):
            M.on(space) + M.on(Space(("p",), (torch.Size([M.size]),)))

    @staticmethod
    def _rank(A: Tensor) -> int:
        return int(torch.linalg.matrix_rank(A, hermitian=True, rtol=1e-9))
