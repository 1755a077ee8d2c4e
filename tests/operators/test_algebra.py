"""Structure that must survive, work that must not be done twice, and arguments that are refused."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from contracts.operators import close, draw, positive, spd
from torch import Tensor

from torchtangent.notice import TangentWarning
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
    Space,
    SumOperator,
    algebra,
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("signs", ["positive", "both"])
def test_no_singular_matrix_is_solved(dtype: torch.dtype, signs: str) -> None:
    """Rounding leaves one in ten of them with pivots that are larger than rounding beside the largest pivot."""
    for P in (2, 3, 5, 12):
        for rank in range(1, P):
            for _ in range(10):
                A, weights = draw(P, rank), torch.ones(rank) if signs == "positive" else draw(rank)
                M = ((A * weights) @ A.T).to(dtype)
                singular = DenseOperator((M + M.T) / 2)
                for F in (singular, KroneckerOperator(DenseOperator(spd(2).to(dtype)), singular)):
                    with pytest.raises(torch.linalg.LinAlgError, match="positive damping"):
                        F.solve(draw(F.size).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_singular_matrix_known_by_its_products_has_no_logdet_and_no_inverse(dtype: torch.dtype) -> None:
    """Its zero eigenvalues are found as small numbers, of which every other one is positive."""
    for P in (2, 3, 8):
        for _ in range(10):
            rows = draw(P - 1, P).to(dtype)
            F = ImplicitOperator(lambda V, rows=rows: rows.T @ (rows @ V), P, dtype, torch.device("cpu"))
            for what in (F.logdet, F.inverse().trace, F.inverse().diag, (2 * F).logdet):
                with pytest.raises(torch.linalg.LinAlgError, match="positive damping"):
                    what()
            expected = torch.linalg.slogdet(
                (rows.T @ rows).double() + 0.1 * torch.eye(P, dtype=torch.float64)
            ).logabsdet
            assert float(F.logdet(0.1)) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("dtype", "smallest"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_an_eigenvalue_above_rounding_is_no_reason_to_refuse(dtype: torch.dtype, smallest: float) -> None:
    for P in (2, 5, 30):
        Q = torch.linalg.qr(draw(P, P)).Q
        values = torch.ones(P, dtype=torch.float64)
        values[-1] = smallest
        M = ((Q * values) @ Q.T).to(dtype)
        F, v = DenseOperator((M + M.T) / 2), draw(P).to(dtype)
        assert torch.linalg.vector_norm(F @ F.solve(v) - v) < 0.1 * torch.linalg.vector_norm(v)


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
        (lambda: DenseOperator(torch.eye(2, dtype=torch.complex64)), "floating-point numbers, which complex64 are not"),
        (lambda: DiagonalOperator(torch.arange(3)), "floating-point numbers, which int64 are not"),
        (lambda: ImplicitOperator(lambda V: V, 2, torch.int64, torch.device("cpu")), "which int64 are not"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_what_is_no_vector_is_told_from_one_without_names() -> None:
    M = DiagonalOperator(torch.ones(2))
    with pytest.raises(TypeError, match=r"got ndarray\. torch\.as_tensor\(v\) makes it one"):
        M @ np.ones(2, np.float32)
    with pytest.raises(TypeError, match="got DiagonalOperator"):
        M @ M


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


@pytest.mark.parametrize("damping", [1e-6, 1e-7, 1e-8])
def test_dampings_below_rounding_are_said_and_do_no_harm(damping: float) -> None:
    """Zero eigenvalues that come out negative would turn the sign of a solution, or make it endless."""
    factor = draw(20, 60) / 60**0.5
    exact, v = factor.T @ factor, draw(60)
    wanted = torch.linalg.solve(exact + damping * torch.eye(60), v)
    dense = DenseOperator(exact.float())
    for M in (dense, KroneckerOperator(DenseOperator(torch.ones(1, 1)), dense)):
        with pytest.warns(TangentWarning, match=r"rounding makes of zero eigenvalues.*damping of at least \de-05"):
            found = M.solve(v.float(), damping=damping)
        assert found.double() @ v > 0
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1
        with pytest.warns(TangentWarning):
            assert torch.isfinite(M.logdet(damping))
    close(DenseOperator(exact).solve(v, damping=damping), wanted, torch.float64, factor=1e3)


def test_small_dampings_of_regular_matrices_need_no_word() -> None:
    M, v = spd(30), draw(30)
    for matrix in (M, M - 2.5 * torch.eye(30)):  # definite, and not
        close(
            DenseOperator(matrix.float()).solve(v.float(), damping=1e-9), torch.linalg.solve(matrix, v), torch.float32
        )


def test_eigenvalues_negative_by_rounding_are_zero() -> None:
    rows = draw(20, 60).float()
    M = DenseOperator(rows.T @ rows)
    assert float(M.eigh().values.min()) == 0
    Q = torch.linalg.qr(draw(30, 30)).Q
    values = torch.cat([torch.tensor([-1e-3, -1e-5]), torch.linspace(0.1, 1, 28)]).double()
    found = DenseOperator((Q * values @ Q.T).float()).eigh().values.double()
    assert (found.flip(0)[:2] - values[:2]).abs().max() < 1e-6, "those of a Hessian stay"


@pytest.mark.parametrize("size", [1e-24, 1e20])
def test_norms_of_small_and_large_numbers(size: float) -> None:
    dense = (spd(6) * size).float()
    for M in (
        DenseOperator(dense),
        DiagonalOperator(dense.diagonal()),
        KroneckerOperator(DenseOperator(spd(2).float()), DenseOperator((spd(3) * size).float())),
        ArrowheadOperator(dense[:2, :3], dense[:2, 3:], dense[0, :2]),
        EigenOperator(Identity(2), Identity(3), dense[:2, :3]),
        BlockOperator([(Place.flat(0, 6), DenseOperator(dense))], 7),
        ImplicitOperator(lambda V: dense @ V, 6, torch.float32, torch.device("cpu")),
        DenseOperator(dense) + DiagonalOperator(dense.diagonal()),
    ):
        wanted = torch.linalg.matrix_norm(M.dense().double())
        close(M.frobenius()[None], wanted[None], torch.float32)


def test_operators_of_two_dtypes_are_refused() -> None:
    narrow, wide = DiagonalOperator(torch.ones(2)), DenseOperator(spd(2))
    for build in (
        lambda: narrow + wide,
        lambda: SumOperator([narrow, wide]),
        lambda: BlockOperator([(Place.flat(0, 2), narrow), (Place.flat(2, 2), wide)], 4),
        lambda: EigenOperator(spd(2), Identity(1), torch.ones(2, 1)),
        lambda: ArrowheadOperator(torch.ones(1, 2), torch.ones(1, 2).double(), torch.ones(1)),
    ):
        with pytest.raises(ValueError, match=r"float32 on cpu and float64 on cpu\. Convert some with \.to\(\)"):
            build()
    close((narrow.to(torch.float64) + wide).dense(), torch.eye(2) + spd(2), torch.float64)


def test_nothing_in_the_span() -> None:
    """Rank 0: everything is orthogonal to an empty basis."""
    M, v = LowRankOperator(torch.zeros(0, 4).double()), draw(4)
    close(M.solve(v, damping=2.0), v / 2, torch.float64)
    close(M.logdet(2.0)[None], 4 * torch.tensor([2.0]).double().log(), torch.float64)
    assert torch.equal(M.sqrt_mv(v), torch.zeros_like(v))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        M.solve(v)
    product = KroneckerOperator(DenseOperator(spd(2)), M)
    close(product.solve(draw(8, 3), damping=2.0), draw(8, 3) / 2, torch.float64)


@pytest.mark.parametrize("M", EXAMPLES, ids=lambda M: type(M).__name__)
def test_no_columns(M: Operator) -> None:
    V = torch.zeros(4, 0).double()
    for found in (M @ V, M.solve(V, damping=1.0), M.inverse(1.0) @ V):
        assert found.shape == (4, 0)
    assert M.quad(V).shape == (0,)
    if not isinstance(M, ArrowheadOperator):
        assert M.sqrt_mv(V).shape == (4, 0)


def test_arrays_of_any_kind_are_multiplied() -> None:
    M, x = DenseOperator(spd(5)), draw(5).numpy()
    exact, scipy = spd(5).numpy(), M.to_scipy()
    frozen = x.copy()
    frozen.flags.writeable = False
    for v in (x[::-1], frozen, x.astype(np.float32), x + 2j * x[::-1]):
        assert np.allclose(scipy @ v, exact @ v, rtol=1e-6)
    assert (scipy @ (1j * x)).dtype == np.complex128


def test_conversions_take_their_arguments_in_any_order() -> None:
    M = DiagonalOperator(torch.ones(2))
    assert M.to("cpu") is M
    assert M.to(torch.device("cpu"), torch.float32) is M
    assert M.to("cpu", torch.float64).dtype == M.to(dtype=torch.float64, device="cpu").dtype == torch.float64
    assert M.to(device="meta").device.type == "meta"
    with pytest.raises(ValueError, match="floating-point numbers, which int64 are not"):
        M.to(torch.int64)
    function = ImplicitOperator(lambda V: V, 2, torch.float32, torch.device("cpu"))
    assert function.to(torch.float32) is function


def test_a_function_that_returns_its_argument_shares_no_memory() -> None:
    for function in (lambda V: V, lambda V: V.view_as(V)):
        M, v = ImplicitOperator(function, 3, torch.float64, torch.device("cpu")), draw(3)
        (M @ v).zero_()
        assert torch.equal(v, draw(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_what_a_shift_leaves(dtype: torch.dtype) -> None:
    """M ≈ I, of which I is taken away."""
    tiny = 1e-4 if dtype == torch.float32 else 1e-9
    B = (torch.eye(6) + tiny * (spd(6) - 1)).to(dtype)
    for M in (
        DenseOperator(B),
        BlockOperator([(Place.flat(0, 6), DenseOperator(B))], 6),
        KroneckerOperator(DenseOperator(torch.eye(2, dtype=dtype)), DenseOperator(B)),
        ImplicitOperator(lambda V: B @ V, 6, dtype, torch.device("cpu")),
        ArrowheadOperator(B.diagonal().view(2, 3), B[:2, 3:], B.diagonal()[:2]),
    ):
        exact = M.dense().double() - torch.eye(M.size)
        close(M.damped(-1.0).frobenius()[None], torch.linalg.matrix_norm(exact)[None], dtype)


def test_norms_of_what_a_shift_leaves_of_a_large_operator() -> None:
    values = torch.cat([torch.ones(4999), torch.tensor([1.5])]).double()
    M = EigenOperator(Identity(1), Identity(5000), values[None])
    assert float(M.damped(-1.0).frobenius()) == pytest.approx(0.5)


@pytest.mark.parametrize("size", [1e-30, 1e-24, 1e20, 1e25])
def test_norms_of_small_and_large_shifts(size: float) -> None:
    matrix = (spd(6) * size).float()
    exact = torch.linalg.matrix_norm(matrix.double() + size * torch.eye(6))
    close(DenseOperator(matrix).damped(size).frobenius()[None], exact[None], torch.float32)


def test_a_singular_block_is_named() -> None:
    space = Space(("one.weight", "one.bias", "two.weight"), (torch.Size([2, 2]), torch.Size([2]), torch.Size([3])))
    regular, singular = DenseOperator(spd(6)), DenseOperator(torch.ones(3, 3).double())
    place = Place((Segment(0, (2, 2), (0, 1)), Segment(4, (2, 1), (0, 1))))
    M = BlockOperator([(place, regular), (Place.flat(6, 3), singular)], 9)
    with pytest.raises(torch.linalg.LinAlgError, match=r"^DenseOperator\(size=3.* is singular\. Pass a positive"):
        M.solve(draw(9))
    with pytest.raises(torch.linalg.LinAlgError, match=r"^Block of two\.weight: DenseOperator\(size=3.* is singular"):
        M.on(space).solve(draw(9))
    M = BlockOperator([(place, 0 * regular), (Place.flat(6, 3), singular)], 9).on(space)
    with pytest.raises(torch.linalg.LinAlgError, match=r"^Block of one\.weight, one\.bias: "):
        M.logdet()


@pytest.mark.parametrize(
    "use", [lambda M: M.logdet(0.1), lambda M: M.sqrt_mv(draw(30)), lambda M: M.eigh(), lambda M: M.inverse(0.1).diag()]
)
def test_advice_of_operators_without_a_matrix_can_be_followed(use: Callable[[Operator], object]) -> None:
    M = ImplicitOperator(lambda V: spd(30) @ V, 30, torch.float64, torch.device("cpu"), exact_limit=20)
    with pytest.raises(ValueError, match=r"30 products.*: eigh\(k\) finds the k largest.*structured representation"):
        use(M)
    close(M.eigh(2).values, torch.linalg.eigvalsh(spd(30)).flip(0)[:2], torch.float64)


def test_an_indefinite_arrowhead_names_its_smallest_eigenvalue() -> None:
    M = ArrowheadOperator(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]]), torch.tensor([1.0]))
    smallest = float(torch.linalg.eigvalsh(M.dense())[0]) + 0.5
    with pytest.raises(ValueError, match=f"smallest eigenvalue {smallest:.3g}"):
        M.logdet(damping=0.5)


def test_factors_of_a_kronecker_product_go_together() -> None:
    with pytest.raises(ValueError, match="float32 on cpu and float64 on cpu"):
        KroneckerOperator(DenseOperator(torch.eye(2)), DenseOperator(torch.eye(2).double()))


def test_the_matrix_of_a_sum_takes_room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for one of each term."""
    densified, made = algebra.densified, []

    def watched(M: Operator) -> Tensor:
        assert sum(matrix() is not None for matrix in made) <= 1
        out = densified(M)
        made.append(weakref.ref(out))
        return out

    terms = [DenseOperator(spd(4)), DiagonalOperator(positive(4)), LowRankOperator(draw(2, 4)), DenseOperator(spd(4))]
    exact = sum(term.dense() for term in terms)
    monkeypatch.setattr(algebra, "densified", watched)
    close(densified(SumOperator(terms)), exact, torch.float64)
    assert len(made) == 4
    close(terms[0].matrix, spd(4), torch.float64)
