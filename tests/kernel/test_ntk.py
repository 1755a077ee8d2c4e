"""ntk() in every way, reduction, precision and tiling against J Jᵀ of the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import oracle
import pytest
import torch
from cases import ZOO, Case, every_case
from forced import REDUCTIONS, WAYS, expected_kernel, fits, make_job, run_forced
from oracle import count, take
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.kernel.distributed import Ranks
from torchtangent.kernel.job import Job
from torchtangent.kernel.panel import Panel
from torchtangent.kernel.plan import make_plan
from torchtangent.kernel.way import DifferentUse

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 5e-3}


def dense(case: Case) -> Tensor:
    return oracle.jacobian_of(case).flatten(1, -2)


def assert_near(actual: Tensor, reference: Tensor, tolerance: float, what: str = "") -> None:
    gap = (actual.double() - reference).norm() / reference.norm().clamp(min=1e-30)
    assert actual.shape == reference.shape
    assert gap <= tolerance, f"{what} relative error {gap:.1e}"


@every_case
@pytest.mark.usefixtures("silence")
def test_every_way_is_exact(case: Case) -> None:
    J = dense(case)
    reduce = REDUCTIONS[len(case.name) % 4]
    job = make_job(case.build(), reduce=reduce)
    for i, way in enumerate(WAYS):
        if fits(job, way):
            K = run_forced(job, way, edge=1 + i % 3)
            assert_near(K, expected_kernel(J, J, reduce), 1e-10, way)
            assert K.equal(K.transpose(0, 1) if K.dim() < 4 else K.permute(1, 0, 3, 2)), f"{way}: not symmetric"


@every_case
@pytest.mark.usefixtures("silence")
def test_default_plan_for_equal_and_different_inputs(case: Case) -> None:
    J = dense(case)
    model, x, output = case.build()
    n = count(x)
    few = take(x, slice(n // 2, n))
    reduce = REDUCTIONS[len(case.name) % 4]
    assert_near(tt.ntk(model, x, output=output, reduce=reduce), expected_kernel(J, J, reduce), 1e-10)
    K = tt.ntk(model, x, few, output=output)
    assert_near(K, expected_kernel(J, J[n // 2 :], "full"), 1e-10)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", ["lenet", "embedding", "conv2d-groups", "tied-convolutions", "mlp"])
def test_every_way_with_every_reduction(name: str, reduce: str) -> None:
    J = dense(ZOO[name])
    job = make_job(ZOO[name].build(), reduce=reduce)
    for way in WAYS:
        assert_near(run_forced(job, way, edge=2, panel=2), expected_kernel(J, J, reduce), 1e-10, way)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_tiles_in_strips_that_share_a_product(reduce: str) -> None:
    """J of a linear map is its input for each output: strips of few samples, of many, and across their ends."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 10, 3, groups=2), nn.Flatten()).double()
    x = torch.randn(300, 4, 3, 3, dtype=torch.float64)
    group = torch.arange(10) // 5
    a = x.view(300, 2, 18)[:, group]  # (N, C, I)
    one = torch.eye(10, dtype=torch.float64)
    J = torch.cat([torch.einsum("nci,ce->ncei", a, one).flatten(2), one.expand(300, -1, -1)], 2)
    for n2 in (None, 100):
        job = Job(model, x, None if n2 is None else x[:n2], reduce=reduce)
        expected = expected_kernel(J, J[:n2], reduce)
        for room in (1 << 25, 50 * expected[0].nbytes):  # 50 samples do not divide a strip's 128
            edges = ((0, 300), (0, n2 or 300))
            job.plan = replace(make_plan(job.task, {"0.weight": "product"}), edges=edges, batch=300, room=room)
            assert_near(job.run(False), expected, 1e-10, f"{n2}, {room}:")


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu", "embedding", "conv2d-groups", "sequence-outputs"])
def test_every_precision(name: str, precision: str) -> None:
    J = dense(ZOO[name])
    problem = ZOO[name].build(torch.float64 if precision == "float64" else torch.float32)
    for reduce in ("full", "trace"):
        job = make_job(problem, reduce=reduce, precision=precision)
        for way in WAYS:
            K = run_forced(job, way, edge=2)
            assert K.dtype == (torch.float64 if precision == "float64" else torch.float32)
            assert_near(K, expected_kernel(J, J, reduce), TOLERANCE[precision], f"{way}, {reduce}:")


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu"])
def test_kernels_of_the_layers_sum_to_the_kernel(name: str) -> None:
    model, x, output = ZOO[name].build()
    parts = tt.ntk(model, x, output=output, per_layer=True)
    assert list(parts) == [n for n, p in model.named_parameters() if p.requires_grad]
    assert_near(sum(parts.values()), tt.ntk(model, x, output=output), 1e-12)
    first = next(iter(parts))
    one = tt.ntk(model, x, output=output, params=first)
    assert_near(parts[first], one, 1e-12)


