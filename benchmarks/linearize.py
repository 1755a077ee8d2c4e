"""`python -m benchmarks.linearize`: one training step of a network and of its linearization, timed in turns.

A step is forward, backward and SGD on cross-entropy. Writes results/linearize.json and prints the ratios.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import linear_page
from benchmarks.cases import CASES
from benchmarks.machine import THREADS, describe
from benchmarks.measure import rounds, single_run, summary
from torchtangent.linear import linearize

BATCHES = {"lenet": 128, "resnet18": 32}
LIMIT = 300.0


def training_step(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """What is measured."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def measure(case: str, repeats: int, budget: float) -> dict:
    """Seconds of a step of either, and their ratios."""
    problem = CASES[case].problem()
    x, y = problem.x[: BATCHES[case]], problem.y[: BATCHES[case]]
    runs = {
        "network": training_step(problem.model, x, y),
        "linearized": training_step(linearize(problem.model), x, y),
    }
    warm = {name: [single_run(run, LIMIT)[0] for _ in range(3)][-1] for name, run in runs.items()}
    seconds = {name: summary(times) for name, times in rounds(runs, repeats, budget, LIMIT, warm).items()}
    ratios = {key: seconds["linearized"][key] / seconds["network"][key] for key in ("median", "min", "cpu")}
    return {"batch": len(x), "parameters": problem.size, "seconds": seconds, "ratios": ratios}


def main() -> None:
    """Parses the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for the repeats of one figure")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linearize.json")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    found = {"machine": describe(), "cases": {}}
    for case in BATCHES:
        found["cases"][case] = result = measure(case, args.repeats, args.budget)
        print(case, {key: round(ratio, 2) for key, ratio in result["ratios"].items()}, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    linear_page.write(args.out.parent)


if __name__ == "__main__":
    main()
