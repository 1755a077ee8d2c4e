"""Seconds in this process, peak memory in fresh ones."""

import ctypes
import gc
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.cases import CASES, TINY, Problem
from benchmarks.peers import Builder, Built, load

THREADS = 2


def single_run(run: Callable[[], Any], limit: float) -> tuple[float, Any]:
    """Seconds of one call, and what it returned.

    Raises:
        TimeoutError: when the call takes longer than `limit` seconds.
    """
    gc.collect()
    with _alarm(limit):
        start = time.perf_counter()
        result = run()
        return time.perf_counter() - start, result


def rounds(
    runs: Mapping[str, Callable[[], Any]], repeats: int, budget: float, limit: float
) -> dict[str, list[float]]:
    """Seconds of every run, taken in turns, so that what disturbs the machine disturbs all of them.

    Each run is warmed up once and then measured until it has its repeats or has used its budget in
    seconds. A warm-up that takes half the budget is itself the measurement.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    spent = dict.fromkeys(runs, 0.0)
    for turn in range(repeats + 1):
        for name, run in runs.items():
            if times[name] and spent[name] > budget:
                continue
            seconds, _ = single_run(run, limit)
            spent[name] += seconds
            if turn > 0 or seconds > budget / 2:
                times[name].append(seconds)
    return times


def summary(times: list[float]) -> dict[str, float | int]:
    """Median, minimum and number of repeats."""
    return {"median": statistics.median(times), "min": min(times), "repeats": len(times)}


def prepare(builder: Builder, problem: Problem, options: Mapping[str, Any]) -> Callable[[], Built]:
    """The measured part of a builder, for a problem and a library's own options."""
    return builder.prepare(problem, **options)


def peak_memory(case: str, quantity: str, library: str, setting: Mapping[str, Any], limit: float) -> dict:
    """Peak resident megabytes beyond the model and the data, after each operation, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.measure", case, quantity, library, json.dumps(dict(setting))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {limit:.0f} s"}
    except subprocess.CalledProcessError as error:
        return {"failed": (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _measure_memory(case: str, quantity: str, library: str, setting: dict[str, Any]) -> dict[str, float]:
    """What `peak_memory` runs: high-water marks after building, one product and one solve."""
    torch.set_num_threads(THREADS)
    builders, _ = load(library)
    builder, options = builders[quantity], setting.get("options", {})
    list(_operate(prepare(builder, TINY.problem(), options)(), TINY.problem()))  # loads code, little memory
    problem = CASES[case].problem(setting.get("batch"))
    build = prepare(builder, problem, options)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _high_water()
    built = build()
    marks = {"build": _high_water() - before}
    for operation, value in _operate(built, problem):
        del value
        marks[operation] = _high_water() - before
    return marks


def _operate(built: Built, problem: Problem) -> Iterator[tuple[str, Any]]:
    v = torch.randn(problem.size, generator=torch.Generator().manual_seed(1))
    for operation in ("mv", "solve"):
        run = getattr(built, operation)
        if run is not None:
            yield operation, run(built.pack(v))


def _high_water() -> float:
    """Peak resident megabytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    print(json.dumps(_measure_memory(*sys.argv[1:4], json.loads(sys.argv[4]))))