def test_flatten_orders_rows_by_sample_and_output() -> None:
    case = ZOO["lenet"]
    J = dense(case)
    rows = J.flatten(0, 1)
    model, x, output = case.build()
    assert_near(tt.flatten(tt.ntk(model, x, output=output)), rows @ rows.T, 1e-10)


def test_a_data_set_and_a_tensor_give_the_same() -> None:
    model, x, _ = ZOO["mlp"].build()
    K = tt.ntk(model, x)
    assert K.equal(tt.ntk(model, torch.utils.data.TensorDataset(x)))
    assert K.equal(tt.ntk(model, list(x)))


def test_a_data_set_with_targets_is_explained() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    pairs = torch.utils.data.TensorDataset(x, torch.arange(4))
    for use in (
        lambda: tt.ntk(model, pairs),
        lambda: tt.alignment.target(model, pairs, torch.ones(4, 2)),
        lambda: tt.alignment.rank_tasks(model, pairs, {"one": torch.arange(4) % 2}),
        lambda: tt.sketch.operator(model, pairs),
        lambda: tt.sketch.project(model, pairs, 3),
    ):
        with pytest.raises(TypeError, match=r"is 2 things, and the model was given all of them; if one is a target"):
            use()
    with pytest.raises(TypeError, match=r"give x without it\.\nThe model, of float32, was called with 2 arguments"):
        tt.ntk(model, (x, x))


