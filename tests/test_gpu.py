"""The library on a GPU, where there is one: the numbers of the float64 oracle, within the memory that was given."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import oracle
import pytest
import torch
from cases import ZOO
from forced import WAYS, expected_kernel, make_job, run_forced
from torch import nn

import torchtangent as tt
from torchtangent import spectrum
from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.fused import add_shifted
from torchtangent.kernel.precision import add_product
from torchtangent.kernel.split import SplitConvolutions
from torchtangent.operators import DenseOperator, KroneckerOperator
from torchtangent.operators.recorded import Repeated, record
from torchtangent.operators.symmetric import eigh

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # torch's, in the backward thread's first product
]
CASES = ["mlp", "lenet", "residual-gelu", "embedding", "conv2d-groups", "conv-transpose2d-groups", "sequence-outputs"]
CONVOLUTIONS = ["conv1d", "conv2d", "conv3d", "conv2d-dilation", "conv2d-skips-border", "conv2d-circular"]
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 5e-3}


def on_gpu(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.cuda()
    return tuple(map(on_gpu, x)) if isinstance(x, tuple) else {k: on_gpu(v) for k, v in x.items()}


def relative(actual: torch.Tensor, reference: torch.Tensor) -> float:
    return float((actual.double().cpu() - reference).norm() / reference.norm())


@pytest.mark.parametrize("name", CASES)
def test_jacobian_fisher_and_kernel_in_float64(name: str) -> None:
    model, x, output = ZOO[name].build()
    J = oracle.jacobian(model, x, output).flatten(1, -2)
    model, x = model.cuda(), on_gpu(x)
    assert relative(tt.jacobian(model, x, output=output).dense().flatten(1, -2), J) < 1e-10
    assert relative(tt.ntk(model, x, output=output), expected_kernel(J, J)) < 1e-10
    F = torch.einsum("ncp,ncq->pq", J, J) / len(J)
    data = (x, None)
    for representation in (tt.Dense, tt.Implicit, tt.LowRank):
        found = tt.fisher(model, data, representation, likelihood="gaussian", output=output)
        assert relative(found.dense(), F) < 1e-10
    assert relative(tt.fisher(model, data, tt.Diagonal, likelihood="gaussian", output=output).diag(), F.diag()) < 1e-10
    for representation in (tt.EKFAC, tt.QuasiDiagonal):
        trace = tt.fisher(model, data, representation, likelihood="gaussian", output=output).trace()
        assert relative(torch.as_tensor(trace), F.trace()) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu", "conv2d-groups"])
def test_jacobian_and_fisher_in_float32_whatever_is_allowed(name: str) -> None:
    """TF32 is, by default, to convolutions."""
    model, x, output = ZOO[name].build()
    J = oracle.jacobian(model, x, output).flatten(1, -2)
    model, x, _ = ZOO[name].build(torch.float32)
    model, x = model.cuda(), on_gpu(x)
    found = tt.jacobian(model, x, output=output)
    v = torch.randn(J.shape[2], generator=torch.Generator().manual_seed(0))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert relative(found.dense().flatten(1, -2), J) < 1e-5
        assert relative((found @ v.cuda()).flatten(1), J @ v.double()) < 1e-5
        squares = J.square().sum((0, 1)) / len(J)
        for representation in (tt.Diagonal, tt.BlockDiagonal):
            F = tt.fisher(model, (x, None), representation, likelihood="gaussian", output=output)
            assert relative(F.diag(), squares) < 2e-5
        for representation in (tt.EKFAC, tt.QuasiDiagonal):
            F = tt.fisher(model, (x, None), representation, likelihood="gaussian", output=output)
            assert relative(torch.as_tensor(F.trace()), squares.sum()) < 1e-5
        F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian", output=output)
        assert relative(F @ v.cuda(), torch.einsum("ncp,nc->p", J, J @ v.double()) / len(J)) < 1e-5
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.Diagonal, tt.BlockDiagonal, tt.Implicit])
@pytest.mark.parametrize("name", ["mlp", "lenet", "conv2d-groups", "embedding"])
def test_products_and_solves_are_the_same_when_they_are_recorded(name: str, representation: Any) -> None:
    model, x, output = ZOO[name].build()
    model, x = model.cuda(), on_gpu(x)
    options = {"likelihood": "gaussian", "output": output}
    dense = tt.fisher(model, (x, None), representation, **options).dense().cpu()
    F = tt.fisher(model, (x, None), representation, **options)
    eye = torch.eye(len(dense), dtype=torch.float64)
    for i, damping in enumerate([0.1] * 12 + [0.3] * 3 + [0.1] * 6):
        torch.manual_seed(i)
        before = torch.cuda.get_rng_state()
        v = torch.randn(len(dense), dtype=torch.float64)
        given = v.cuda()
        inference = i % 3 == 0 and representation is not tt.Implicit  # whose products are derivatives
        with torch.inference_mode(inference), torch.cuda.stream(torch.cuda.Stream() if i == 9 else None):
            product, solution = F @ given, F.solve(given, damping=damping)
        torch.cuda.synchronize()
        assert relative(product, dense @ v) < 1e-10
        assert relative(solution, torch.linalg.solve(dense + damping * eye, v)) < 1e-5
        assert torch.equal(given.cpu(), v)
        assert torch.equal(torch.cuda.get_rng_state(), before)
    u = v.cuda().requires_grad_()
    assert relative(torch.autograd.grad((F @ u).sum(), u)[0], dense.sum(0)) < 1e-10
    slope = torch.autograd.grad(F.solve(u, damping=0.1).sum(), u)[0]
    assert relative(slope, torch.linalg.solve(dense + 0.1 * eye, eye.sum(0))) < 1e-5
    V = torch.randn(len(dense), 3, dtype=torch.float64)
    assert relative(torch.func.vmap(lambda w: F @ w, in_dims=1, out_dims=1)(V.cuda()), dense @ V) < 1e-10
    assert relative(F @ V.cuda(), dense @ V) < 1e-10
    copied = copy.deepcopy(F) if representation is not tt.Implicit else F
    assert relative(copied @ v.cuda(), dense @ v) < 1e-10


def test_which_products_are_recorded() -> None:
    model, x, _ = ZOO["lenet"].build(torch.float32)
    model, x = model.cuda(), on_gpu(x)
    F = tt.fisher(model, (x, None), tt.EKFAC)
    I = tt.fisher(model, (x, None), tt.Implicit)
    y = torch.zeros(len(x), dtype=torch.long, device="cuda")
    H = tt.hessian(model, [(x[:2], y[:2]), (x[2:], y[2:])], nn.functional.cross_entropy)
    first = torch.randn(F.size, device="cuda")
    hessian = H @ first
    for _ in range(8):
        v = torch.randn(F.size, device="cuda")
        F @ v
        F.solve(v, damping=0.1)
        I @ v
        H @ v
    assert H.matmat._kept._graph is not None
    assert relative(H @ first, hessian.double().cpu()) < 1e-5
    assert F._kept_products._graph is not None
    assert F._factorized(0.1).solve._graph is not None
    assert I.matmat._kept._graph is not None
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    with pytest.raises(RuntimeError, match="changed"):
        I @ v
    assert relative(F.solve(v, damping=0.1), F.to("cpu").solve(v.cpu(), damping=0.1).double()) < 1e-4


def test_what_synchronizes_is_not_recorded() -> None:
    calls = []

    def function(v: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return v * float(v.sum())

    repeated, v = Repeated(function), torch.ones(3, device="cuda")
    stream = torch.cuda.current_stream()
    for _ in range(8):
        assert repeated(v).tolist() == [3.0] * 3
    assert torch.cuda.get_sync_debug_mode() == 0

    with pytest.raises(RuntimeError):
        record(lambda: function(v))
    assert torch.cuda.current_stream() == stream
    assert torch.rand(2, device="cuda").isfinite().all()
    before = torch.cuda.memory_allocated()
    large = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    large.record_stream(torch.cuda.Stream())
    del large
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_allocated() <= before

    V = torch.randn(100_000, 300, device="cuda")
    product = Repeated(lambda v: 2 * v)
    before = torch.cuda.memory_allocated()
    for i in range(8):
        assert torch.equal(product(V[:, i]), 2 * V[:, i])
        assert torch.equal(product(v[:1].expand(100_000)), torch.full((100_000,), 2.0, device="cuda"))
    assert product._graph is not None
    assert torch.cuda.memory_allocated() - before < 10e6
    assert len(calls) >= 8
    w = torch.ones(3, device="cuda", requires_grad=True)
    product = Repeated(lambda v: v * w, [w])
    for _ in range(8):
        assert product(v).requires_grad
    with torch.no_grad():
        for _ in range(8):
            assert product(v).tolist() == [1.0] * 3
    assert product(v).requires_grad


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*CONVOLUTIONS, "lenet", "residual-gelu", "embedding", "conv2d-groups", "mlp"])
def test_every_way_and_precision(name: str, way: str, precision: str) -> None:
    case = ZOO[name]
    model, x, output = case.build()
    J = oracle.jacobian(model, x, output).flatten(1, -2)
    model, x, _ = case.build(torch.float64 if precision == "float64" else torch.float32)
    K = run_forced(make_job((model.cuda(), on_gpu(x), output), precision=precision), way, edge=2)
    assert relative(K, expected_kernel(J, J)) < TOLERANCE[precision]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("samples", [(1, 1), (5, 7), (40, 90), (70, 400)])
def test_shifted_sums_by_few_blocks_and_many(samples: tuple[int, int], outputs: int) -> None:
    """With few blocks of the kernel several programs share the sum of each, with many they do not."""
    torch.manual_seed(0)
    (n, m), R, S, cells, taps = samples, outputs, 12, 9, 4
    X, D = torch.randn(cells, n, cells, m), torch.randn(S, n, R, S, m, R)
    p, q = torch.randint(-1, cells, (S * S, taps)), torch.randint(cells, (S * S, taps))
    s, t = torch.cartesian_prod(torch.arange(S), torch.arange(S)).T
    read = torch.where((p >= 0)[..., None, None], X[p, :, q], 0.0).sum(1)  # (SS, n, m)
    expected = 0.5 * torch.einsum("znm,znrmq->nrmq", read.double(), D[s, :, :, t].double())
    meetings = torch.cat([torch.stack([s, t], 1)[:, None], torch.stack([p, q], 2)], 1).to("cuda", torch.int32)
    out = torch.ones(n + 1, R, m + 1, R, device="cuda")
    block = out[1:, :, :m]
    add_shifted(block, X.cuda().view(cells * n, -1), D.cuda().view(S * n * R, -1), meetings, 0.5)
    assert relative(block - 1, expected) < 1e-5
    assert bool((out[0] == 1).all())
    assert bool((out[:, :, m] == 1).all())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [128, 512])
def test_split_convolutions_lose_hardly_more_than_float32(channels: int, stride: int) -> None:
    """The inputs have a sign, which is when the cut sums of tensor cores are off most."""
    torch.manual_seed(0)
    module = nn.Conv2d(channels, channels, 3, padding=1, stride=stride).cuda()
    x = torch.randn(32, channels, 8, 8, device="cuda").relu().requires_grad_()
    with SplitConvolutions(), float32_products():
        y = module(x)
        g = torch.randn_like(y)
        (found,) = torch.autograd.grad(y, x, g)
    exact = copy.deepcopy(module).double()
    x64 = x.detach().double().requires_grad_()
    y64 = exact(x64)
    (expected,) = torch.autograd.grad(y64, x64, g.double())
    assert 1e-9 < relative(y.detach(), y64.detach().cpu()) < 3e-6
    assert 1e-9 < relative(found, expected.cpu()) < 3e-6


@pytest.mark.parametrize("edge", [64, 1024])  # small products, in which cuBLAS cuts the sum by itself, and others
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_long_sums_keep_their_low_bits(precision: str, edge: int) -> None:
    """Of half a million terms of one sign tensor cores would lose a thousandth."""
    torch.manual_seed(0)
    x, y = (torch.rand(edge, (1 << 19) - 5000, device="cuda") for _ in range(2))
    x, y = (t.half() if precision == "float16" else t for t in (x, y))
    out = torch.ones(edge, edge, device="cuda")
    with float32_products(matmul=precision if precision == "tf32" else "ieee"):
        add_product(out, x, y, 0.5)
    assert relative(out, (1 + 0.5 * x.double() @ y.double().T).cpu()) < 3e-5


@pytest.mark.parametrize("megabytes", [200, 800])
def test_memory_stays_within_the_budget(megabytes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(64 * 256, 1)).cuda()
    x = torch.randn(1500, 3, 16, 16)  # on the CPU
    tt.ntk(model, x[:4])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tt.ntk(model, x, max_memory=megabytes << 20)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * (megabytes << 20)


def test_top_eigenpairs() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3000, 500, device="cuda") * torch.linspace(1, 0.01, 500, device="cuda")
    K = rows @ rows.T
    values, vectors = spectrum.top(K, 20)
    exact = torch.linalg.eigvalsh(K.double())[-20:].flip(0)
    assert relative(values, exact.cpu()) < 1e-4
    assert float((K @ vectors - vectors * values).norm() / values.norm()) < 1e-4


def test_tf32_is_not_taken_for_mixing_samples() -> None:
    """The user may have allowed TF32, with which a sample alone and one in a batch differ by 1e-3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3072, 100), nn.ReLU(), nn.Linear(100, 1)).cuda()
    x = torch.randn(64, 3072, device="cuda")
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        J = tt.jacobian(model, x).dense()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert J.shape == (64, 1, 307_401)


