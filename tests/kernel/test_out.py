"""ntk(..., out=path): kernels that are written tile by tile, resumed, shared by ranks, and never half-read."""

from __future__ import annotations

import os
import re
import resource
import signal
import weakref
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from children import CHILDREN, killed
from torch import distributed, nn

import torchtangent as tt
from torchtangent import progress
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.trace import Trace
from torchtangent.kernel import budget, plan, task
from torchtangent.kernel.budget import MEMORY
from torchtangent.kernel.job import Held, Job
from torchtangent.kernel.panel import Panel
from torchtangent.kernel.store import KernelStore
from torchtangent.kernel.tiles import Tile
from torchtangent.operators import memory


def problem(n: int = 13) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2))
    return model, torch.randn(n, 1, 4, 4)


def small_tiles(monkeypatch: pytest.MonkeyPatch, edge: int = 4) -> None:
    monkeypatch.setattr(task, "_EDGE", {"cpu": edge, "cuda": edge})


@pytest.mark.parametrize("reduce", ["full", "trace", "sum", "diag"])
def test_the_file_holds_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reduce: str) -> None:
    small_tiles(monkeypatch)
    model, x = problem()
    K = tt.ntk(model, x, reduce=reduce, out=tmp_path / "K.npy")
    assert torch.from_numpy(np.array(K)).equal(tt.ntk(model, x, reduce=reduce))
    assert np.array_equal(np.load(tmp_path / "K.npy", mmap_mode="r"), K)
    other = tt.ntk(model, x, x[:5], reduce=reduce, out=tmp_path / "L.npy")
    assert torch.from_numpy(np.array(other)).equal(tt.ntk(model, x, x[:5], reduce=reduce))


def test_a_stopped_run_goes_on_with_the_stored_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)
    model, x = problem()
    whole = tt.ntk(model, x)
    path, write, written = tmp_path / "K.npy", KernelStore.write, []

    def stop(self: KernelStore, tile: Tile, block: torch.Tensor) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(tile)
        write(self, tile, block)

    monkeypatch.setattr(KernelStore, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        tt.ntk(model, x, out=path)
    with pytest.raises((ValueError, OSError)):
        np.load(path)
    monkeypatch.setattr(KernelStore, "write", lambda *a: (written.append(a[1]), write(*a)))
    small_tiles(monkeypatch, edge=9)  # another plan today; the stored one counts
    K = tt.ntk(model, x, out=path)
    assert len(written) == 10, "tiles of 4 of 13 samples: 10 in the lower half, each written once"
    assert torch.from_numpy(np.array(K)).equal(whole)


@pytest.mark.parametrize(("samples", "others"), [(1, None), (3, None), (13, None), (13, 5)])
@pytest.mark.parametrize("edge", [1, 4])
def test_progress_counts_the_pairs_that_are_computed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    samples: int,
    others: int | None,
    edge: int,
) -> None:
    """In memory as on disk; and the line ends at 100 %."""
    small_tiles(monkeypatch, edge)
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    monkeypatch.setattr(progress, "_PAUSE", -1.0)
    model, x = problem(samples)
    data = (x,) if others is None else (x, x[:others])
    pairs = samples * (samples + 1) // 2 if others is None else samples * others
    for i, out in enumerate((None, tmp_path / "K.npy")):
        seen: list[tuple[int, int | None]] = []
        tt.ntk(model, *data, out=out, progress=lambda *done, seen=seen: seen.append(done))
        assert seen[-1] == (pairs, pairs)
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        tt.ntk(model, *data, out=None if out is None else tmp_path / f"{i}.npy", progress=True)
        assert capsys.readouterr().err.split("\r")[-1].startswith("kernel 100.0%")


