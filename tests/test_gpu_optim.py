"""KFAC and EKFAC on a GPU, where there is one: the dense formula of the CPU, autocast with a scaler, checkpoints."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import flat
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC, Adaptive, SuperNat, replay
from torchtangent.optim.decompose import eigenbasis

sys.path.append(str(Path(__file__).parent / "optim"))
import dense_step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # torch's, in the backward thread's first product
]
METHODS: dict[str, Callable[..., Any]] = {
    "ekfac": partial(EKFAC, kl_clip=None),
    "average": partial(EKFAC, scalings="average", kl_clip=None),
    "kfac": partial(KFAC, kl_clip=None),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "sequence": (lambda: nn.Linear(4, 3), (5, 4)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=2, padding=1), (2, 5, 4)),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1), (4, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), (2, 2, 2)),
}
N, EPS, LR = 7, 0.03, 0.5


def train(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 1) -> None:
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()


def network() -> nn.Module:
    """All kinds of blocks at once."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 16, 10)),
    ).cuda()


def images(n: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 8, 8).cuda(), torch.randint(0, 10, (n,)).cuda()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("layer", "sua", "rule"),
    [(name, False, rule) for name in LAYERS for rule in ("single", "factored", "root")]
    + [(name, True, rule) for name in ("conv2d", "groups") for rule in ("single", "factored", "root")],
)
def test_a_step_is_the_dense_formula(layer: str, sua: bool, rule: str, method: str) -> None:
    make, shape = LAYERS[layer]
    x, y = torch.randn(N, *shape).double(), torch.randint(0, 3, (N,))
    first = make().double()
    model = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(first(x).flatten(1).shape[1], 3).double())
    before = copy.deepcopy(model)
    model = model.cuda()
    train(model, METHODS[method](model, LR, EPS, damping_rule=rule, sua=sua), x.cuda(), y.cuda())
    for i in (0, 3):
        old, new = before[i], model[i].cpu()
        uncorrelated = sua and i == 0
        A, B, J = dense_step.moments(old, dense_step.records(before, old, x, y, F.cross_entropy), sua=uncorrelated)
        moved = [p - q for p, q in zip(new.parameters(), old.parameters(), strict=True)]
        for g in range(len(A)):
            taps = old.weight[0, 0].numel() if uncorrelated else 1
            wanted = -LR * dense_step.direction(method, rule, EPS, A[g], B[g], J[:, g], taps=taps)
            torch.testing.assert_close(dense_step.per_sample(new, moved)[g], wanted, rtol=1e-7, atol=1e-9)


def test_norms_have_their_exact_block() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(N, 4).double(), torch.randint(0, 3, (N,))
    model = copy.deepcopy(net).cuda()
    train(model, EKFAC(model, LR, EPS, kl_clip=None), x.cuda(), y.cuda())
    params = list(net[1].parameters())
    grads = [torch.autograd.grad(F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), params) for i in range(N)]
    J = torch.stack([torch.cat(g) for g in grads])
    wanted = torch.linalg.solve(J.T @ J / N + EPS * torch.eye(10).double(), J.mean(0))
    moved = torch.cat([p - q.cpu() for p, q in zip(params, model[1].parameters(), strict=True)])
    torch.testing.assert_close(moved, LR * wanted, rtol=1e-7, atol=1e-9)


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(5 * 8, 3))


@pytest.mark.parametrize("method", METHODS)
def test_attention_is_preconditioned_as_on_the_cpu(method: str) -> None:
    x, y = torch.randn(N, 5, 8).double(), torch.randint(0, 3, (N,))
    here, there = transformer().double(), transformer().double().cuda()
    train(here, METHODS[method](here, 0.1, EPS), x, y)
    opt = METHODS[method](there, 0.1, EPS)
    train(there, opt, x.cuda(), y.cuda())
    assert "mean gradients" not in opt.explain()
    torch.testing.assert_close(flat(there).cpu(), flat(here), rtol=1e-6, atol=1e-8)


