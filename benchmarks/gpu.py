"""`python -m benchmarks.gpu`: the kernels of the published study at full size, on one GPU.

N = 60,000 random CIFAR-shaped inputs, one output: seconds of `torchtangent.ntk` for an MLP, a LeNet and a ResNet18 in
each precision, the error of a random 200 × 200 block against float64, and the matrix rate it comes to; the top 1,000
eigenvalues at N = 4,000 against float64's, and `spectrum.top` at full size; torch.func and nngeometry (where it can be
imported) beside it at N = 2,000. Writes a JSON and a table, with the device's name.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
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
from benchmarks.peers import reason
from torchtangent import spectrum
from torchtangent.kernel.job import Job

MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: nn.Sequential(nn.Flatten(), mlp(1, 1.0)),
    "LeNet": lambda: lenet(1, 1.0),
    "ResNet18": lambda: resnet18(1),
}
FEWER = {("ResNet18", "float32"): 20_000}  # samples, where the full size takes many minutes
PRECISIONS = ("float16", "bfloat16", "tf32", "float32")


def main() -> None:
    """Measures what is asked for and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--small", type=int, default=2_000, help="samples of the comparison with peers")
    parser.add_argument("--spectrum", type=int, default=4_000, help="samples of the comparison of eigenvalues")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
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
        entry["peers"] = compare(model, x[: args.small].to(device))
        print(title, entry["peers"], flush=True)
        for precision in args.precision or PRECISIONS:
            entry["runs"][precision] = run(model, x[: FEWER.get((title, precision))], precision)
            print(title, precision, entry["runs"][precision], flush=True)
            write(args.out, result)
        entry["eigenvalues"] = eigenvalues(model, x[: args.spectrum])
        print(title, entry["eigenvalues"], flush=True)
        write(args.out, result)