def test_a_kernel_of_something_else_is_refused(tmp_path: Path) -> None:
    model, x = problem()
    tt.ntk(model, x, out=tmp_path / "K.npy")
    with pytest.raises(ValueError, match="x1"):
        tt.ntk(model, x + 1, out=tmp_path / "K.npy")
    with pytest.raises(ValueError, match="precision"):
        tt.ntk(model, x, out=tmp_path / "K.npy", precision="bfloat16")
    with torch.no_grad():
        model[0].bias += 1
    with pytest.raises(ValueError, match="parameters"):
        tt.ntk(model, x, out=tmp_path / "K.npy")


def test_another_function_of_the_same_parameters_is_refused(tmp_path: Path) -> None:
    model, x = problem()
    tt.ntk(model, x, out=tmp_path / "K.npy")
    model[1] = nn.ReLU()
    with pytest.raises(ValueError, match="architecture"):
        tt.ntk(model, x, out=tmp_path / "K.npy")
    model[1] = nn.Tanh()
    with pytest.raises(ValueError, match="same parameters but other outputs"):
        tt.ntk(model, x, output=torch.sin, out=tmp_path / "K.npy")

    class Switched(nn.Linear):
        def forward(self, x: torch.Tensor, double: bool) -> torch.Tensor:
            return super().forward(x) * (2 if double else 1)

    model, x = Switched(3, 2), torch.randn(4, 3)
    tt.ntk(model, (x, True), out=tmp_path / "L.npy")
    with pytest.raises(ValueError, match="x1"):
        tt.ntk(model, (x, False), out=tmp_path / "L.npy")


def write_share(path: Path, precision: str, meeting: Path, rank: int, last: int | None) -> None:
    """What one of two ranks does; with `last`, it is killed when it has written so many tiles."""
    torch.set_num_threads(1)
    task._EDGE = {"cpu": 4, "cuda": 4}
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    write, written = KernelStore.write, []

    def count(self: KernelStore, tile: Tile, block: torch.Tensor) -> None:
        write(self, tile, block)
        written.append(tile)
        if len(written) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    KernelStore.write = count
    model, x = problem(40)
    seen: list[tuple[int, int | None]] = []
    tt.ntk(model, x, out=path, precision=precision, progress=lambda *done: seen.append(done))
    assert written
    if rank == 0:
        assert seen[-1][0] == seen[-1][1]
        assert seen == sorted(seen)
    distributed.destroy_process_group()


