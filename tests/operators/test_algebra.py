"""Structure that must survive, work that must not be done twice, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from contracts.operators import close, draw, positive, spd
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
    KroneckerOperator,
    LowRankOperator,
    Operator,
    Place,
    ScaledOperator,
    Segment,
    ShiftedOperator,
    SumOperator,
)

EXAMPLES: list[Operator] = [
    DenseOperator(spd(4)),
    DiagonalOperator(positive(4)),
    BlockOperator([(Place.flat(0, 4), DenseOperator(spd(4)))], 4),
    ArrowheadOperator(positive(2, 1), draw(2, 1), positive(2)),
    KroneckerOperator(DenseOperator(spd(2)), DenseOperator(spd(2))),
    EigenOperator(Identity(2), Identity(2), positive(2, 2)),
    LowRankOperator(draw(2, 4)),
]


@pytest.mark.parametrize("M", EXAMPLES, ids=lambda M: type(M).__name__)
def test_multiples_keep_their_structure(M: Operator) -> None:
    assert type(2 * M) is type(M)


@pytest.mark.parametrize("M", [M for M in EXAMPLES if not isinstance(M, KroneckerOperator)], ids=repr)
def test_sums_of_the_same_structure_keep_it(M: Operator) -> None:
    assert type(M + M) is type(M)


def test_nested_compositions_do_not_grow() -> None:
    low = LowRankOperator(draw(2, 4))
    assert isinstance(-2 * (-3 * low), LowRankOperator)
    assert isinstance(3 * (-2 * low), ScaledOperator)
    total = (low + DiagonalOperator(positive(4))) + (DenseOperator(spd(4)) + low)
    assert isinstance(total, SumOperator)
    assert len(total.terms) == 4
    shifted = low.damped(1.0).damped(2.0)
    assert isinstance(shifted, ShiftedOperator)
    assert (shifted.shift, shifted.base) == (3.0, low)
    assert type(low.inverse(0.5).inverse()) is ShiftedOperator


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[torch.Size]:
    """The shapes that a function of torch.linalg is called with."""
    original: Callable[..., object] = getattr(torch.linalg, name)
    shapes: list[torch.Size] = []

    def counted(A: Tensor, *args: object, **options: object) -> object:
        shapes.append(A.shape)
        return original(A, *args, **options)

    monkeypatch.setattr(torch.linalg, name, counted)
    return shapes


def test_factors_are_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    M = KroneckerOperator(DenseOperator(spd(3)), DenseOperator(spd(4)))
    shapes = count_calls(monkeypatch, "eigh")
    for damping in (0.1, 0.2):
        M.solve(draw(12), damping)
        M.on(None).logdet(damping)
        M.sqrt_mv(draw(12))
    assert sorted(shapes) == [(3, 3), (4, 4)]


def test_inverse_factorizes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inverse = DenseOperator(spd(5)).inverse(0.1)
    shapes = count_calls(monkeypatch, "cholesky_ex")
    for seed in range(3):
        inverse @ draw(5, seed=seed)
    assert shapes == [(5, 5)]


def test_thin_factors_stay_thin() -> None:
    """A factor of 200,000 columns: its matrix would take 320 GB."""
    rows = draw(2, 200_000)
    M = KroneckerOperator(DiagonalOperator(positive(2)), LowRankOperator(rows))
    v = draw(M.size)
    x = M.solve(v, damping=0.1)
    close(M @ x + 0.1 * x, v, torch.float64)
    close(M.trace(), positive(2).sum() * rows.square().sum(), torch.float64)
    assert M.eigh().values.shape == (4,)
    assert torch.isfinite(M.logdet(damping=0.1))
    close(M.sqrt_mv(M.sqrt_mv(v)), M @ v, torch.float64)
    inverse = M.inverse(0.1)
    close(inverse @ v, x, torch.float64)
    close(inverse.trace(), (1 / (M.eigh().values + 0.1)).sum() + (M.size - 4) / 0.1, torch.float64)


def test_thin_bases_are_orthonormal_to_machine_precision() -> None:
    """Rows that are nearly dependent: normal equations would lose half of the digits."""
    rows = draw(3, 50)
    rows[1] = rows[0] + 1e-7 * rows[1]
    Q = LowRankOperator(rows).eigh().vectors.dense()
    assert torch.linalg.matrix_norm(Q.T @ Q - torch.eye(3, dtype=torch.float64)) < 1e-14


def test_large_thin_inverse_refuses_to_form_its_complement() -> None:
    with pytest.raises(ValueError, match="before the shift or inverse"):
        LowRankOperator(draw(2, 5000)).inverse(0.1).eigh()


def test_numerically_singular_matrices_need_damping() -> None:
    rows = draw(3, 6)
    for M in (DenseOperator(rows.T @ rows), LowRankOperator(torch.cat([rows, rows]))):
        with pytest.raises(torch.linalg.LinAlgError, match="positive damping"):
            M.solve(draw(6))


def test_the_inverse_of_a_singular_matrix_has_no_trace() -> None:
    rows = draw(3, 6)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        DenseOperator(rows.T @ rows).inverse().trace()


def test_what_is_returned_is_not_the_operator_itself() -> None:
    M = EigenOperator(Identity(2), Identity(2), positive(2, 2))
    M.diag().zero_()
    assert M.trace() > 0


def test_badly_conditioned_factors_are_no_reason_to_refuse() -> None:
    """Both factors are fine; their product spans 16 orders of magnitude."""
    d = torch.logspace(0, -8, 5, dtype=torch.float64)
    Q = torch.linalg.qr(draw(5, 5)).Q
    factor = DenseOperator(Q * d @ Q.T)
    V = draw(5, 5)
    x = KroneckerOperator(factor, factor).solve(V.reshape(-1))
    exact = Q @ ((Q.T @ V @ Q) / torch.outer(d, d)) @ Q.T
    close(x, exact.reshape(-1), torch.float64, factor=1e4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DenseOperator(torch.ones(2, 3)), r"square matrix, got \(2, 3\)"),
        (lambda: DiagonalOperator(torch.ones(2, 2)), r"\(P,\), got \(2, 2\)"),
        (lambda: LowRankOperator(torch.ones(2)), r"\(R, P\), got \(2,\)"),
        (lambda: ArrowheadOperator(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), r"\(R,\), got"),
        (lambda: EigenOperator(Identity(2), Identity(3), torch.ones(3, 2)), r"\(2, 3\), got \(3, 2\)"),
        (lambda: Columns(torch.ones(2, 3)), r"R <= P, got \(2, 3\)"),
        (lambda: BlockOperator([], 3), "at least one block"),
        (lambda: BlockOperator([(Place.flat(0, 2), DiagonalOperator(torch.ones(3)))], 3), "2 entries holds.*3"),
        (lambda: BlockOperator([(Place.flat(2, 2), DiagonalOperator(torch.ones(2)))], 3), "entry 3, beyond"),
        (
            lambda: BlockOperator([(Place.flat(i, 2), DiagonalOperator(torch.ones(2))) for i in (0, 1)], 3),
            "entries 1 to 1 belong to two",
        ),
        (lambda: SumOperator([DiagonalOperator(torch.ones(n)) for n in (2, 3)]), r"one size, got \[2, 3\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_only_numbers_and_operators_combine() -> None:
    M = DiagonalOperator(torch.ones(2))
    with pytest.raises(TypeError):
        M * M
    with pytest.raises(TypeError):
        M * torch.ones(2)


@pytest.mark.parametrize("M", EXAMPLES, ids=lambda M: type(M).__name__)
def test_conversion(M: Operator) -> None:
    single = M.inverse(0.5).to(torch.float32)
    assert single.dtype == torch.float32
    close(single.dense(), M.inverse(0.5).dense(), torch.float32)
    assert single.to(torch.float64, "cpu").dtype == torch.float64


def test_functions_are_not_converted() -> None:
    M = 2 * ImplicitOperator(lambda V: V, 2, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="function"):
        M.to(torch.float64)


def test_grouped_convolution_as_blocks() -> None:
    """Two groups of a convolution's weight (4, 3, 2), each with its own Kronecker product."""
    factors = [(spd(2, seed=g), spd(6, seed=g + 5)) for g in range(2)]
    blocks = [
        (Place((Segment(12 * g, (2, 3, 2), (0, 1, 2)),)), KroneckerOperator(DenseOperator(L), DenseOperator(R)))
        for g, (L, R) in enumerate(factors)
    ]
    exact = torch.block_diag(*(torch.kron(L, R) for L, R in factors))
    close(BlockOperator(blocks, 24).dense(), exact, torch.float64)


