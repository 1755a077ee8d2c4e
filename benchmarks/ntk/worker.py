"""One library in a process of its own: `python -m benchmarks.ntk.worker LIBRARY PROBLEM SETTING THREADS GIB KERNEL`.

Prepares (what compiles, compiles) and says so; runs once, writes the kernel and says seconds and peak
megabytes; then runs once more for every line it reads. What it says is a line of JSON each. Needs no
torch, which neural-tangents' environment does not have.
"""

import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.memory import forget_peak, high_water, resident


def main(library: str, problem: str, setting: str, threads: str, gib: str, kernel: str) -> None:
    """Serves until its input ends."""
    _confine(int(threads), float(gib))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    adapter = importlib.import_module(f"benchmarks.ntk.peers.{library}")
    with np.load(problem) as data:
        run = adapter.prepare(data, **json.loads(setting))
    say(versions={name: version(name) for name in adapter.DISTRIBUTIONS})
    gc.collect()
    forget_peak()
    before = resident()
    seconds, result = _timed(run)
    peak = high_water() - before
    if kernel:
        np.save(kernel, adapter.unpack(result))
    del result
    say(**seconds, megabytes=peak)
    for _ in sys.stdin:
        say(**_timed(run)[0])


def _timed(run: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, result


def _confine(threads: int, gib: float) -> None:
    """So many cores, also for libraries without a setting for it; and running out of memory is an error of its own."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    limit = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(*sys.argv[1:])
