"""Finds each library's best configuration and keeps it: `python -m benchmarks.tune [--case C] [--only L]`.

A configuration is a batch size and, for some, options; the fastest build (the fastest product where
building does nothing) wins. `run` reads what is found here, so that its own time goes into measuring.
"""

import argparse
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import CASES, Case
from benchmarks.check import probe
from benchmarks.machine import THREADS
from benchmarks.measure import single_run
from benchmarks.peers import LIBRARIES, QUANTITIES, Builder, load, reason

SETTINGS = Path(__file__).parent / "settings.json"


def settings() -> dict[str, Any]:
    """The configurations found so far: case, quantity, library."""
    return json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}


def best_setting(case: str, quantity: str, library: str) -> dict[str, Any]:
    """The library's best configuration; all samples at once where none was looked for."""
    found = settings().get(case, {}).get(quantity, {}).get(library, {})
    return {"batch": found.get("batch"), "options": found.get("options", {})}


def search(case: Case, builder: Builder, repeats: int, limit: float) -> dict[str, Any]:
    """Tries batch sizes from large to small until they stop helping, for each of the builder's options."""
    tried: dict[str, float] = {}
    best: dict[str, Any] = {"seconds": float("inf")}
    for options in builder.options:
        last = float("inf")
        for batch in builder.batches:
            if batch is not None and batch >= case.samples and None in builder.batches:
                continue
            seconds = _seconds(case, builder, options, batch, repeats, limit)
            tried[f"{batch or 'all'} {options or ''}".strip()] = round(seconds, 4)
            if seconds < best["seconds"]:
                best = {"batch": batch, "options": dict(options), "seconds": round(seconds, 4)}
            if seconds > 1.3 * last:
                break
            last = min(last, seconds)
    return best | {"tried": tried}


def _seconds(
    case: Case, builder: Builder, options: dict[str, Any], batch: int | None, repeats: int, limit: float
) -> float:
    """The least processor seconds of a few builds, or of a few products where building does nothing."""
    problem = case.problem(batch)
    run: Any = builder.prepare(problem, **options)
    if builder.lazy:
        built = run()
        run = partial(built.mv, built.pack(probe(problem.size)))
    least = float("inf")
    for _ in range(repeats):
        taken = single_run(run, limit)[0]
        least = min(least, taken.cpu)
        if taken.wall > limit / 10:
            break
    return least


def main() -> None:
    """Searches and writes what it finds into settings.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--only", choices=LIBRARIES, action="append")
    parser.add_argument("--quantity", choices=QUANTITIES, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one call")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    for case, quantity, library in itertools.product(
        args.case or CASES, args.quantity or QUANTITIES, args.only or LIBRARIES
    ):
        try:
            builder = load(library)[0].get(quantity)
            if builder is None:
                continue
            found = search(CASES[case], builder, args.repeats, args.limit)
        except Exception as error:
            print(f"{case} {quantity} {library}: {reason(error)}", flush=True)
            continue
        kept = settings()
        kept.setdefault(case, {}).setdefault(quantity, {})[library] = found
        SETTINGS.write_text(json.dumps(kept, indent=1) + "\n")
        print(case, quantity, library, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
