"""How to build each operator, and what it equals: everything else is inherited from the contract."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from contracts.operators import OperatorContract, draw, eye, positive, spd
from oracle import assert_close
from torch import Tensor

from torchtangent.operators import (
    ArrowheadOperator,
    BlockOperator,
    Columns,
    DenseOperator,
    DiagonalOperator,
    EigenOperator,
    Identity,
    ImplicitOperator,
    InverseOperator,
    KroneckerOperator,
    LowRankOperator,
    Operator,
    Place,
    ScaledOperator,
    Segment,
    ShiftedOperator,
    SumOperator,
)


def orthonormal(n: int, r: int, seed: int = 0) -> Tensor:
    """Orthonormal columns in float64."""
    return torch.linalg.qr(draw(n, r, seed=seed)).Q.contiguous()


class TestDense(OperatorContract):
    operator = DenseOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DenseOperator(spd(6).to(dtype))

    def matrix(self) -> Tensor:
        return spd(6)


class TestDenseIndefinite(OperatorContract):
    operator = DenseOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DenseOperator(self.matrix().to(dtype))

    def matrix(self) -> Tensor:
        Q = orthonormal(5, 5)
        return (Q * torch.tensor([-20.0, -18.0, 1.0, 2.0, 3.0]).double() @ Q.T).float().double()


class TestDenseSingular(OperatorContract):
    operator = DenseOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DenseOperator(self.matrix().to(dtype))

    def matrix(self) -> Tensor:
        # Small integers: the product is exact in both precisions.
        rows = torch.tensor([[1, 2, 0, -1, 3], [0, 1, 1, 2, -1], [2, 0, 1, 1, 1]]).double()
        return rows.T @ rows


class TestDiagonal(OperatorContract):
    operator = DiagonalOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DiagonalOperator(positive(7).to(dtype))

    def matrix(self) -> Tensor:
        return torch.diag(positive(7))


class TestDiagonalSingular(OperatorContract):
    operator = DiagonalOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DiagonalOperator(torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=dtype))

    def matrix(self) -> Tensor:
        return torch.diag(torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=torch.float64))


PLACES = [
    Place((Segment(1, (2, 3), (0, 1)), Segment(9, (2, 1), (0, 1)))),  # [W b] of a linear layer
    Place((Segment(11, (2, 1, 2), (1, 0, 2)),)),  # a transposed weight
    Place.flat(7, 2),
]
INDICES = [[1, 2, 3, 9, 4, 5, 6, 10], [11, 12, 13, 14], [7, 8]]


def placed(blocks: list[Tensor], size: int) -> Tensor:
    """The block diagonal, entry by entry."""
    M = torch.zeros(size, size, dtype=torch.float64)
    for index, block in zip(INDICES, blocks, strict=True):
        for a, i in enumerate(index):
            for b, j in enumerate(index):
                M[i, j] = block[a, b]
    return M


class TestBlock(OperatorContract):
    """Blocks of different kinds, in places that are not in order, with entries 0 and 15 in none."""

    operator = BlockOperator

    def build(self, dtype: torch.dtype) -> Operator:
        kronecker = KroneckerOperator(DenseOperator(spd(2).to(dtype)), DenseOperator(spd(4, seed=1).to(dtype)))
        low_rank = LowRankOperator(draw(2, 4, seed=2).to(dtype))
        diagonal = DiagonalOperator(torch.tensor([2.0, 5.0], dtype=dtype))
        return BlockOperator(list(zip(PLACES, [kronecker, low_rank, diagonal], strict=True)), size=16)

    def matrix(self) -> Tensor:
        rows = draw(2, 4, seed=2)
        blocks = [
            torch.kron(spd(2), spd(4, seed=1)),
            rows.T @ rows,
            torch.diag(torch.tensor([2.0, 5.0]).double()),
        ]
        return placed(blocks, 16)


class TestBlockCovering(OperatorContract):
    operator = BlockOperator

    def build(self, dtype: torch.dtype) -> Operator:
        blocks = [(Place.flat(3, 4), DenseOperator(spd(4).to(dtype)))]
        blocks += [(Place.flat(0, 3), DenseOperator(spd(3, seed=1).to(dtype)))]
        return BlockOperator(blocks, size=7)

    def matrix(self) -> Tensor:
        return torch.block_diag(spd(3, seed=1), spd(4))


def arrow(diagonal: Tensor, edge: Tensor, corner: Tensor) -> Tensor:
    """The arrowheads, entry by entry."""
    rows, width = diagonal.shape
    M = torch.zeros(rows * (width + 1), rows * (width + 1), dtype=torch.float64)
    for r in range(rows):
        bias = r * (width + 1) + width
        for i in range(width):
            entry = r * (width + 1) + i
            M[entry, entry] = diagonal[r, i]
            M[entry, bias] = M[bias, entry] = edge[r, i]
        M[bias, bias] = corner[r]
    return M


class TestArrowhead(OperatorContract):
    operator = ArrowheadOperator

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return 4 * positive(3, 4), draw(3, 4, seed=1), 8 * positive(3, seed=2)

    def build(self, dtype: torch.dtype) -> Operator:
        return ArrowheadOperator(*(part.to(dtype) for part in self.parts()))

    def matrix(self) -> Tensor:
        return arrow(*self.parts())


class TestArrowheadIndefinite(OperatorContract):
    """One row has a zero on its diagonal, which must not be divided by, one a negative Schur complement."""

    operator = ArrowheadOperator

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        diagonal = torch.tensor([[0.0, 1.0], [2.0, 4.0], [3.0, 1.0]])
        edge = torch.tensor([[30.0, 1.0], [40.0, 20.0], [0.0, 0.5]])
        return diagonal.double(), edge.double(), torch.tensor([1.0, 1.0, 2.0]).double()

    def build(self, dtype: torch.dtype) -> Operator:
        return ArrowheadOperator(*(part.to(dtype) for part in self.parts()))

    def matrix(self) -> Tensor:
        return arrow(*self.parts())


class TestArrowheadSingular(OperatorContract):
    """A weight whose input was always zero: its row of the matrix is zero."""

    operator = ArrowheadOperator

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        diagonal, edge = torch.tensor([[0.0, 2.0], [2.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]])
        return diagonal.double(), edge.double(), torch.tensor([3.0, 3.0]).double()

    def build(self, dtype: torch.dtype) -> Operator:
        return ArrowheadOperator(*(part.to(dtype) for part in self.parts()))

    def matrix(self) -> Tensor:
        return arrow(*self.parts())


class TestKronecker(OperatorContract):
    operator = KroneckerOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return KroneckerOperator(DenseOperator(spd(3).to(dtype)), DenseOperator(spd(4, seed=1).to(dtype)))

    def matrix(self) -> Tensor:
        return torch.kron(spd(3), spd(4, seed=1))


class TestKroneckerThin(OperatorContract):
    """One factor of low rank, one diagonal: neither is ever a matrix."""

    operator = KroneckerOperator

    def build(self, dtype: torch.dtype) -> Operator:
        diagonal = DiagonalOperator(torch.tensor([1.0, 3.0], dtype=dtype))
        return KroneckerOperator(diagonal, LowRankOperator(draw(2, 5).to(dtype)))

    def matrix(self) -> Tensor:
        return torch.kron(torch.diag(torch.tensor([1.0, 3.0]).double()), draw(2, 5).T @ draw(2, 5))


class TestKroneckerShiftedFactor(OperatorContract):
    """A thin factor plus a multiple of the identity is not thin."""

    operator = KroneckerOperator

    def build(self, dtype: torch.dtype) -> Operator:
        factor = LowRankOperator(draw(2, 4).to(dtype)).damped(1.0)
        return KroneckerOperator(DenseOperator(spd(2).to(dtype)), factor)

    def matrix(self) -> Tensor:
        return torch.kron(spd(2), draw(2, 4).T @ draw(2, 4) + eye(4))


class TestEigen(OperatorContract):
    operator = EigenOperator

    def build(self, dtype: torch.dtype) -> Operator:
        values = positive(3, 4, seed=2).to(dtype)
        return EigenOperator(orthonormal(3, 3).to(dtype), Columns(orthonormal(4, 4, seed=1).to(dtype)), values)

    def matrix(self) -> Tensor:
        Q = torch.kron(orthonormal(3, 3), orthonormal(4, 4, seed=1))
        M = Q * positive(3, 4, seed=2).reshape(-1) @ Q.T
        return (M + M.T) / 2


class TestEigenThin(OperatorContract):
    operator = EigenOperator

    def build(self, dtype: torch.dtype) -> Operator:
        values = positive(2, 3, seed=2).to(dtype)
        return EigenOperator(Columns(orthonormal(4, 2).to(dtype)), Identity(3), values)

    def matrix(self) -> Tensor:
        Q = torch.kron(orthonormal(4, 2), eye(3))
        M = Q * positive(2, 3, seed=2).reshape(-1) @ Q.T
        return (M + M.T) / 2


class TestLowRank(OperatorContract):
    operator = LowRankOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return LowRankOperator(draw(3, 7).to(dtype))

    def matrix(self) -> Tensor:
        return draw(3, 7).T @ draw(3, 7)


class TestLowRankWithManyRows(OperatorContract):
    operator = LowRankOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return LowRankOperator(draw(30, 5).to(dtype))

    def matrix(self) -> Tensor:
        return draw(30, 5).T @ draw(30, 5)


class TestImplicit(OperatorContract):
    operator = ImplicitOperator
    saves = False

    def build(self, dtype: torch.dtype) -> Operator:
        M = spd(40).to(dtype)
        rtol = 1e-12 if dtype == torch.float64 else 1e-6
        return ImplicitOperator(lambda V: M @ V, 40, dtype, torch.device("cpu"), rtol=rtol)

    def matrix(self) -> Tensor:
        return spd(40)


class TestSum(OperatorContract):
    operator = SumOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return LowRankOperator(draw(2, 6).to(dtype)) + DiagonalOperator(positive(6, seed=1).to(dtype))

    def matrix(self) -> Tensor:
        return draw(2, 6).T @ draw(2, 6) + torch.diag(positive(6, seed=1))


class TestScaled(OperatorContract):
    operator = ScaledOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return 2.0 * DenseOperator(spd(5).to(dtype)).inverse()

    def matrix(self) -> Tensor:
        inverse = torch.linalg.inv(spd(5))
        return inverse + inverse.T


class TestScaledNegative(OperatorContract):
    operator = ScaledOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return -5.0 * LowRankOperator(draw(2, 5).to(dtype))

    def matrix(self) -> Tensor:
        return -5 * draw(2, 5).T @ draw(2, 5)


class TestShifted(OperatorContract):
    operator = ShiftedOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return LowRankOperator(draw(2, 6).to(dtype)).damped(2.0)

    def matrix(self) -> Tensor:
        return draw(2, 6).T @ draw(2, 6) + 2 * eye(6)


class TestInverse(OperatorContract):
    operator = InverseOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return DenseOperator(spd(6).to(dtype)).inverse(damping=0.5)

    def matrix(self) -> Tensor:
        inverse = torch.linalg.inv(spd(6) + 0.5 * eye(6))
        return (inverse + inverse.T) / 2


class TestInverseThin(OperatorContract):
    operator = InverseOperator

    def build(self, dtype: torch.dtype) -> Operator:
        return LowRankOperator(draw(2, 6).to(dtype)).inverse(damping=2.0)

    def matrix(self) -> Tensor:
        inverse = torch.linalg.inv(draw(2, 6).T @ draw(2, 6) + 2 * eye(6))
        return (inverse + inverse.T) / 2


def test_every_operator_is_under_contract() -> None:
    """A new operator without a contract test fails here."""
    library = {cls for cls in Operator.registry.values() if cls.__module__.startswith("torchtangent.")}
    assert library == {contract.operator for contract in OperatorContract.__subclasses__()}


@pytest.mark.parametrize("small", [1e-2, 1e-5, 2e-8, 0.0])
def test_arrowheads_with_small_entries_lose_no_digits(small: float) -> None:
    M = ArrowheadOperator(
        torch.tensor([[small, 1.0]], dtype=torch.float64),
        torch.tensor([[1.0, 0.5]], dtype=torch.float64),
        torch.tensor([0.7], dtype=torch.float64),
    )
    b = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert_close(M.solve(b), torch.linalg.solve(M.dense(), b), 1e-13)


@pytest.mark.parametrize("seed", range(8))  # which side of zero the eigenvalue falls on is chance
def test_a_damping_that_an_eigenvalue_cancels(seed: int) -> None:
    torch.manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    M = DenseOperator((Q * torch.tensor([3.0, 2, -1, 0.5, 0.25, 0.125], dtype=torch.float64)) @ Q.T)
    v = torch.ones(6, dtype=torch.float64)
    for ask in (
        lambda: M.solve(v, 1.0),
        lambda: M.damped(-2.0).solve(v),
        lambda: M.damped(-2.0).damped(3.0).solve(v),
        lambda: (-1 * M).damped(3.0).logdet(),
        lambda: M.eigh() and M.inverse(1.0).diag(),
    ):
        with pytest.raises((torch.linalg.LinAlgError, ValueError), match=r"singular|indefinite"):
            ask()
    assert_close(
        M.damped(1e-3).solve(v, 1.0),
        torch.linalg.solve(M.dense() + 1.001 * torch.eye(6, dtype=torch.float64), v),
        1e-10,
    )


@pytest.mark.parametrize("damping", [0.0, 1e-3, 0.999])
def test_eigenvalues_that_were_given_are_exact(damping: float) -> None:
    """The rounding of the largest one has no part in the others."""
    values = torch.tensor([1e4, -1.0, 1e-3])
    M = DiagonalOperator(values)
    assert_close(M.solve(values + damping, damping), torch.ones(3), 1e-6)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        M.solve(values, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decompositions_of_half_precision(dtype: torch.dtype) -> None:
    A = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=dtype)
    v = torch.tensor([3.0, 3.0], dtype=dtype)
    for M in (DenseOperator(A), LowRankOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=dtype))):
        assert_close(M.solve(v, 1.0).float(), torch.linalg.solve(M.dense().float() + torch.eye(2), v.float()), 0.02)
        assert_close(M.sqrt_mv(v).float().norm(), (v.float() @ M.dense().float() @ v.float()).sqrt(), 0.02)


def test_eigenvalues_of_long_vectors_are_as_exact_as_their_dtype() -> None:
    """Sums over many parameters, taken one after the other in float32, would lose three digits."""
    P, values = 600_000, torch.tensor([24.0, 16.0, 14.0, 11.0, 10.0])
    diagonal = torch.rand(P) / 10
    diagonal[:5] = values
    M = ImplicitOperator(lambda V: diagonal[:, None] * V, P, torch.float32, torch.device("cpu"))
    found = M.eigh(k=5)
    assert_close(found.values, values, 1e-6)
    Q = found.vectors.dense().double()
    assert_close(Q.T @ Q, eye(5), 1e-5)
    rows = torch.rand(3, P)
    low = LowRankOperator(rows)
    Q = low.eigh().vectors.dense().double()
    assert_close(low.eigh().values, torch.linalg.svdvals(rows.double()).square(), 1e-6)
    assert_close(Q.T @ Q, eye(3), 1e-6)
    assert_close(low @ diagonal, rows.double().T @ (rows.double() @ diagonal.double()), 1e-6)
    assert_close(low.frobenius(), torch.linalg.matrix_norm(rows.double() @ rows.double().T), 1e-6)


def blocks() -> BlockOperator:
    """A Kronecker-factored, an eigendecomposed, a low-rank and a diagonal block; two entries belong to none."""
    parts = [
        (Place.flat(0, 6), KroneckerOperator(DenseOperator(spd(2)), DenseOperator(spd(3)))),
        (Place.flat(6, 6), EigenOperator(Identity(2), orthonormal(3, 2), positive(2, 2))),
        (Place.flat(12, 5), LowRankOperator(draw(2, 5))),
        (Place.flat(17, 3), DiagonalOperator(positive(3))),
    ]
    return BlockOperator(parts, 22)


def test_a_factorization_is_kept_for_one_damping_and_these_numbers() -> None:
    M = blocks()
    v = draw(22)

    def check(damping: float) -> None:
        A = M.dense() + damping * eye(22)
        assert_close(M.solve(v, damping=damping), torch.linalg.solve(A, v))
        assert_close(M.logdet(damping), torch.logdet(A))

    for damping in (0.1, 0.1, 0.5, 0.1):
        check(damping)
    first = M._factorized(0.1)
    assert M._factorized(0.1) is first
    assert M._factorized(0.2) is not first
    values = M.blocks[3][1].values
    check(0.3)
    for tensor in (values, M.blocks[0][1].left.matrix, M.blocks[2][1].rows):
        tensor.mul_(2)
        check(0.3)
    values.requires_grad_()
    assert torch.autograd.grad(M.solve(v, damping=0.3).sum(), values)[0].abs().sum() > 0
    values.requires_grad_(False)
    check(0.3)
    with torch.inference_mode():
        changing = torch.ones(3)
        D = DiagonalOperator(changing)
        assert D.solve(torch.ones(3), damping=1.0).tolist() == [0.5] * 3
        changing.mul_(4)
        assert D.solve(torch.ones(3), damping=1.0).tolist() == pytest.approx([0.2] * 3)


def test_what_is_kept_is_no_part_of_copies_and_lives_no_longer() -> None:
    M = blocks()
    v = draw(22)
    expected = M @ v, M.solve(v, damping=0.1), M.sqrt_mv(v)
    for other in (copy.deepcopy(M), pickle.loads(pickle.dumps(M)), M.on(None)):
        for a, b in zip((other @ v, other.solve(v, damping=0.1), other.sqrt_mv(v)), expected, strict=True):
            assert_close(a, b)
    M.blocks[0][1].solve(v[:6])
    gone = weakref.ref(M), weakref.ref(M.blocks[0][1])
    gc.disable()
    try:
        del M, other
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
