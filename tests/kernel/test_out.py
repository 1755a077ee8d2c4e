"""ntk(..., out=path): kernels that are written tile by tile, resumed, shared by ranks, and never half-read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchtangent as tt
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.kernel.job import Held, Job
from torchtangent.kernel.store import KernelStore
from torchtangent.kernel.tiles import Tile

TESTS = Path(__file__).parent


def problem(n: int = 13) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2))
    return model, torch.randn(n, 1, 4, 4)


def small_tiles(monkeypatch: pytest.MonkeyPatch, edge: int = 4) -> None:
    from torchtangent.kernel import plan

    monkeypatch.setattr(plan, "_EDGE", {"cpu": edge, "cuda": edge})


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


WORKER = """
import os, signal, sys, torch
sys.path.insert(0, {tests!r})
import torchtangent as tt
from torchtangent.kernel import plan
from torchtangent.kernel.store import KernelStore
from test_out import problem
plan._EDGE = {{"cpu": 4, "cuda": 4}}
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
if {fail} and torch.distributed.get_rank() == 1 and not os.path.exists({flag!r}):
    open({flag!r}, "w").close()
    write, count = KernelStore.write, []
    def dying(self, tile, block):
        write(self, tile, block)
        count.append(tile)
        if len(count) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    KernelStore.write = dying
model, x = problem(40)
tt.ntk(model, x, out={path!r}, precision={precision!r})
"""


def start(script: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("fail", "precision"), [(False, "float16"), (True, "float32")])
def test_two_ranks_share_the_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool, precision: str) -> None:
    """Also when one of them is killed half-way: both are started again and go on from the store."""
    path, flag = tmp_path / "K.npy", tmp_path / "died"
    script = tmp_path / "worker.py"
    values = {"tests": str(TESTS), "path": str(path), "flag": str(flag), "precision": precision}
    script.write_text(WORKER.format(fail=fail, **values))
    if fail:
        run = start(script)
        run.communicate(timeout=120)
        assert run.returncode != 0
        with pytest.raises((ValueError, OSError)):
            tt.load_kernel(path)
    run = start(script)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors[-2000:]
    assert flag.exists() == fail
    small_tiles(monkeypatch)
    model, x = problem(40)
    K = torch.from_numpy(np.array(tt.load_kernel(path, verify=True)))
    expected = tt.ntk(model, x, precision=precision)
    torch.testing.assert_close(K, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_killed_at_random_moments_the_result_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL 20 times while tiles are computed and written, then let it finish."""
    path, script = tmp_path / "K.npy", tmp_path / "worker.py"
    text = f"""
import os, sys, time, torch
sys.path.insert(0, {str(TESTS)!r})
import torchtangent as tt
from torchtangent.kernel import plan
from test_out import problem
plan._EDGE = {{"cpu": 4, "cuda": 4}}
torch.set_num_threads(1)
model, x = problem(160)
for pause in [float(p) for p in sys.argv[1:]]:  # a child each time: torch is imported only once
    child = os.fork()
    if not child:
        tt.ntk(model, x, out={str(path)!r})
        os._exit(0)
    if pause:
        time.sleep(pause)
        os.kill(child, {signal.SIGKILL.value})
    done = os.waitpid(child, 0)[1]
    assert pause or done == 0
    assert pause or os.path.exists({str(path)!r})
"""
    script.write_text(text)
    generator = torch.Generator().manual_seed(int(time.time()))
    pauses = [*(torch.rand(20, generator=generator) * 0.4 + 0.01).tolist(), 0]
    done = subprocess.run([sys.executable, str(script), *map(str, pauses)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    small_tiles(monkeypatch)
    torch.set_num_threads(1)
    model, x = problem(160)
    assert torch.from_numpy(np.array(tt.load_kernel(path, verify=True))).equal(tt.ntk(model, x))


def test_a_budget_too_small_names_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    with pytest.raises(ValueError, match=r"max_memory of 1,000 bytes is too small.*needs ([\d,]+) bytes") as error:
        tt.ntk(model, x, max_memory=1000)
    least = int(str(error.value).split("needs ")[1].split(" ")[0].replace(",", ""))
    torch.testing.assert_close(tt.ntk(model, x, max_memory=int(1.4 * least)), tt.ntk(model, x))
    with pytest.raises(ValueError, match="too small"):
        tt.ntk(model, x, max_memory=least // 2)


MEMORY = """
import resource, sys, torch
from torch import nn
import torchtangent as tt
torch.set_num_threads(1)
torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten())
model = nn.Sequential(body, nn.Linear(32 * 144, 64), nn.ReLU(), nn.Linear(64, int(sys.argv[3])))
x = torch.randn(int(sys.argv[2]), 3, 16, 16)
tt.ntk(model, x[:3])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = peak()
tt.ntk(model, x, max_memory=int(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.parametrize(("megabytes", "samples", "outputs"), [(60, 1000, 1), (250, 3000, 1), (200, 300, 10)])
def test_resident_memory_stays_within_the_budget(megabytes: int, samples: int, outputs: int) -> None:
    """Kept whole, each of these would take gigabytes: 36 kB of activations and 5 to 50 kB of factors for a sample."""
    command = [sys.executable, "-c", MEMORY, str(megabytes << 20), str(samples), str(outputs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) <= 1.1 * (megabytes << 20), f"{int(done.stdout) >> 20} MiB of {megabytes}"


def test_out_of_memory_halves_the_tiles_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem()
    whole = tt.ntk(model, x)
    contract, panel = Job._contract, Job._layers

    def tight(self: Job, tile: Tile, left: Held, right: Held, blocks: list[torch.Tensor]) -> None:
        contract(self, tile, left, right, blocks)
        if tile.shape[0] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def narrow(self: Job, batch: torch.Tensor) -> dict[str, LayerJacobian]:
        if len(batch) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return panel(self, batch)

    monkeypatch.setattr(Job, "_contract", tight)
    monkeypatch.setattr(Job, "_layers", narrow)
    with pytest.warns(tt.TangentWarning, match="Memory ran out") as said:
        K = tt.ntk(model, x)
    assert [str(w.message).split("; ")[0] for w in said][:3] == [
        "Memory ran out with 13 samples captured at a time",
        "Memory ran out with 6 samples captured at a time",
        "Memory ran out with 13 rows of a tile",
    ]
    torch.testing.assert_close(K, whole)
    assert K.equal(K.permute(1, 0, 3, 2))


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
    import oracle

    J = oracle.jacobian(model, x)
    with pytest.warns(tt.TangentWarning):
        K = job.run(False)
    torch.testing.assert_close(K, torch.einsum("ncp,mep->nmce", J, J), rtol=1e-10, atol=1e-12)