def run(model: nn.Module, x: Tensor, precision: str) -> dict[str, Any]:
    """Seconds, error and rate of one kernel, and seconds of its top eigenpairs."""
    tt.ntk(model, x[:64], precision=precision)  # compile, load libraries
    _free()
    job = Job(model, x, reduce="trace", precision=precision)
    products = sum(line[2] for line in job.plan.lines)
    start = _now()
    K = tt.ntk(model, x, reduce="trace", precision=precision)
    seconds = _now() - start
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:200]
    reference = exact_block(model, x[chosen])
    block = K[chosen.to(K.device)][:, chosen.to(K.device)].double().cpu()
    start = _now()
    top = spectrum.top(K, min(1000, len(x) // 4))
    found = {
        "samples": len(x),
        "seconds": round(seconds, 3),
        "error": float((block - reference).norm() / reference.norm()),
        "multiplications": products,
        "tera_flops": round(2 * products / seconds / 1e12, 1),
        "peak_gib": round(peak / 2**30, 2),
        "top 1000 seconds": round(_now() - start, 2),
        "top 1000 converged": bool(torch.as_tensor(top.converged).all()),
    }
    del K, top
    _free()
    return found


def exact_block(model: nn.Module, x: Tensor) -> Tensor:
    """The kernel of a few samples in float64, by autograd sample by sample: not with our own code."""
    double = copy.deepcopy(model).double()
    device = next(double.parameters()).device
    rows = []
    for sample in x.to(device).double():
        grads = torch.autograd.grad(double(sample[None]).sum(), list(double.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    J = torch.stack(rows)
    return (J @ J.T).cpu()


def eigenvalues(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The largest relative error among the top quarter of the eigenvalues, 1,000 at most, against float64's."""
    double = copy.deepcopy(model).double()
    k = min(1000, len(x) // 4)
    exact = torch.linalg.eigvalsh(tt.ntk(double, x.double(), reduce="trace"))[-k:]
    found = {}
    for precision in PRECISIONS:
        values = torch.linalg.eigvalsh(tt.ntk(model, x, reduce="trace", precision=precision).double())[-k:]
        found[precision] = float(((values - exact) / exact).abs().max())
    _free()
    return found


def compare(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """Seconds of ours and of the peers at a size that all can do, TF32 allowed to all."""
    found: dict[str, Any] = {"samples": len(x)}
    for precision in ("tf32", "float32", "float16"):
        found[f"torchtangent {precision}"] = best_of(lambda p=precision: tt.ntk(model, x, reduce="trace", precision=p))
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    for chunk in (32, 128, 512):
        found[f"torch.func, {chunk} samples at a time"] = best_of(lambda c=chunk: functional(model, x, c))
    if importlib.util.find_spec("nngeometry"):
        for size in (100, 500, len(x)):
            found[f"nngeometry, {size} samples at a time"] = best_of(lambda s=size: gram(model, x, s))
    torch.backends.cuda.matmul.fp32_precision = before
    return found


def functional(model: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """vmap over jacrev, some samples at a time into one matrix J (the tutorial's way would keep two copies of it)."""
    params = {k: v.detach() for k, v in model.named_parameters()}

    def f(p: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (sample.unsqueeze(0),)).squeeze(0)

    J = x.new_empty(len(x), sum(p.numel() for p in params.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(0, len(x), chunk):
            rows = torch.func.vmap(torch.func.jacrev(f), (None, 0))(params, x[i : i + chunk])
            torch.cat([r.flatten(1) for r in rows.values()], 1, out=J[i : i + chunk])
    return J @ J.T


def gram(model: nn.Module, x: Tensor, size: int) -> Tensor:
    """NNGeometry's Gram matrix."""
    from nngeometry.gram import GramMatrix
    from nngeometry.layercollection import LayerCollection
    from torch.utils.data import DataLoader, TensorDataset

    batches = DataLoader(TensorDataset(x, x.new_zeros(len(x))), batch_size=size)
    return GramMatrix(model, batches, layer_collection=LayerCollection.from_model(model)).to_torch()


def best_of(work: Callable[[], Any]) -> float | str:
    """The least seconds of three runs after a first one; or why there are none."""
    times = []
    try:
        for _ in range(4):
            start = _now()
            work()
            times.append(_now() - start)
    except Exception as error:
        return reason(error)
    finally:
        _free()
    return round(min(times[1:]), 4)


def write(path: Path, result: dict[str, Any]) -> None:
    """The JSON, and beside it the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(result))


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        "# Kernels on a GPU",
        "",
        "Made by `python -m benchmarks.gpu`; do not edit.",
        "",
        f"{result['device']}, torch {result['torch']}. {result['samples']:,} random CIFAR-shaped inputs, one output. "
        "Error: relative Frobenius norm on a random 200 × 200 block, against float64 by autograd.",
        "",
        "| network | precision | samples | seconds | error | TFLOP/s | peak GiB | top 1,000 eigenpairs, seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for title, entry in result["models"].items():
        for precision, r in entry["runs"].items():
            cells = [
                f"{title}, {entry['parameters']:,} parameters",
                precision,
                f"{r['samples']:,}",
                f"{r['seconds']:.2f}",
            ]
            cells += [f"{r['error']:.1e}", r["tera_flops"], r["peak_gib"], r["top 1000 seconds"]]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    for title, entry in result["models"].items():
        peers = dict(entry["peers"])
        lines += [
            "",
            f"## {title}, N = {peers.pop('samples'):,}, TF32 allowed to all",
            "",
            "| | seconds |",
            "|---|---:|",
        ]
        lines += [f"| {name} | {seconds} |" for name, seconds in peers.items()]
        if "eigenvalues" in entry:
            said = ", ".join(f"{p} {e:.1e}" for p, e in entry["eigenvalues"].items())
            lines += ["", f"Largest relative error of the top eigenvalues: {said}."]
    return "\n".join(lines) + "\n"


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