@pytest.mark.parametrize(("fail", "precision"), [(False, "float16"), (True, "float32")])
def test_two_ranks_share_the_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool, precision: str) -> None:
    """Also when one of them is killed half-way: both are started again and go on from the store."""
    path = tmp_path / "K.npy"

    def start(meeting: str, *last: int | None) -> list[BaseProcess]:
        arguments = [(path, precision, tmp_path / meeting, rank, last[rank]) for rank in range(2)]
        ranks = [CHILDREN.Process(target=write_share, args=given) for given in arguments]
        for process in ranks:
            process.start()
        return ranks

    if fail:
        first, second = start("meeting", None, 2)
        second.join(120)
        first.kill()  # as torchrun does
        first.join()
        assert second.exitcode == -signal.SIGKILL
        with pytest.raises((ValueError, OSError)):
            tt.load_kernel(path)
    for process in start("again", None, None):
        process.join(120)
        assert process.exitcode == 0
    small_tiles(monkeypatch)
    model, x = problem(40)
    K = torch.from_numpy(np.array(tt.load_kernel(path, verify=True)))
    expected = tt.ntk(model, x, precision=precision)
    torch.testing.assert_close(K, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def write_all(path: Path, begun: Connection) -> None:
    """The whole kernel in small tiles; says when one is written."""
    torch.set_num_threads(1)
    task._EDGE = {"cpu": 4, "cuda": 4}
    model, x = problem(100)
    tt.ntk(model, x, out=path, progress=lambda done, total: begun.send(done))


def test_killed_at_random_moments_the_result_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL 20 times while tiles are computed and written; whenever a kernel is done before, another is begun."""
    kills, paths = 0, [tmp_path / "0.npy"]
    while kills < 20:
        died = killed(write_all, paths[-1], within=0.03)
        kills += died
        assert died or paths[-1].exists()
        if paths[-1].exists():
            paths.append(tmp_path / f"{len(paths)}.npy")
    small_tiles(monkeypatch)
    torch.set_num_threads(1)
    model, x = problem(100)
    tt.ntk(model, x, out=paths[-1])
    for path in paths:
        assert torch.from_numpy(np.array(tt.load_kernel(path, verify=True))).equal(tt.ntk(model, x))


def test_a_budget_too_small_names_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    with pytest.raises(ValueError, match=r"max_memory of 1,000 bytes is too small.*needs ([\d,]+) bytes") as error:
        tt.ntk(model, x, max_memory=1000)
    least = int(str(error.value).split("needs ")[1].split(" ")[0].replace(",", ""))
    torch.testing.assert_close(tt.ntk(model, x, max_memory=least), tt.ntk(model, x))
    with pytest.raises(ValueError, match="too small"):
        tt.ntk(model, x, max_memory=least // 2)


def test_the_environment_may_set_the_fraction_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    whole = Job(model, x).budget
    monkeypatch.setenv(MEMORY, "0.25")
    assert Job(model, x).budget == pytest.approx(whole / 2, abs=1)
    for wrong in ("0", "2", "much"):
        monkeypatch.setenv(MEMORY, wrong)
        with pytest.raises(ValueError, match=f"{MEMORY}={wrong} .* not a fraction"):
            Job(model, x)


@pytest.mark.parametrize(
    ("limits", "bytes_"),
    [
        (("6000", None), 6000),
        (("max", None), None),
        ((None, "7000"), 7000),
        ((None, "9223372036854771712"), None),
        (("6000", "7000"), 6000),
    ],
)
def test_a_container_may_have_less_memory_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[str | None, str | None], bytes_: int | None
) -> None:
    monkeypatch.delenv(MEMORY, raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    files = [tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"]
    monkeypatch.setattr(memory, "_CONTAINERS", [(tmp_path, file.name, "used", "files") for file in files])
    machine = budget.default_budget(torch.device("cpu"))
    for file, limit in zip(files, limits, strict=True):
        if limit is not None:
            file.write_text(limit + "\n")
    assert budget.default_budget(torch.device("cpu")) == (machine if bytes_ is None else bytes_ // 2)


def test_ranks_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.delenv(MEMORY, raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = budget.default_budget(cpu)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert budget.default_budget(cpu) == pytest.approx(whole / 4, abs=1)
    monkeypatch.setenv(MEMORY, "0.5")  # what is said is for each
    assert budget.default_budget(cpu) == whole


def peak_of(budget: int, samples: int, outputs: int, found: Connection) -> None:
    """Send how far a kernel raises this process's peak of resident memory, in bytes."""
    torch.set_num_threads(1)
    body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(32 * 144, 64), nn.ReLU(), nn.Linear(64, outputs))
    x = torch.randn(samples, 3, 16, 16)
    tt.ntk(model, x[:3])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tt.ntk(model, x, max_memory=budget)
    found.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)


@pytest.mark.parametrize(("megabytes", "samples", "outputs"), [(60, 1000, 1), (250, 3000, 1), (200, 300, 10)])
def test_resident_memory_stays_within_the_budget(megabytes: int, samples: int, outputs: int) -> None:
    """Kept whole, each of these would take gigabytes: 36 kB of activations and 5 to 50 kB of factors for a sample."""
    receiver, sender = CHILDREN.Pipe(duplex=False)
    process = CHILDREN.Process(target=peak_of, args=(megabytes << 20, samples, outputs, sender))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    peak = receiver.recv()
    assert 0 < peak <= 1.1 * (megabytes << 20), f"{peak >> 20} MiB of {megabytes}"