def test_small_range_of_float16_is_scaled_away() -> None:
    """Gradients of 1e-7 and inputs of 1e4 are outside of float16's range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 1)).double()
    with torch.no_grad():
        model[3].weight *= 1e-7
        model[0].weight *= 1e-4
    x = 1e4 * torch.randn(6, 2, 4, 4, dtype=torch.float64)
    x[3:] *= 100  # a later batch is larger
    J = oracle.jacobian(model, x)
    model, x = model.float(), x.float()
    for way in ("formed", "forming", "locations", "pixels"):
        for part in ("0.weight", "3.weight"):
            K = run_forced(make_job((model, x, None), precision="float16", params=part), way, edge=6)
            start, end = {"0.weight": (0, 54), "3.weight": (57, 105)}[part]
            own = J[..., start:end]
            assert_near(K, expected_kernel(own, own, "full"), 1e-3)


def test_the_kernel_is_positive_semidefinite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, 1))
    x = torch.randn(60, 3, 8, 8)
    for precision in ("float32", "bfloat16", "float16"):
        eigenvalues = torch.linalg.eigvalsh(tt.ntk(model, x, reduce="trace", precision=precision).double())
        assert eigenvalues[0] > -1e-5 * eigenvalues[-1]


def test_explain_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    model, x, output = ZOO["lenet"].build()
    tt.ntk(model, x, output=output, explain=True)
    said = capsys.readouterr().out
    for word in ("way", "multiplications", "bytes", "seconds", *dict(model.named_parameters())):
        assert word in said


def test_progress_reports_all_pairs() -> None:
    seen: list[tuple[float, float]] = []
    model, x, output = ZOO["mlp"].build()
    tt.ntk(model, x, output=output, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_weight_formed_from_factors_and_by_the_fallback_has_one_order() -> None:
    """A transposed convolution's matrix order is not the order of its weight; a batch may need the fallback."""

    class Lone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t = nn.ConvTranspose2d(2, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                return nn.functional.conv_transpose2d(x, self.t.weight, self.t.bias).flatten(1)[:, :4]
            return self.t(x).flatten(1)[:, :4]

    torch.manual_seed(0)
    model, x = Lone().double(), torch.randn(4, 2, 2, 2, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    assert_near(tt.ntk(model, x, x[:1]), expected_kernel(J, J[:1]), 1e-10)


class BothWays(nn.Module):
    """A weight and its transpose; the batch says which."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.head = nn.Parameter(torch.randn(6, 6) / 3), nn.Linear(6, 2)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.head((x @ (self.W.T if bool(other[0]) else self.W)).tanh())


class TwoScales(nn.Module):
    """Two convolutions share a weight; the batch says which."""

    def __init__(self, near: nn.Module, far: nn.Module) -> None:
        super().__init__()
        self.near, self.far, self.head = near, far, nn.Linear(16, 2)
        far.weight = near.weight

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.head((self.far if bool(other[0]) else self.near)(x).tanh().mean((2, 3)))


USED_OTHERWISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transposed": (BothWays, (6,)),
    "dilated": (
        lambda: TwoScales(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=2, dilation=2, bias=False)
        ),
        (16, 3, 3),
    ),
    "a convolution's transpose": (
        lambda: TwoScales(
            nn.ConvTranspose2d(16, 16, 3, padding=1, bias=False),
            nn.ConvTranspose2d(16, 16, 3, padding=2, dilation=2, bias=False),
        ),
        (16, 3, 3),
    ),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", USED_OTHERWISE)
def test_a_weight_used_otherwise_by_the_other_inputs(name: str) -> None:
    """Its factors have the same shapes on both sides, and another meaning."""
    make, shape = USED_OTHERWISE[name]
    torch.manual_seed(0)
    model = make().double()
    x1, x2 = (
        (torch.randn(n, *shape, dtype=torch.float64), torch.full((n,), other)) for n, other in ((5, False), (4, True))
    )
    J1, J2 = (oracle.jacobian(model, x) for x in (x1, x2))
    for way in WAYS:
        job = Job(model, x1, x2)
        job.plan = make_plan(job.task, fits(job, way))
        assert_near(job.run(False), expected_kernel(J1, J2), 1e-10, way)


def test_a_transposed_convolution_keeps_its_way_in_every_batch() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.ConvTranspose2d(8, 16, 2), nn.Tanh(), nn.Flatten())
    model, x = nn.Sequential(*body, nn.Linear(144, 1)).double(), torch.randn(9, 8, 2, 2, dtype=torch.float64)
    job = make_job((model, x, None))
    K = run_forced(job, "forming", edge=3)
    assert job.plan.ways["0.weight"] == "forming"
    J = oracle.jacobian(model, x)
    assert_near(K, expected_kernel(J, J), 1e-10)


def test_gradients_near_the_end_of_float32_do_not_overflow_their_scale() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        model[2].weight *= 1e-30
    x = torch.randn(5, 3)
    K = tt.ntk(model, x, precision="float16")
    assert_near(K, tt.ntk(model.double(), x.double()), 1e-3)


def test_out_of_memory_in_a_backward_pass_is_not_taken_for_a_lack_of_vectorization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchtangent.jacobians.capture import Capture

    model, x, _ = ZOO["mlp"].build()
    trace = Capture(model).trace(x)

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.autograd, "grad", full)
    with pytest.raises(torch.OutOfMemoryError):
        trace.pull(trace.units())
    assert trace.capture.batched


def test_inputs_without_further_axes() -> None:
    """Also where the sum of them overflows."""

    class Column(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x[:, None])

    with pytest.raises(ValueError, match="NaN or infinity, first in sample 1"):
        tt.ntk(Column(), torch.tensor([1.0, float("nan")]))
    x = torch.full((3000,), 60.0).half()
    K = tt.ntk(Column().half(), x, reduce="trace")
    torch.testing.assert_close(K, torch.full((3000, 3000), 3 * 3601.0))


def _wide() -> nn.Module:
    return nn.Sequential(nn.Conv2d(256, 1, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4, 500))


def _strided() -> nn.Module:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(512, 4, 5, padding=2, stride=2), nn.Tanh(), pool, nn.Linear(4, 300))


@pytest.mark.parametrize(
    ("model", "size", "reduce"), [(_wide, (100, 256, 2, 2), "diag"), (_strided, (8, 512, 8, 8), "full")]
)
def test_what_one_strip_takes_is_planned_for(model: Callable, size: tuple[int, ...], reduce: str) -> None:
    """The products of a single sample or unit may be larger than all else."""
    job = Job(model(), torch.randn(size), reduce=reduce, max_memory=210 << 20)
    edge = max(job.plan.edges[0][1], job.plan.edges[1][1])
    least = max(way.cost().least for part in job.plan.parts for way in part.ways)
    assert 4 * edge * least < 105 << 20


def test_a_kernel_that_overflows_is_refused() -> None:
    """Its entries are of order one, but the inputs' squares are not."""
    model, x = nn.Linear(200, 50, bias=False), torch.randn(30, 200)
    with pytest.raises(ValueError, match=r"The kernel has NaN or infinity: products .* range of torch.float32"):
        tt.ntk(model, 1e20 * x, output=lambda f: 1e-20 * f[:, :1])
    K = tt.ntk(model.double(), 1e20 * x.double(), output=lambda f: 1e-20 * f[:, :1])
    torch.testing.assert_close(K[..., 0, 0], x.double() @ x.double().T)


def test_inputs_made_in_inference_mode() -> None:
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    with torch.inference_mode():
        frozen = x.clone()
    assert tt.ntk(model, frozen).equal(tt.ntk(model, x))
    assert tt.jacobian(model, frozen).dense().equal(tt.jacobian(model, x).dense())


def test_a_precision_may_be_a_dtype() -> None:
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    assert tt.ntk(model, x, precision=torch.bfloat16).equal(tt.ntk(model, x, precision="bfloat16"))
    with pytest.raises(ValueError, match=r"precision='half' is not known. Choose one of 'float64', 'float32', 'tf32'"):
        tt.ntk(model, x, precision="half")


def test_parameters_used_differently_are_named_all_at_once() -> None:
    """Otherwise a model of many experts would be planned anew for each."""
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Conv1d(2, 1, 3), nn.Flatten()).double()
    job, longer = (Job(model, torch.randn(4, 1, n).double(), reduce="trace") for n in (9, 11))
    plan = make_plan(job.task, {"0.weight": "forming", "2.weight": "locations"})
    with pytest.raises(DifferentUse) as error:
        Panel(plan.parts, job.precision, 4, Ranks()).append(longer.task.layers)
    assert set(error.value.args) == {"0.weight", "2.weight"}
