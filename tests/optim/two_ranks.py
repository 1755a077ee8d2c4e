"""A worker of a training run over two processes."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from torchtangent.optim import EKFAC, KFAC, Adaptive


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


def problem() -> tuple[Tensor, Tensor]:
    """More samples than any layer has inputs: eigenvectors of eigenvalue zero would be anyone's choice."""
    torch.manual_seed(1)
    return torch.randn(32, 2, 6).double(), torch.randint(0, 3, (32,))


def run(model: nn.Module, inner: nn.Module, method: str, reduction: str, part: slice) -> Tensor:
    """Five steps on a part of the batch; the parameters at the end."""
    x, y = problem()
    options = {"loss": reduction, "basis_every": 2, "momentum": 0.5}
    if method == "kfac":
        opt: torch.optim.Optimizer = KFAC(model, 0.1, 0.1, **options)
    else:
        opt = EKFAC(model, 0.1, 0.1, scalings=method, **options)
    for _ in range(5):
        opt.zero_grad()
        F.cross_entropy(model(x[part]), y[part], reduction=reduction).backward()
        opt.step()
    return torch.cat([p.detach().flatten() for p in inner.parameters()])


def work(rank: int, folder: str) -> None:
    """What one of two ranks does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for method in ("batch", "average", "kfac"):
        for reduction in ("mean", "sum"):
            inner = network()
            model = nn.parallel.DistributedDataParallel(inner)
            found = run(model, inner, method, reduction, slice(16 * rank, 16 * rank + 16))
            torch.save(found, Path(folder) / f"{method}-{reduction}-{rank}.pt")
    # Whatever holds the group goes first: gloo's threads cannot end while the last holder is taken apart.
    del model
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def adapt(rank: int, folder: str) -> None:
    """Dampings after some steps with losses that differ from rank to rank, and what is said of models not wrapped."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x, y = problem()
    inner = network()
    model = nn.parallel.DistributedDataParallel(inner)
    part = slice(16 * rank, 16 * rank + 16)
    opt = EKFAC(model, 0.5, Adaptive(0.1, every=1), kl_clip=None)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x[part]), y[part])
        if torch.is_grad_enabled():
            loss.backward()
        return loss

    for _ in range(6):
        opt.step(closure)
    damping = torch.tensor(opt.param_groups[0]["damping"], dtype=torch.float64)
    parameters = torch.cat([p.detach().flatten() for p in inner.parameters()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        EKFAC(network(), 0.1, 0.1)
        assert any("each rank will precondition by its own samples alone" in str(w.message) for w in caught)
    torch.save(torch.cat([damping[None], parameters]), Path(folder) / f"adapted-{rank}.pt")
    used_here_only = _expert_of(rank)
    torch.save(torch.tensor([used_here_only]), Path(folder) / f"expert-{rank}.pt")
    del model, opt
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


class Experts(nn.Module):
    """A layer for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(12, 3), nn.Linear(12, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[dist.get_rank()](x.flatten(1))


def _expert_of(rank: int) -> bool:
    """Whether a layer that only one rank uses is refused on both."""
    model = nn.parallel.DistributedDataParallel(Experts().double(), find_unused_parameters=True)
    opt = KFAC(model, 0.1, 0.1)
    x, y = problem()
    F.cross_entropy(model(x), y).backward()
    try:
        opt.step()
    except RuntimeError as error:
        return "on some ranks only" in str(error)
    return False