def test_names_say_what_an_operator_is_made_of() -> None:
    D = DiagonalOperator(torch.ones(2))
    blocks = BlockOperator([(Place.flat(0, 2), D), (Place.flat(2, 2), DenseOperator(torch.eye(2)))], size=4)
    assert repr(D) == "DiagonalOperator(size=2, dtype=float32)"
    assert repr(blocks) == "BlockOperator(size=4, dtype=float32, 1 DenseOperator, 1 DiagonalOperator)"


@pytest.mark.parametrize(
    "M",
    [
        -1.0 * KroneckerOperator(DenseOperator(spd(3)), DenseOperator(spd(2))).damped(0.5),
        DenseOperator(spd(3)).inverse().damped(-10.0),
        -1.0 * BlockOperator([(Place.flat(0, 2), DenseOperator(spd(2)))], 3).damped(0.5),
        -1.0 * EigenOperator(Identity(2), Identity(2), positive(2, 2)).damped(0.5),
        -1.0 * LowRankOperator(draw(2, 4)).damped(0.5),
    ],
    ids=lambda M: type(M.base).__name__,
)
def test_a_negative_shift_counts(M: Operator) -> None:
    v = draw(M.size)
    close(M.solve(v), torch.linalg.solve(M.dense(), v), torch.float64)
    with pytest.raises(ValueError, match="indefinite"):
        M.logdet()


