"""Seconds in this process, peak memory in fresh ones."""

import gc
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.cases import CASES, TINY
from benchmarks.machine import THREADS
from benchmarks.memory import high_water
from benchmarks.peers import Built, load


def now(device: torch.device | str) -> float:
    """The time, once a GPU has nothing left to do."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Time(NamedTuple):
    """Seconds by the clock, and of the processor divided by the threads: what a quiet machine would need at least."""

    wall: float
    cpu: float


def single_run(run: Callable[[], Any], limit: float, count: int = 1) -> tuple[Time, Any]:
    """The time of one call, and what it returned; the mean of `count` calls where one is too short to measure.

    Raises:
        TimeoutError: when it takes longer than `limit` seconds.
    """
    gc.collect()
    with _alarm(limit):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            result = run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Time(wall / count, cpu / count / THREADS), result


def rounds(
    runs: Mapping[str, Callable[[], Any]],
    repeats: int,
    budget: float,
    limit: float,
    warm: Mapping[str, Time] | None = None,
) -> dict[str, list[Time]]:
    """The times of every run, taken in turns, so that what disturbs the machine disturbs all of them.

    A run has its turn until it has its repeats or has used its budget of seconds. Warm up before; with the
    times of that, a run of less than 20 ms is called as often as fits into them.
    """
    counts = {name: max(1, min(1000, int(0.02 / warm[name].wall))) if warm else 1 for name in runs}
    times: dict[str, list[Time]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if sum(t.wall for t in times[name]) < budget:
                times[name].append(single_run(run, limit, counts[name])[0])
    return times


def summary(times: list[Time]) -> dict[str, float | int]:
    """Median and least seconds, least processor seconds per thread, number of repeats."""
    walls = [t.wall for t in times]
    least_cpu = min(t.cpu for t in times)
    return {"median": statistics.median(walls), "min": min(walls), "cpu": least_cpu, "repeats": len(times)}


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
    """What `peak_memory` runs: high-water marks after building and after one product."""
    torch.set_num_threads(THREADS)
    builders, _ = load(library)
    builder, options = builders[quantity], setting.get("options", {})
    tiny = TINY.problem()
    _multiply(builder.prepare(tiny, **options)(), torch.ones(tiny.size))  # loads code, takes little memory
    problem = CASES[case].problem(setting.get("batch"))
    build = builder.prepare(problem, **options)
    v = torch.ones(problem.size)
    gc.collect()
    before = high_water()
    built = build()
    marks = {"build": high_water() - before}
    _multiply(built, v)
    return marks | {"mv": high_water() - before}


def _multiply(built: Built, v: Tensor) -> None:
    if built.mv is not None:
        built.mv(built.pack(v))


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