def test_out_of_memory_halves_the_tiles_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    whole = tt.ntk(model, x)
    contract, layers = Job._contract, Trace.layers

    def tight(self: Job, tile: Tile, left: Held, right: Held, blocks: list[torch.Tensor]) -> None:
        contract(self, tile, left, right, blocks)
        if tile.shape[0] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def narrow(self: Trace, *, summed: bool = False) -> dict[str, LayerJacobian]:
        if len(self.outputs) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return layers(self, summed=summed)

    monkeypatch.setattr(Job, "_contract", tight)
    monkeypatch.setattr(Trace, "layers", narrow)
    with pytest.warns(tt.TangentWarning, match="Memory ran out") as said:
        K = tt.ntk(model, x)
    assert [str(w.message).split("; ")[0] for w in said][:3] == [
        "Memory ran out with 13 samples captured at a time",
        "Memory ran out with 6 samples captured at a time",
        "Memory ran out with 13 rows of a tile",
    ]
    torch.testing.assert_close(K, whole)
    assert K.equal(K.permute(1, 0, 3, 2))


def test_a_batch_that_did_not_fit_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    whole, ready = tt.ntk(model, x), Job(model, x)
    append, layers = Panel.append, Trace.layers
    factors: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watched(self: Trace, *, summed: bool = False) -> dict[str, LayerJacobian]:
        alive.append(sum(factor() is not None for factor in factors))
        found = layers(self, summed=summed)
        factors.extend(weakref.ref(layer.d) for layer in found.values())
        return found

    def tight(self: Panel, layers: dict[str, LayerJacobian]) -> None:
        if len(layers["0.weight"].d) > 7:
            raise torch.OutOfMemoryError("CUDA out of memory")
        append(self, {name: replace(layer, d=layer.d.clone()) for name, layer in layers.items()})

    monkeypatch.setattr(Trace, "layers", watched)
    monkeypatch.setattr(Panel, "append", tight)
    with pytest.warns(tt.TangentWarning, match="Memory ran out with 13 samples captured at a time"):
        K = ready.run(False)
    torch.testing.assert_close(K, whole)
    assert alive == [0] * 4  # 13 samples, then 6, 6 and 1