@pytest.mark.parametrize("shape", [(60, 200), (200, 60)])
def test_rows_of_low_rank_have_no_negative_eigenvalue(shape: tuple[int, int]) -> None:
    rows = draw(shape[0], 3).float() @ draw(3, shape[1]).float()
    M, v = LowRankOperator(rows), draw(shape[1]).float()
    assert M.eigh().values.min() >= 0
    assert M.solve(v, damping=1e-6) @ v > 0
    assert torch.isfinite(M.logdet(1e-6))


def test_sums_and_quotients_as_of_numbers() -> None:
    M, N = DenseOperator(spd(3)), DiagonalOperator(positive(3))
    close(sum([M, N]).dense(), M.dense() + N.dense(), torch.float64)
    close((M / 4).dense(), M.dense() / 4, torch.float64)
    with pytest.raises(TypeError):
        M / N
    with pytest.raises(TypeError):
        1 + M


def test_traces_of_large_operators_in_float32() -> None:
    """`torch.linalg.vector_norm` is off by a thousandth for millions of numbers on a CPU."""
    rows = torch.randn(2000, 4000)
    wanted = float(rows.double().square().sum())
    assert float(LowRankOperator(rows).trace()) == pytest.approx(wanted, rel=1e-5)
    assert float(DenseOperator(rows[:, :2000]).frobenius()) == pytest.approx(
        float(rows[:, :2000].double().norm()), rel=1e-5
    )
    assert float(DiagonalOperator(rows.flatten()).frobenius()) == pytest.approx(wanted**0.5, rel=1e-5)


def test_small_eigenvalues_of_rows_are_not_lost_in_their_squares() -> None:
    rows = draw(60, 400) * torch.logspace(0, -3, 60, dtype=torch.float64)[:, None]
    exact, M = LowRankOperator(rows), LowRankOperator(rows.float())
    assert abs(float(M.logdet(1e-6)) - float(exact.logdet(1e-6))) < 0.05
    v = draw(61, 400)[60]  # not one of the rows
    found, wanted = M.solve(v.float(), damping=1e-4).double(), exact.solve(v, damping=1e-4)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-4
