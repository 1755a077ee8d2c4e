"""`python -m benchmarks.optim`: one training step of SGD, Adam, our KFAC and EKFAC, and a public KFAC, in turns.

Every optimizer trains its own copy of a network on the same batch. All that precondition renew what they decompose
every `EVERY` steps, so a cycle is one step that does and `EVERY` − 1 that do not. The first is timed alone and the
others in turns of `TURN`; after each turn the next optimizer has its own, so that what disturbs the machine disturbs
all of them. A cycle to warm up, then medians over cycles and turns. Then where the time of our steps goes.

Writes results/optim-<device>.json and remakes results/optim.md from what is there.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtangent as tt
from benchmarks import optim_page
from benchmarks.machine import THREADS, describe
from benchmarks.measure import now
from benchmarks.pieces import Pieces
from torchtangent.lab import models

EVERY, TURN = 50, 7  # 50 = 1 + 7 · 7
RATE, DAMPING = 1e-3, 1e-1
PEER = "asdfghjkl"  # on PyPI; it imports as asdl


@dataclass(frozen=True, eq=False)
class Workload:
    """A network, a batch, a loss that is a mean over samples, and whether our optimizers take taps as uncorrelated."""

    title: str
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: nn.Module
    sua: bool


class PixelLoss(nn.Module):
    """Cross-entropy summed over pixels. The peer wants a loss with a `reduction`, which it sets to "sum" at times."""

    reduction = "mean"

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        total = F.binary_cross_entropy_with_logits(f, y, reduction="sum")
        return total / len(y) if self.reduction == "mean" else total


@dataclass(frozen=True)
class Contender:
    """An optimizer at work: one step, and the phases of it where they can be told apart."""

    step: Callable[[], Tensor]
    phases: tuple[Callable[[], Any], ...] = ()
    optimizer: Any = None


def autoencoder(device: torch.device, quick: bool, batch: int = 500) -> Workload:
    """The 8-layer auto-encoder of MNIST, with images of zeros and a few strokes."""
    torch.manual_seed(0)
    widths, batch = ((784, 100, 50, 25, 10), batch // 10) if quick else ((784, 1000, 500, 250, 30), batch)
    x = torch.rand(batch, 784) * (torch.rand(batch, 784) > 0.8)
    title = f"auto-encoder {'-'.join(map(str, widths))} and back, sigmoids, batch {batch}"

    model = models.autoencoder(widths).to(device)
    return Workload(title, model, x.to(device), x.to(device), PixelLoss(), sua=False)


def vgg11(device: torch.device, quick: bool) -> Workload:
    """VGG11 without normalization on images of CIFAR's size; narrow, with a small batch, where there is no GPU."""
    torch.manual_seed(0)
    base, batch = (4, 8) if quick else (64, 500) if device.type == "cuda" else (16, 50)
    model = models.vgg11(base=base)
    models.init_kaiming(model, torch.Generator().manual_seed(0))
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    title = f"VGG11 of base {base} without normalization, SUA, batch {batch}"
    return Workload(title, model.to(device), x.to(device), y.to(device), nn.CrossEntropyLoss(), sua=True)


WORKLOADS = {"autoencoder": autoencoder, "autoencoder-64": partial(autoencoder, batch=64), "vgg11": vgg11}


def plain(work: Workload, make: Callable[[nn.Module], Any]) -> Contender:
    """An optimizer that follows torch's: zero_grad, forward, backward, step."""
    model = copy.deepcopy(work.model)
    optimizer = make(model)
    kept: dict[str, Tensor] = {}

    def forward() -> None:
        optimizer.zero_grad()
        kept["loss"] = work.loss(model(work.x), work.y)

    def backward() -> None:
        kept["loss"].backward()

    def step() -> Tensor:
        forward()
        backward()
        optimizer.step()
        return kept["loss"].detach()

    return Contender(step, (forward, backward, optimizer.step), optimizer)


