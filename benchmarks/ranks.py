"""`python -m benchmarks.ranks`: a kernel on disk by one rank of one thread, and by two.

Each number of ranks runs under torchrun; every rank computes a small kernel first, then all wait for each other and the
time is the slowest one's. Turns alternate. Writes results/ranks.json and ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchtangent as tt
from benchmarks.machine import describe
from benchmarks.ntk.cases import NETWORKS, Case
from benchmarks.run import RESULTS

CASES = {
    "MLP 3072-100-100-1, N=12000": Case("mlp", 12_000),
    "LeNet, 1 output, N=10000": Case("lenet", 10_000),
    "LeNet, 10 outputs, trace, N=6000": Case("lenet", 6_000, outputs=10),
    "ResNet18 (CIFAR stem, no norm), 1 output, N=256": Case("resnet18", 256),
}
TARGET = 1.8


def main() -> None:
    """Measures and writes, or is one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.rank_of:
        work(CASES[args.rank_of])
        return
    result: dict[str, Any] = {"machine": describe(), "cases": {}}
    for title in CASES:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for ranks in [1, 2] * args.turns:
            seconds[ranks].append(launch(title, ranks))
        result["cases"][title] = {ranks: statistics.median(s) for ranks, s in seconds.items()}
        print(title, result["cases"][title], flush=True)
    (args.out / "ranks.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "ranks.md").write_text(page(json.loads((args.out / "ranks.json").read_text())))


def launch(title: str, ranks: int) -> float:
    """Seconds of the kernel by so many processes of one thread each."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "benchmarks.ranks", "--rank-of", title],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def work(case: Case) -> None:
    """Computes the kernel together with the other ranks; the first prints the seconds of the slowest."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = case.model()
    x = torch.randn(case.samples, *NETWORKS[case.network][1], generator=torch.Generator().manual_seed(1))
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    tt.ntk(model, x[: max(8, case.samples // 8)], reduce="trace", out=Path(folder[0]) / "warm.npy")
    dist.barrier()
    start = time.perf_counter()
    tt.ntk(model, x, reduce="trace", out=Path(folder[0]) / "kernel.npy")
    seconds = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
        print(float(seconds), flush=True)
    dist.destroy_process_group()


def page(result: dict[str, Any]) -> str:
    """The figures for people."""
    machine = result["machine"]
    lines = [
        "# One rank and two",
        "",
        "Made by `python -m benchmarks.ranks` from `ranks.json` beside this page; do not edit.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; load {machine['load_at_start']} at the start; torch "
        f"{machine['packages']['torch']}. Seconds of a kernel on disk by one process of one thread and by two (gloo), "
        "medians of turns.",
        "",
        f"| kernel | one rank | two ranks | times as fast (at least {TARGET}) | met |",
        "|---|---:|---:|---:|---|",
    ]
    for title, seconds in result["cases"].items():
        ratio = seconds["1"] / seconds["2"]
        met = "yes" if ratio >= TARGET else "no"
        lines.append(f"| {title} | {seconds['1']:.3g} | {seconds['2']:.3g} | {ratio:.2f} | {met} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
