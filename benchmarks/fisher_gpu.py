"""`python -m benchmarks.fisher_gpu`: Fisher matrices on one GPU, of us and of the peers that can be imported there.

The networks of `benchmarks.run` with more samples, an exact 10-class Fisher, float32 without TF32 for all. Every
library has its fastest setting, looked for in the same run; results are compared before they are
timed. Writes fisher-gpu.json and fisher-gpu.md, with the device's name.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import CASES, Case, Problem
from benchmarks.check import deviations, objection, probe, values
from benchmarks.measure import now
from benchmarks.peers import LIBRARIES, Builder, Built, load_all, reason

SAMPLES = {"mlp": 4_096, "lenet": 4_096, "resnet18": 512}
QUANTITIES = ("diagonal", "kfac", "ekfac", "implicit")
FEWEST = 16  # samples at a time, the smallest setting that is tried
EXACT = 1e-5  # deviations of traces that are told, although they count as the same matrix
OPERATIONS = ("build", "mv", "solve")


def main() -> None:
    """Measures what is asked for and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--quantity", choices=QUANTITIES, action="append")
    parser.add_argument("--only", choices=LIBRARIES, action="append")
    parser.add_argument("--samples", type=int, help="of every case")
    parser.add_argument("--slowest", type=float, default=20.0, help="seconds of a build that is not tried again")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fisher-gpu.json")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peers' own, of deprecated calls
    torch.backends.cudnn.allow_tf32 = False  # as ours are
    libraries, _ = load_all(args.only or LIBRARIES)
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "cases": {}}
    for case in args.case or CASES:
        chosen = replace(CASES[case], samples=args.samples or SAMPLES[case])
        entry = result["cases"][case] = {"title": chosen.title.rpartition(",")[0], "samples": chosen.samples}
        for quantity in args.quantity or QUANTITIES:
            builders = {lib: found[quantity] for lib, found in libraries.items() if quantity in found}
            entry[quantity] = measure(chosen, quantity, builders, args.device, args.slowest)
            print(case, quantity, json.dumps(entry[quantity]), flush=True)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
            args.out.with_suffix(".md").write_text(table(result))


def measure(
    case: Case, quantity: str, builders: dict[str, Builder], device: str, slowest: float
) -> dict[str, dict[str, Any]]:
    """Settings, agreement, seconds and peak memory of every library."""
    found, entries, size = {}, {}, case.problem().size
    for lib, builder in builders.items():
        entries[lib] = entry = _best(case, builder, device, slowest)
        if "failed" in entry:
            continue
        try:
            build = _prepared(case, builder, entry["setting"], device)
            before = _peak_gib(device, reset=True)
            built = build()
            found[lib] = {k: v.cpu() for k, v in values(built, size, device).items()}
            vector = built.pack(probe(size).to(device))
            for operation in OPERATIONS[1:]:
                method = getattr(built, operation)
                if method is not None and not (operation == "solve" and builder.lazy):
                    entry[operation] = _median(partial(method, vector), device, 10, slowest)
                if operation == "mv":
                    entry["gib"] = round(_peak_gib(device) - before, 3)
            del built
        except Exception as error:
            entry["failed"] = reason(error)
        _free(device)
    # A GPU's eigenvectors in float32 cost peers four digits. (Others differ from float64 mostly where a ReLU switches.)
    exact = _exact(case, builders, entries, device) if quantity == "ekfac" else {}
    for lib, check in deviations(found, builders, quantity, exact).items():
        entries[lib]["check"] = check
    return entries


def _exact(
    case: Case, builders: dict[str, Builder], entries: dict[str, dict[str, Any]], device: str
) -> dict[str, dict[str, Tensor]]:
    """The values of the first peer that can compute them in float64."""
    for lib, builder in builders.items():
        if lib == "torchtangent" or builder.differs or "failed" in entries[lib]:
            continue
        try:
            built = _prepared(case, builder, entries[lib]["setting"], device, torch.float64)()
            found = values(built, case.problem().size, device, torch.float64)
            return {f"{lib} in float64": {k: v.cpu() for k, v in found.items()}}
        except Exception as error:
            print(f"{lib} in float64 failed: {reason(error)}")
        finally:
            built = None
            _free(device)
    return {}