def public_kfac(work: Workload, every: int) -> Contender:
    """KFAC of ASDL: empirical Fisher as ours, curvature looked at only when inverses are due, then SGD."""
    import asdl

    model = copy.deepcopy(work.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    config = asdl.PreconditioningConfig(
        data_size=len(work.x), damping=DAMPING, preconditioner_upd_interval=every, curvature_upd_interval=every
    )
    maker = asdl.KfacGradientMaker(model, config, fisher_type="fisher_emp")

    def step() -> Tensor:
        optimizer.zero_grad()
        outputs = maker.setup_model_call(model, work.x)
        maker.setup_loss_call(work.loss, outputs, work.y)
        _, loss = maker.forward_and_backward()
        optimizer.step()
        return loss.detach()

    return Contender(step)


def contenders(work: Workload, every: int) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that can be measured, by name, and why the others cannot."""
    ours: dict[str, Any] = {
        "lr": RATE,
        "damping": DAMPING,
        "momentum": 0.9,
        "basis_every": every,
        "kl_clip": None,  # as the peer
        "sua": work.sua,
    }
    found = {
        "SGD": plain(work, lambda model: torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)),
        "Adam": plain(work, lambda model: torch.optim.Adam(model.parameters(), lr=RATE)),
        "KFAC": plain(work, partial(tt.optim.KFAC, **ours)),
        "EKFAC": plain(work, partial(tt.optim.EKFAC, scalings="batch", **ours)),
        "EKFAC-ra": plain(work, partial(tt.optim.EKFAC, scalings="average", **ours)),
    }
    if importlib.util.find_spec("asdl") is None:
        return found, {"ASDL KFAC": "not installed"}
    return found | {"ASDL KFAC": public_kfac(work, every)}, {}


def measure(work: Workload, every: int, turn: int, cycles: int) -> dict[str, Any]:
    """Seconds of a step of each, and of the pieces of ours."""
    found, missing = contenders(work, every)
    renewing: dict[str, list[float]] = {name: [] for name in found}
    ordinary: dict[str, list[float]] = {name: [] for name in found}
    losses: dict[str, list[float]] = {name: [] for name in found}
    for cycle in range(cycles + 1):
        for count, times in [(1, renewing)] + (every - 1) // turn * [(turn, ordinary)]:
            for name, contender in found.items():
                seconds, loss = _timed(contender.step, count, work.x.device)
                if cycle:
                    times[name].append(seconds)
                losses[name].append(loss)
    entry: dict[str, Any] = {"title": work.title, "samples": len(work.x), "missing": missing, "optimizers": {}}
    entry["parameters"] = sum(p.numel() for p in work.model.parameters())
    for name in found:
        step, basis = statistics.median(ordinary[name]), statistics.median(renewing[name])
        amortized = step if name in ("SGD", "Adam") else ((every - 1) * step + basis) / every
        _check(name, losses[name], found[name].optimizer)
        entry["optimizers"][name] = {
            "ordinary": step,
            "renewing": basis,
            "amortized": amortized,
            "fastest ordinary": min(ordinary[name]),
            "loss": [losses[name][0], losses[name][-1]],
        }
    watched = {name: found[name] for name in ("SGD", *optim_page.OURS)}
    entry["pieces"] = _pieces(watched, every, max(1, cycles // 2), work.x.device)
    return entry


def _timed(step: Callable[[], Tensor], count: int, device: torch.device) -> tuple[float, float]:
    """Seconds of one of `count` steps in a row, and the last loss."""
    start = now(device)
    for _ in range(count):
        loss = step()
    return (now(device) - start) / count, float(loss)


def _check(name: str, losses: list[float], optimizer: Any) -> None:
    """A step that was skipped, or that made the network diverge, is no step to measure."""
    if getattr(optimizer, "skipped", 0) or not losses[-1] < losses[0]:
        raise RuntimeError(f"{name} did not train: the loss went from {losses[0]} to {losses[-1]}.")


def _pieces(
    watched: dict[str, Contender], every: int, cycles: int, device: torch.device
) -> dict[str, dict[str, dict[str, float]]]:
    """Median seconds of the pieces of ordinary and of renewing steps, the device waited for after each piece."""
    pieces = Pieces(lambda: now(device))
    seen: dict[str, dict[str, list[dict[str, float]]]] = {name: {"ordinary": [], "renewing": []} for name in watched}
    with pieces.watching():
        for i in range(cycles * every):
            for name, contender in watched.items():
                for piece, phase in zip(("forward", "backward", "step"), contender.phases, strict=True):
                    pieces.add(piece, phase)
                seen[name]["ordinary" if i % every else "renewing"].append(pieces.take())
    return {
        name: {
            kind: {p: statistics.median(s.get(p, 0.0) for s in steps) for p in steps[0]}
            for kind, steps in kinds.items()
        }
        for name, kinds in seen.items()
    }


def main() -> None:
    """Parses the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="may be repeated; all if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cycles", type=int, default=5, help=f"of {EVERY} steps")
    parser.add_argument("--quick", action="store_true", help="does everything run? Small sizes, into runs/")
    parser.add_argument("--out", type=Path, help="the folder for the results")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*non-full backward hook")  # the peer's
    torch.set_num_threads(1 if args.quick else THREADS)
    device = torch.device(args.device)
    root = Path(__file__).parents[1]
    folder = args.out or root / ("runs/benchmarks" if args.quick else "benchmarks/results")
    path = folder / f"optim-{device.type}.json"
    every, turn, cycles = (4, 3, 1) if args.quick else (EVERY, TURN, args.cycles)
    result = json.loads(path.read_text()) if args.workload and path.exists() else {"workloads": {}}
    result |= {"machine": describe(), "device": _name(device), "every": every, "cycles": cycles, "quick": args.quick}
    result["peer"] = f"{PEER} {version(PEER)}" if importlib.util.find_spec("asdl") else None
    for name in args.workload or WORKLOADS:
        work = WORKLOADS[name](device, args.quick)
        result["workloads"][name] = entry = measure(work, every, turn, cycles)
        print(entry["title"], {k: round(v["amortized"], 5) for k, v in entry["optimizers"].items()}, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    optim_page.write(folder)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else describe()["cpu"]


if __name__ == "__main__":
    main()