def test_a_kernel_in_tf32_keeps_the_side_of_every_relu() -> None:
    """With TF32 in the forward pass of this network the kernel would be off by a percent."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3072, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1))
    x = torch.randn(40, 3072)
    J = oracle.jacobian(model.double(), x.double())
    K = tt.ntk(model.float().cuda(), x, precision="tf32")
    assert relative(K, expected_kernel(J, J)) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM", "attention", "encoder, tokens first"])
def test_what_no_layer_holds(kind: str, dtype: torch.dtype) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Parameter(torch.randn(1, 3, 4))
            layers: dict[str, Any] = {
                "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
                "encoder, tokens first": lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0),
            }
            self.layer = layers[kind]() if kind in layers else getattr(nn, kind)(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x + self.place
            if kind == "encoder, tokens first":
                return self.layer(h.transpose(0, 1)).sin().sum(0)
            return (self.layer(h, h, h) if kind == "attention" else self.layer(h))[0].sin().sum(1)

    torch.manual_seed(0)
    model, x = Reader().double().eval(), torch.randn(5, 3, 4, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    model, x = model.to("cuda", dtype), x.to("cuda", dtype)
    places = [p.data_ptr() for p in model.parameters()]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert relative(tt.jacobian(model, x).dense(), J) < tolerance
    P = J.shape[-1]
    v, u = torch.randn(P, dtype=torch.float64), torch.randn(J.shape[:-1], dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tt.TangentWarning)  # forward mode lacks some of these
        assert relative(tt.jacobian(model, x) @ v.to(x), J @ v) < tolerance
        assert relative(tt.jacobian(model, x).T @ u.to(x), torch.einsum("ncp,nc->p", J, u)) < tolerance
        F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")
        assert relative(F @ v.to(x), torch.einsum("ncp,ncq,q->p", J, J, v) / len(x)) < tolerance
        assert torch.isfinite(tt.hessian(model, (x, torch.zeros_like(u).to(x)), nn.functional.mse_loss) @ v.to(x)).all()
    assert relative(tt.ntk(model, x), expected_kernel(J, J)) < tolerance
    assert [p.data_ptr() for p in model.parameters()] == places
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("n", [20, 33, 100, 400, 512, 600])
def test_eigenvectors_in_float32(n: int) -> None:
    """For those up to 512 torch has Jacobi's method used, of which three digits may be wrong."""
    torch.manual_seed(0)
    factor = torch.randn(n, n // 2, dtype=torch.float64)
    exact = (factor @ factor.T / n).float().double() + torch.eye(n)
    M, v = exact.float().cuda(), torch.randn(n, dtype=torch.float64)
    values, Q = eigh(torch.stack([M, 2 * M]))
    assert values.dtype == Q.dtype == torch.float32
    for scale, found, basis in zip((1, 2), values, Q, strict=True):
        assert relative(basis.T @ basis, torch.eye(n)) < 1e-5
        assert relative(basis * found @ basis.T, scale * exact) < 1e-5
    dense, small = DenseOperator(M), torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    assert relative(dense.sqrt_mv(dense.sqrt_mv(v.float().cuda())), exact @ v) < 1e-5
    both = KroneckerOperator(DenseOperator(small.cuda()), dense)
    wanted = torch.linalg.solve(torch.kron(small.double(), exact) + 0.1 * torch.eye(2 * n), v.repeat(2))
    assert relative(both.solve(v.repeat(2).float().cuda(), damping=0.1), wanted) < 1e-5


def test_autocast_around_operators() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)).cuda(), torch.randn(30, 6).cuda()
    v = torch.randn(403).cuda()
    for representation in (tt.Dense, tt.KFAC, tt.EKFAC, tt.QuasiDiagonal, tt.LowRank):
        F = tt.fisher(model, (x, None), representation, likelihood="gaussian")
        with torch.autocast("cuda", dtype=torch.float16):
            G = tt.fisher(model, (x, None), representation, likelihood="gaussian")
            found = G @ v, G.solve(v, damping=0.1), F.inverse(0.1).diag(), G.frobenius()
        wanted = F @ v, F.solve(v, damping=0.1), F.inverse(0.1).diag(), F.frobenius()
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == torch.float32
            assert relative(a, b.double().cpu()) < 1e-5


def test_gauss_newton_and_the_density_of_its_eigenvalues() -> None:
    model, x, _ = ZOO["lenet"].build()
    J, f = oracle.jacobian(model, x), oracle.outputs(model, x)
    y = f + 2 * torch.randn_like(f)
    curved = ((f - y).abs() < 1).double() / f.shape[1]
    expected = torch.einsum("ncp,nc,ncq->pq", J, curved, J) / len(J)
    data, huber = (x.cuda(), y.cuda()), nn.functional.huber_loss
    model = model.cuda()
    for representation in (tt.Dense, tt.Implicit):
        G = tt.gauss_newton(model, data, huber, representation)
        assert relative(G.dense(), expected) < 1e-10
    found = spectrum.density(G, steps=24, probes=8)
    assert found.points.is_cuda
    value, error = found.trace(lambda t: (t.clamp(min=0) + 1).log())
    assert abs(float(value) - float(torch.linalg.eigvalsh(expected).add(1).log().sum())) < 5 * float(error)
    assert float(found.points.max()) == pytest.approx(float(torch.linalg.eigvalsh(expected)[-1]), rel=1e-6)