def _best(case: Case, builder: Builder, device: str, slowest: float) -> dict[str, Any]:
    """The fastest setting (batches from large to small while that helps) and its seconds to build."""
    best: dict[str, Any] = {}
    for options in builder.options:
        last = float("inf")
        for batch in _batches(builder, case.samples):
            setting = {"batch": batch, "options": options}
            try:
                run: Any = _prepared(case, builder, setting, device)
                if builder.lazy:
                    built = run()
                    run = partial(built.mv, built.pack(probe(case.problem().size).to(device)))
                seconds = _median(run, device, 3, slowest)
            except Exception as error:  # out of memory, for instance: fewer samples at a time may do
                best = best if "build" in best else {"failed": reason(error)}
                continue
            finally:
                run = built = None
                _free(device)
            if seconds < best.get("build", float("inf")):
                best = {"setting": setting, "build": seconds}
            if seconds > 1.3 * last:
                break
            last = min(last, seconds)
    return best


def _batches(builder: Builder, samples: int) -> Iterator[int]:
    """All samples at once, then fewer; only all for libraries that choose by themselves."""
    yield samples
    while len(builder.batches) > 1 and samples > FEWEST:
        samples //= 4
        yield samples


def _prepared(
    case: Case, builder: Builder, setting: dict[str, Any], device: str, dtype: torch.dtype = torch.float32
) -> Callable[[], Built]:
    problem = case.problem(setting["batch"])
    problem = Problem(problem.model.to(device, dtype), problem.x.to(device, dtype), problem.y.to(device), problem.batch)
    return builder.prepare(problem, **setting["options"])


def _peak_gib(device: str, *, reset: bool = False) -> float:
    """The most memory that was held at a time."""
    if device != "cuda":
        return 0.0
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / 2**30


def _median(run: Callable[[], Any], device: str, repeats: int, slowest: float) -> float:
    """The median of some calls after a first one; that one, if it is slow."""
    times: list[float] = []
    for _ in range(1 + repeats):
        start = now(device)
        run()
        times.append(now(device) - start)
        if sum(times) > slowest:
            break
    return round(statistics.median(times[1:] or times), 6)


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        "# Fisher matrices on a GPU",
        "",
        "Made by `python -m benchmarks.fisher_gpu`; do not edit.",
        "",
        f"{result['device']}, torch {result['torch']}. Exact Fisher of a 10-class softmax, float32 without TF32. "
        "Seconds to build, of a product and of a solve, medians; the most GiB that building and products hold at a "
        "time. Each library in the fastest of its settings. Ratio: seconds of the fastest peer whose results agree, "
        "over ours.",
    ]
    for entry in result["cases"].values():
        lines += ["", f"## {entry['title']}, {entry['samples']:,} samples"]
        libraries = [lib for lib in LIBRARIES if any(lib in e for e in entry.values() if isinstance(e, dict))]
        lines += ["", f"| | | {' | '.join(libraries)} | ratio |", f"|---|---|{'---:|' * len(libraries)}---:|"]
        for quantity in QUANTITIES:
            found = entry.get(quantity, {})
            peers = {lib for lib, e in found.items() if lib != "torchtangent" and not objection(e.get("check", {}))}
            for operation in (*OPERATIONS, "gib"):
                figures = {lib: e[operation] for lib, e in found.items() if operation in e}
                if not figures or (quantity == "implicit" and operation == "build"):
                    continue
                best = min((t for lib, t in figures.items() if lib in peers), default=0.0)
                ours = figures.get("torchtangent", 0.0)
                ratio = f"{best / ours:.2f}" if best and ours and operation != "gib" else ""
                cells = [f"{figures[lib]:.3g}" if lib in figures else "" for lib in libraries]
                said = {"mv": "product", "gib": "peak GiB"}.get(operation, operation)
                lines.append(f"| {quantity} | {said} | {' | '.join(cells)} | {ratio} |")
        results = [(f"- {q}, {lib}", e) for q in QUANTITIES for lib, e in entry.get(q, {}).items()]
        notes = [f"{who} failed: {e['failed']}" for who, e in results if "failed" in e]
        notes += [f"{who} {said}" for who, e in results if (said := objection(e.get("check", {})))]
        traces = [(who, e["check"]["trace"]) for who, e in results if "trace" in e.get("check", {})]
        notes += [
            f"{who}: its trace is {t['distance']:.0e} from {t['from']}" for who, t in traces if t["distance"] > EXACT
        ]
        lines += [""] * bool(notes) + notes
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