def test_wrong_inputs_are_named() -> None:
    model, x = problem()
    with pytest.raises(ValueError, match="different shapes"):
        tt.ntk(model, x, torch.randn(3, 1, 5, 5))
    bad = x.clone()
    bad[7, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity, first in sample 7"):
        tt.ntk(model, bad)
    with pytest.raises(ValueError, match="'full', 'trace', 'sum', 'diag'"):
        tt.ntk(model, x, reduce="mean")
    with pytest.raises(ValueError, match="'float64', 'float32', 'tf32'"):
        tt.ntk(model, x, precision="half")
    with pytest.raises(ValueError, match="per_layer"):
        tt.ntk(model, x, per_layer=True, out="K.npy")
    with pytest.raises(TypeError, match="tensor, a tuple, a dict or a data set"):
        tt.ntk(model, iter([x]))
    with pytest.raises(ValueError, match="takes a kernel"):
        tt.flatten(torch.ones(2, 2))


def test_a_parameter_used_differently_in_later_batches_is_still_exact() -> None:
    class Routed(nn.Module):
        """Its second layer is skipped when all samples of the batch are positive."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return torch.where(x[:, :1] > 0, h, self.second(h)) if bool((x[:, 0] <= 0).any()) else h

    torch.manual_seed(0)
    model = Routed().double()
    x = torch.randn(8, 3, dtype=torch.float64)
    x[:, 0] = torch.tensor([-1.0, 1, 1, 1, 1, 1, -1, 1])
    job = Job(model, x)
    job.plan = replace(job.plan, edges=((0, 2, 4, 6, 8),) * 2, panel=1, batch=2)
    J = oracle.jacobian(model, x)
    with pytest.warns(tt.TangentWarning):
        K = job.run(False)
    torch.testing.assert_close(K, torch.einsum("ncp,mep->nmce", J, J), rtol=1e-10, atol=1e-12)


def test_a_bias_used_differently_in_later_batches_is_still_exact() -> None:
    class Shifted(nn.Module):
        """Its bias is added once more where all samples of the batch are positive."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.second(torch.tanh(h if bool((x[:, 0] <= 0).any()) else h + self.first.bias))

    torch.manual_seed(0)
    model = Shifted().double()
    x = torch.randn(6, 3, dtype=torch.float64)
    x[:, 0] = torch.tensor([-1.0, -1, 1, 1, -1, -1])
    job = Job(model, x)
    chosen = plan.make_plan(job.task, {"first.weight": "product", "second.weight": "product"})
    assert [part.names for part in chosen.parts] == [("first.weight", "first.bias"), ("second.weight", "second.bias")]
    job.plan = replace(chosen, edges=((0, 2, 4, 6),) * 2, panel=1, batch=2)
    J = oracle.jacobian(model, x)
    K = job.run(False)
    torch.testing.assert_close(K, torch.einsum("ncp,mep->nmce", J, J), rtol=1e-10, atol=1e-12)


def test_a_stored_plan_that_needs_more_memory_is_followed_and_said() -> None:
    model, x = problem(200)
    job = Job(model, x)
    stored = replace(job.plan, batch=2 * job.plan.batch).to_json()
    with pytest.warns(
        tt.TangentWarning, match=f"captured {2 * job.plan.batch} at a time, .* {job.plan.batch} fit into"
    ):
        followed = job.plan.follow(job.task, stored)
    assert followed.batch == 2 * job.plan.batch


def test_what_autograd_keeps_of_layers_that_are_not_asked_for_counts() -> None:
    body = nn.Sequential(nn.Linear(3, 1000), nn.Tanh(), nn.Linear(1000, 1000), nn.Tanh())
    model, x = nn.Sequential(*body, nn.Linear(1000, 2)), torch.randn(4, 3)
    few = Job(model, x, params="4.*").capture.bytes_per_sample[0]
    assert few >= 2 * 1000 * 4  # the two results of tanh
    body.requires_grad_(False)
    assert Job(model, x, params="4.*").capture.bytes_per_sample[0] < few  # what is frozen has no graph


def test_a_name_of_another_format_is_refused(tmp_path: Path) -> None:
    model, x = problem(4)
    with pytest.raises(ValueError, match=r"written as a NumPy array, '.*k\.npy', not as 'k\.pt'"):
        tt.ntk(model, x, out=tmp_path / "k.pt")
    assert not list(tmp_path.iterdir())


class Branch(nn.Module):
    """The same outputs and parameters, other derivatives."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.a, self.b, self.detached = nn.Linear(3, 2), nn.Linear(3, 2), detached

    def forward(self, x: Tensor) -> Tensor:
        b = self.b(x)
        return self.a(x) + (b.detach() if self.detached else b)

    def extra_repr(self) -> str:
        return ""


@pytest.mark.filterwarnings("ignore:These parameters do not influence")
def test_networks_that_differ_in_their_derivatives_are_told_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, path = torch.randn(6, 3), tmp_path / "K.npy"
    one = Branch(detached=False)
    other = Branch(detached=True)
    other.load_state_dict(one.state_dict())
    K = tt.ntk(one, x, out=path)
    with pytest.raises(ValueError, match="with the same parameters but other gradients"):
        tt.ntk(other, x, out=path)
    assert np.array_equal(tt.ntk(one, x, out=path), K)


@pytest.mark.parametrize("outputs", [3, 40])
def test_networks_that_differ_in_any_output_are_told_apart(tmp_path: Path, outputs: int) -> None:
    torch.manual_seed(0)
    model, x, path = nn.Linear(3, outputs), torch.randn(6, 3), tmp_path / "K.npy"
    tt.ntk(model, x, out=path)
    scale = torch.ones(outputs)
    scale[-1] = 2
    with pytest.raises(ValueError, match="with the same parameters but other"):
        tt.ntk(model, x, out=path, output=lambda f: f * scale)


class Padded(nn.Module):
    """The mean of the tokens' vectors, without those that are padding."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding, self.embed, self.out = padding, nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        kept = (tokens != self.padding)[..., None].float()
        return self.out(torch.tanh((self.embed(tokens) * kept).sum(1) / kept.sum(1)))


@pytest.mark.parametrize("side", ["x1", "x2"])
def test_networks_that_differ_on_later_samples_are_told_apart(tmp_path: Path, side: str) -> None:
    torch.manual_seed(0)
    model, path = Padded(0), tmp_path / "K.npy"
    plain, padded = torch.randint(1, 19, (10, 6)), torch.randint(1, 19, (200, 6))
    padded[1:, 4:] = 19  # the first one has no padding
    data = (padded,) if side == "x1" else (plain, padded)
    K = tt.ntk(model, *data, reduce="trace", out=path)
    assert np.array_equal(tt.ntk(model, *data, reduce="trace", out=path), K)
    model.padding = 19
    with pytest.raises(ValueError, match="with the same parameters but other outputs"):
        tt.ntk(model, *data, reduce="trace", out=path)


def test_networks_that_differ_a_little_are_told_apart(tmp_path: Path) -> None:
    model, x = problem()
    tt.ntk(model, x, out=tmp_path / "K.npy")
    with pytest.raises(ValueError, match="with the same parameters but other outputs"):
        tt.ntk(model, x, out=tmp_path / "K.npy", output=lambda f: 1.0005 * f)


class Scaled(nn.Module):
    """Its scale is neither a parameter nor a buffer."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 2), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(self.linear(x))


def test_networks_in_float64_that_differ_less_than_float32_rounds_are_told_apart(tmp_path: Path) -> None:
    """And what is said differs."""
    one, other = Scaled(1.0).double(), Scaled(1 + 1e-8).double()
    other.load_state_dict(one.state_dict())
    x = torch.randn(9, 4, dtype=torch.float64)
    tt.ntk(one, x, out=tmp_path / "K.npy")
    with pytest.raises(ValueError, match="other outputs") as error:
        tt.ntk(other, x, out=tmp_path / "K.npy")
    then, now = re.findall(r"(\S+) then, (\S+) now", str(error.value))[0]
    assert float(now) / float(then) == pytest.approx(1 + 1e-8, abs=1e-10)


@pytest.mark.usefixtures("quiet")
def test_outputs_of_a_coarser_dtype_than_the_model_may_differ_by_its_rounding(tmp_path: Path) -> None:
    """As they do on another machine."""
    model, x = Scaled(1.0).double(), torch.randn(9, 4, dtype=torch.float64)
    data = {"out": tmp_path / "K.npy", "output": lambda f: f.float()}
    K = tt.ntk(model, x, **data)
    model.scale = 1 + 1e-6
    assert np.array_equal(tt.ntk(model, x, **data), K)


def test_a_kernel_that_overflows_is_not_stored(tmp_path: Path) -> None:
    x = torch.randn(6, 4)
    x[3] *= 1e20
    with pytest.raises(ValueError, match="The kernel has NaN or infinity"):
        tt.ntk(nn.Linear(4, 1), x, out=tmp_path / "K.npy")
    with pytest.raises((ValueError, OSError)):
        tt.load_kernel(tmp_path / "K.npy")
    x[0] *= 1e20
    with pytest.raises(ValueError, match="The kernel has NaN or infinity"):
        tt.ntk(nn.Linear(4, 1), x, out=tmp_path / "L.npy")
