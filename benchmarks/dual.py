"""`python -m benchmarks.dual`: training many targets in function space, against training the linearized module.

On the CPU: a linearized LeNet with one output on 10,000 CIFAR-shaped inputs, 100 targets, 20 epochs of batch 128. In
function space all of it is measured, the kernel included. The module is trained target by target at the batch size with
the best throughput; that is measured on an epoch of two targets and extrapolated. One epoch with the same batches says
that both do the same.

With `--gpu`: 1,000 targets on a 50,000 × 50,000 kernel, 100 epochs of batch 128, in float32 and with TF32, and the
difference of four targets after two epochs from float64.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torchtangent as tt
from benchmarks import linear_page
from benchmarks.machine import THREADS, describe
from benchmarks.measure import now
from benchmarks.ntk.cases import lenet
from torchtangent.linear import dual
from torchtangent.linear.linearize import linearize

RULE: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "schedule": "linear"}
BATCH = 128
SIZES = (64, 128, 256, 512, 1024)  # batches at which the module's throughput is measured


def main() -> None:
    """Measures what is asked for and adds it to the results there are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the large kernel, on CUDA")
    parser.add_argument("--quick", action="store_true", help="does everything run? Small sizes, into runs/")
    parser.add_argument("--device", default="cuda", help="of --gpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.gpu:
        sizes = {"samples": 2_000, "targets": 20, "epochs": 3} if args.quick else {}
        found = {"gpu": on_gpu(torch.device(args.device), **sizes)}
    else:
        torch.set_num_threads(THREADS)
        sizes = {"samples": 512, "targets": 10, "epochs": 2} if args.quick else {}
        found = {"cpu": on_cpu(**sizes)}
    root = Path(__file__).parents[1]
    path = args.out or root / ("runs" if args.quick else "benchmarks/results") / "dual.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = (json.loads(path.read_text()) if path.exists() else {}) | found
    path.write_text(json.dumps(results, indent=1) + "\n")
    linear_page.write(path.parent)
    print(json.dumps(found, indent=1))


def on_cpu(samples: int = 10_000, targets: int = 100, epochs: int = 20) -> dict[str, Any]:
    """Seconds in function space, seconds of the module as extrapolated, and how far apart they are after an epoch."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = lenet(1, 1.0).eval()
    x = torch.randn(samples, 3, 32, 32, generator=generator)
    y = (x.flatten(1) @ torch.randn(3072, targets, generator=generator) > 0).float()
    result: dict[str, Any] = {"machine": describe(), "samples": samples, "targets": targets, "epochs": epochs}

    start = time.perf_counter()
    K = tt.ntk(model, x, reduce="trace")
    with torch.no_grad():
        f0 = torch.cat([model(part) for part in x.split(1000)])
    result["kernel seconds"] = time.perf_counter() - start
    fit = dual.SGD(K, y, f0=f0, **RULE).run(epochs=epochs, batch_size=BATCH)
    result["function space seconds, kernel included"] = total = time.perf_counter() - start
    result["accuracy"] = float(fit.train_accuracy[-1].mean())

    def train(target: int, order: Tensor, size: int) -> Tensor:
        """The linearized module after one step for each batch, by plain torch; its outputs on the first samples."""
        module = linearize(model)
        optimizer = torch.optim.SGD(module.parameters(), lr=RULE["lr"], momentum=RULE["momentum"])
        for batch in order.split(size):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(module(x[batch])[:, 0], y[batch, target]).backward()
            optimizer.step()
        with torch.no_grad():
            return module(x[:200])[:, 0]

    order = torch.randperm(samples, generator=generator)
    train(0, order[:BATCH], BATCH)  # warms up
    rates = {}
    for size in (s for s in SIZES if 4 * s <= samples):
        part = order[: max(4 * size, samples // 10)]
        start = time.perf_counter()
        train(0, part, size)
        rates[size] = len(part) / (time.perf_counter() - start)
    best = max(rates, key=lambda size: rates[size])
    start = time.perf_counter()
    for target in (0, 1):
        train(target, order, best)
    module = (time.perf_counter() - start) / 2 * epochs * targets
    result["module samples per second by batch size"] = rates
    result["module seconds, extrapolated from an epoch of two targets"] = module
    result["times faster"] = module / total

    expected = train(0, order, BATCH)
    sgd = dual.SGD(K, y[:, 0], f0=f0, **{**RULE, "schedule": "constant"}).run(batches=order.split(BATCH))
    found = sgd.predict(K[:200], f0=f0[:200])
    result["difference after an epoch"] = float((found - expected).norm() / (expected - f0[:200, 0]).norm())
    return result


def on_gpu(
    device: torch.device, samples: int = 50_000, targets: int = 1_000, epochs: int = 100, features: int = 512
) -> dict[str, Any]:
    """Seconds and the error of a few targets in each precision of the products."""
    generator = torch.Generator(device).manual_seed(0)
    phi = torch.randn(samples, features, device=device, generator=generator)
    K = (phi @ phi.T).div_(features)
    K.diagonal().add_(0.1)
    noise = torch.randn(samples, targets, device=device, generator=generator)
    y = (phi @ torch.randn(features, targets, device=device, generator=generator) / features**0.5 + noise > 0).float()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result: dict[str, Any] = {"device": name, "torch": torch.__version__}
    result |= {"samples": samples, "targets": targets, "epochs": epochs}
    rule = RULE | {"lr": 1.0}
    exact = dual.SGD(K.double(), y[:, :4], **rule).run(epochs=2, batch_size=BATCH)
    before = torch.backends.cuda.matmul.fp32_precision
    for precision in ("ieee", "tf32"):
        torch.backends.cuda.matmul.fp32_precision = precision
        rough = dual.SGD(K, y[:, :4], **rule).run(epochs=2, batch_size=BATCH)
        dual.SGD(K, y, **rule).run(batch_size=BATCH)  # warms up
        start = now(device)
        fit = dual.SGD(K, y, **rule).run(epochs=epochs, batch_size=BATCH)
        result[precision] = {
            "seconds": now(device) - start,
            "error of c after 2 epochs": float((rough.c - exact.c).norm() / exact.c.norm()),
            "error of the loss": float((rough.train_loss - exact.train_loss).norm() / exact.train_loss.norm()),
            "training loss": float(fit.train_loss[-1].mean()),
            "training accuracy": float(fit.train_accuracy[-1].mean()),
            "peak GiB": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        }
        print(precision, result[precision], flush=True)
    torch.backends.cuda.matmul.fp32_precision = before
    return result


if __name__ == "__main__":
    main()
