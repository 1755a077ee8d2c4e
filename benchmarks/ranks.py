"""`python -m benchmarks.ranks`: a kernel on disk by one rank of one thread, by two, and by two that share nothing.

Every rank is held to a core of its own: else the thread that writes gives one rank a part of the second core. Each
computes a small kernel first, then all wait for each other, and the time is the slowest one's. Two processes that each
compute all of the kernel at the same time tell what the machine loses when both of its cores work; twice their rate is
the most that two ranks can be faster. Turns alternate. Writes results/ranks.json and ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
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
WAYS = ("one", "two", "apart")  # one rank; two of one kernel; two processes with a kernel each


def main() -> None:
    """Measures and writes, or is one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.rank_of:
        work(CASES[args.rank_of], args.folder, apart=args.apart)
        return
    result: dict[str, Any] = {"machine": describe(), "cases": {}}
    for title in CASES:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in WAYS * args.turns:
            seconds[way].append(launch(title, way))
        result["cases"][title] = {way: statistics.median(s) for way, s in seconds.items()}
        print(title, result["cases"][title], flush=True)
    (args.out / "ranks.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "ranks.md").write_text(page(result))


def launch(title: str, way: str) -> float:
    """Seconds of the kernel, by the slowest of the processes."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={1 if way == 'one' else 2}"]
    command += ["--standalone", "-m", "benchmarks.ranks", "--rank-of", title, *["--apart"] * (way == "apart")]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--folder", folder],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    return max(map(float, done.stdout.split()))


def work(case: Case, folder: Path, *, apart: bool) -> None:
    """Computes the kernel, its part of one or all of one alone, and prints the seconds."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo")
    model = case.model()
    x = torch.randn(case.samples, *NETWORKS[case.network][1], generator=torch.Generator().manual_seed(1))
    tt.ntk(model, x[: max(8, case.samples // 8)], reduce="trace", out=folder / "warm.npy")
    dist.barrier()
    if apart:
        dist.destroy_process_group()
    start = time.perf_counter()
    tt.ntk(model, x, reduce="trace", out=folder / (f"kernel{rank}.npy" if apart else "kernel.npy"))
    print(time.perf_counter() - start, flush=True)
    if not apart:
        dist.barrier()
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
        "each on a core of its own, medians of turns. *Apart*: two processes at the same time that share nothing, each "
        "with all of the kernel: what both cores lose to each other. Two ranks can be at most 2 · one / apart times as "
        "fast.",
        "",
        f"| kernel | one rank | two ranks | apart | times as fast (at least {TARGET}) | at most | met |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for title, seconds in result["cases"].items():
        one, two, apart = (seconds[way] for way in WAYS)
        met = "yes" if one / two >= TARGET else "no"
        lines.append(
            f"| {title} | {one:.3g} | {two:.3g} | {apart:.3g} | {one / two:.2f} | {2 * one / apart:.2f} | {met} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
