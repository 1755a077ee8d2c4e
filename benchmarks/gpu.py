"""`python -m benchmarks.gpu`: the kernels of the published study at full size, on one GPU.

N = 60,000 random CIFAR-shaped inputs, one output: seconds of `torchtangent.ntk` for an MLP, a LeNet and a ResNet18 in
each precision, the error of a random 200 × 200 block against float64, and the matrix rate it comes to. torch.func
beside it at N = 2,000. Writes one JSON, with the device's name.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchtangent as tt
from benchmarks.cases import resnet18
from benchmarks.ntk.cases import lenet, mlp
from torchtangent.kernel.ntk import Job

MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: nn.Sequential(nn.Flatten(), mlp(1, 1.0)),
    "LeNet": lambda: lenet(1, 1.0),
    "ResNet18": lambda: resnet18(1),
}


def main() -> None:
    """Measures what is asked for and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--small", type=int, default=2_000, help="samples of the comparison with peers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--precision", action="append")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "samples": args.samples, "models": {}}
    for title in args.model or MODELS:
        torch.manual_seed(0)
        model = MODELS[title]().to(device).eval()
        x = torch.randn(args.samples, 3, 32, 32)
        entry: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "runs": {}}
        result["models"][title] = entry
        for precision in args.precision or ("float16", "bfloat16", "tf32"):
            entry["runs"][precision] = run(model, x, precision)
            print(title, precision, entry["runs"][precision], flush=True)
            write(args.out, result)
        entry["peers"] = compare(model, x[: args.small], device)
        print(title, entry["peers"], flush=True)
        write(args.out, result)


def run(model: nn.Module, x: Tensor, precision: str) -> dict[str, Any]:
    """Seconds, error and rate of one kernel."""
    tt.ntk(model, x[:64], precision=precision)  # compile, load libraries
    _free()
    job = Job(model, x, None, None, "trace", None, False, precision, None)
    products = sum(line[2] for line in job.plan.lines)
    start = _now()
    K = tt.ntk(model, x, reduce="trace", precision=precision)
    seconds = _now() - start
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:200]
    reference = exact_block(model, x[chosen])
    block = K[chosen.to(K.device)][:, chosen.to(K.device)].double().cpu()
    error = float((block - reference).norm() / reference.norm())
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    found = {
        "seconds": round(seconds, 3),
        "error": error,
        "multiplications": products,
        "tera_flops": round(2 * products / seconds / 1e12, 1),
        "peak_gib": round(peak / 2**30, 2),
        "symmetric": bool(K[:500, :500].equal(K[:500, :500].T)),
    }
    del K
    _free()
    return found


def exact_block(model: nn.Module, x: Tensor) -> Tensor:
    """The kernel of a few samples in float64, by autograd sample by sample: not with our own code."""
    p = next(model.parameters())
    double = copy.deepcopy(model).double()
    rows = []
    for sample in x.to(p.device).double():
        grads = torch.autograd.grad(double(sample[None]).sum(), list(double.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    J = torch.stack(rows)
    return (J @ J.T).cpu()


def compare(model: nn.Module, x: Tensor, device: torch.device) -> dict[str, Any]:
    """Ours and torch.func at a size that all can do, TF32 allowed to all."""
    x = x.to(device)
    found: dict[str, Any] = {"samples": len(x)}
    for precision in ("tf32", "float32", "float16"):
        found[f"torchtangent {precision}"] = best_of(lambda p=precision: tt.ntk(model, x, reduce="trace", precision=p))
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    for chunk in (16, 64, 128):
        try:
            found[f"torch.func, chunks of {chunk}"] = best_of(lambda c=chunk: functional(model, x, c), repeats=2)
        except torch.OutOfMemoryError:
            found[f"torch.func, chunks of {chunk}"] = None
            _free()
    torch.backends.cuda.matmul.fp32_precision = "none"
    return found


def functional(model: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """vmap over jacrev, layer by layer contracted: the official tutorial's way, J kept where it fits."""
    params = {k: v.detach() for k, v in model.named_parameters()}

    def f(p: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (sample.unsqueeze(0),)).squeeze(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        J = torch.func.vmap(torch.func.jacrev(f), (None, 0), chunk_size=chunk)(params, x)
    return sum(j.flatten(1) @ j.flatten(1).T for j in J.values())  # type: ignore[return-value]


def best_of(work: Callable[[], Any], repeats: int = 3) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = _now()
        work()
        times.append(_now() - start)
        _free()
    return round(min(times), 4)


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _free() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