def test_jacobians_in_between_are_not_recorded() -> None:
    """Backward passes on a GPU run in threads of their own."""
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).cuda(), images()
    opt = EKFAC(model, 0.1, EPS)
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    tt.jacobian(model, x[:4]).dense()
    loss.backward()
    tt.jacobian(model, x[:4]).dense()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tt.TangentWarning)
        opt.step()
    assert "more than the recorded part" not in opt.explain()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_under_autocast(dtype: torch.dtype) -> None:
    model, x, y = transformer().cuda(), torch.randn(64, 5, 8).cuda(), torch.randint(0, 3, (64,)).cuda()
    opt = EKFAC(model, 0.1, 0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(float(loss.detach()))
    assert "mean gradients" not in opt.explain()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_the_same_run(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, if torch itself is deterministic; the checkpoint may come from the CPU."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)

    def make(model: nn.Module) -> Any:
        return METHODS[method](model, 0.02, 0.1, momentum=0.9, basis_every=5, weight_decay=1e-3, sua=True)

    model, batches = network(), [images() for _ in range(27)]
    opt = make(model)
    for x, y in batches[:7]:
        train(model, opt, x, y)
    saved = copy.deepcopy(model.state_dict()), _on_cpu(opt.state_dict())
    ends = []
    for resumed in (False, True):
        if resumed:
            model = network()
            opt = make(model)
            model.load_state_dict(saved[0])
            opt.load_state_dict(saved[1])
        torch.manual_seed(1)
        for x, y in batches[7:]:
            train(model, opt, x, y)
        ends.append(flat(model))
    assert torch.equal(*ends)


def _on_cpu(found: Any) -> Any:
    if isinstance(found, Tensor):
        return found.cpu().clone()
    if isinstance(found, dict):
        return {key: _on_cpu(value) for key, value in found.items()}
    return [_on_cpu(value) for value in found] if isinstance(found, list) else found


@pytest.mark.parametrize("sua", [False, True])
@pytest.mark.parametrize("method", ["average", "kfac"])
def test_steps_from_a_graph_are_the_same_steps(method: str, sua: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit; also with a smaller batch now and then, another precision of products, and weight decay."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    graphs: list[Any] = []
    record = replay.record
    monkeypatch.setattr(replay, "record", lambda compute: graphs.append(record(compute)) or graphs[-1])
    ends = []
    for graphed in (True, False):
        if not graphed:
            monkeypatch.setattr(replay, "_suit", lambda method, tasks: False)
        model = network().eval()
        opt = METHODS[method](model, 0.02, 0.1, momentum=0.9, basis_every=7, weight_decay=1e-3, sua=sua)
        torch.manual_seed(1)
        for i in range(30):
            torch.set_float32_matmul_precision("high" if i >= 20 else "highest")
            train(model, opt, *images(16 if i % 6 == 5 else 32))
        torch.set_float32_matmul_precision("highest")
        ends.append(flat(model))
    assert len(graphs) == 2
    assert torch.equal(*ends)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype: torch.dtype, method: str) -> None:
    """A scaler that begins too high finds its scale, and the step is nearly that of float32."""
    x, y = images(64)
    net = network().eval()
    moved = []
    for mixed in (False, True):
        model = copy.deepcopy(net)
        opt = METHODS[method](model, 0.1, 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, enabled=mixed and dtype == torch.float16)
        while opt.steps < 1:
            opt.zero_grad()
            with torch.autocast("cuda", dtype, enabled=mixed):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        assert bool(opt.skipped) == scaler.is_enabled()
        moved.append(flat(model) - flat(net))
    difference = torch.linalg.vector_norm(moved[1] - moved[0]) / torch.linalg.vector_norm(moved[0])
    assert 0 < difference < (0.05 if dtype == torch.float16 else 0.15)


@pytest.mark.parametrize("steps", [2, 8])
@pytest.mark.parametrize("method", METHODS)
def test_one_transfer_a_step(method: str, steps: int) -> None:
    """Between decompositions the host waits once, to know that all is finite."""
    model, (x, y) = network(), images()
    opt = METHODS[method](model, 0.02, 0.1, momentum=0.9, sua=True)
    train(model, opt, x, y, steps=steps)
    F.cross_entropy(model(x), y).backward()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchronizing CUDA operation") as caught:
            opt.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchronizing" in str(w.message) for w in caught) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_penalty_is_noticed_at_a_renewal(method: str) -> None:
    """Rounding alone, of TF32 as well, is none."""
    model, (x, y) = network(), images()
    opt = METHODS[method](model, 0.02, 0.1, basis_every=2)
    train(model, opt, x, y, steps=4)
    opt.zero_grad()
    (F.cross_entropy(model(x), y) + sum(p.square().sum() for p in model.parameters())).backward()
    with pytest.warns(tt.TangentWarning, match="have a part that no layer recorded"):
        opt.step()


def test_adaptive_damping_and_accumulation() -> None:
    model, (x, y) = network(), images()
    opt = EKFAC(model, 0.05, Adaptive(0.1, every=1), kl_clip=1e-2)

    def closure() -> Tensor:
        opt.zero_grad()
        losses = [
            F.cross_entropy(model(a), b, reduction="sum") / len(x)
            for a, b in zip(x.split(20), y.split(20), strict=True)
        ]
        for loss in losses:
            loss.backward()
        return sum(losses).detach()

    first = [float(opt.step(closure)) for _ in range(10)]
    assert first[-1] < first[0]
    assert opt.param_groups[0]["damping"] != 0.1


@pytest.mark.parametrize("size", [3, 200, 512, 513])
def test_eigenvectors_are_those_of_float64(size: int) -> None:
    """Whatever is used inside, float32 comes back, and is orthonormal and exact to its rounding."""
    factor = torch.randn(2, size, 2 * size).double()
    M = (factor @ factor.mT / size).float()
    values, vectors = eigenbasis(M.cuda(), "test")
    assert values.dtype == vectors.dtype == torch.float32
    values, vectors = values.cpu().double(), vectors.cpu().double()
    torch.testing.assert_close(values, torch.linalg.eigvalsh(M.double()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(size).double().expand(2, -1, -1), rtol=0, atol=1e-4)
    torch.testing.assert_close(vectors * values.unsqueeze(1) @ vectors.mT, M.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "size"), [(3, 40), (100, 400), (300, 1000)])
def test_eigenvectors_of_a_few_rows(rows: int, size: int) -> None:
    M = torch.randn(1, rows, size)
    values, vectors = (t.cpu().double() for t in eigenbasis(M.cuda(), "test"))
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(size).double()[None], rtol=0, atol=1e-4)
    wanted = M.double().mT @ M.double()
    torch.testing.assert_close(vectors * values.unsqueeze(1) @ vectors.mT, wanted, rtol=1e-4, atol=1e-5 * size)


def test_supernat() -> None:
    model, x, y = nn.Linear(4, 2).double(), torch.randn(12, 4).double(), torch.randn(12, 2).double()
    twin = copy.deepcopy(model).cuda()
    for net, a, b in ((model, x, y), (twin, x.cuda(), y.cuda())):
        opt = SuperNat(net, a, 0.05)
        for _ in range(5):
            opt.zero_grad()
            ((net(a) - b).square().sum() / 2).backward()
            opt.step()
    torch.testing.assert_close(flat(twin).cpu(), flat(model), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", [EKFAC, KFAC])
def test_states_follow_a_model_to_the_gpu(method: Any) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    there, x, y = copy.deepcopy(here), torch.randn(20, 5).double(), torch.randint(0, 3, (20,))
    optimizers = {model: method(model, 0.1, 0.1, momentum=0.5) for model in (here, there)}
    for step in range(8):
        if step == 3:
            there.cuda()
        for model, opt in optimizers.items():
            device = next(model.parameters()).device
            opt.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            opt.step()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-8, atol=1e-10)
