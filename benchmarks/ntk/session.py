"""One kernel by every library: each in its own process, kernels compared, then timed in turns."""

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import THREADS, memory_bytes
from benchmarks.measure import Time, summary
from benchmarks.ntk.cases import Case
from benchmarks.ntk.peers import LIBRARIES, OURS, Setting
from benchmarks.session import Effort

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4  # relative Frobenius distance of two libraries' kernels, float32
COMPILE = 300.0  # seconds to import and compile, which are not measured
PATIENCE = 3  # a setting that takes so many times the best one's seconds is given up

Entries = dict[str, dict[str, Any]]  # library → what was measured of it, or why not


class Worker:
    """A library's process, past its preparation: the first run is asked for by starting it."""

    def __init__(self, process: subprocess.Popen, log: Path):
        self._process = process
        self._log = log
        self.versions = self.answer(COMPILE)["versions"]

    def run(self, limit: float) -> dict[str, float]:
        """The seconds of one more run."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.answer(limit)

    def answer(self, limit: float) -> dict[str, Any]:
        """What it says next.

        Raises:
            TimeoutError: when that takes longer than `limit` seconds.
            RuntimeError: when the process has ended; the message is its last words.
        """
        if not select.select([self._process.stdout], [], [], limit)[0]:
            raise TimeoutError(f"longer than {limit:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(_last_words(self._log.read_text(), self._process.wait()))
        return json.loads(line)


@contextmanager
def worker(library: str, problem: Path, setting: Setting, kernel: Path | None = None) -> Iterator[Worker]:
    """A library at work on a problem, that writes its kernel into a file where one is given."""
    python = Path(LIBRARIES[library].python)
    if not python.exists():
        raise FileNotFoundError(f"{python.parent.parent.name} is missing: `make bench-ntk` installs it")
    gib = 0.8 * memory_bytes() / 2**30
    command = [python, "-m", "benchmarks.ntk.worker", library, problem, json.dumps(setting), THREADS, gib, kernel or ""]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "JAX_PLATFORMS": "cpu"}
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield Worker(process, Path(log.name))
        finally:
            process.kill()
            process.wait()


def tune(case: Case, library: str, limit: float) -> dict[str, Any]:
    """The library's best setting for a case, and the seconds of all that were tried, or why there are none."""
    best, fastest, tried = LIBRARIES[library].settings[0], float("inf"), {}
    with _saved(case) as problem:
        for setting in _distinct(library, case.samples):
            allowed = min(limit, 1 + PATIENCE * fastest)
            try:
                with worker(library, problem, setting) as at_work:
                    seconds = at_work.answer(allowed)["wall"]
                    if seconds < limit / 10:
                        seconds = min(seconds, at_work.run(allowed)["wall"])
            except Exception as error:
                tried[words(setting)] = str(error)
                continue
            tried[words(setting)] = round(seconds, 4)
            if seconds < fastest:
                best, fastest = setting, seconds
    return {"setting": best, "tried": tried}


def measure(case: Case, settings: Mapping[str, Setting], effort: Effort) -> Entries:
    """Agreement, seconds and peak megabytes of every library."""
    entries: Entries = {library: {} for library in settings}
    with ExitStack() as stack:
        problem = stack.enter_context(_saved(case))
        workers: dict[str, Worker] = {}
        for library, setting in settings.items():
            try:
                at_work = stack.enter_context(worker(library, problem, setting, _kernel(problem, library)))
                entries[library]["megabytes"] = at_work.answer(effort.limit)["megabytes"]
            except Exception as error:
                entries[library]["failed"] = str(error)
                continue
            entries[library]["versions"] = at_work.versions
            workers[library] = at_work
        for library, check in _compare(problem, list(workers)).items():
            entries[library]["check"] = check
            if not check["ok"]:
                entries[library]["failed"] = f"its kernel is {check['distance']:.1e} away from {check['from']}'s"
                del workers[library]
        for library, times in _rounds(workers, entries, effort).items():
            entries[library]["seconds"] = summary(times)
    return entries


def words(setting: Setting) -> str:
    """A setting for people: `batch=100, conv=unfold`; what is None is left out."""
    return ", ".join(f"{key}={value}" for key, value in setting.items() if value is not None) or "default"


def _rounds(workers: Mapping[str, Worker], entries: Entries, effort: Effort) -> dict[str, list[Time]]:
    """The times of every library, taken in turns until it has its repeats or has used its budget of seconds."""
    times: dict[str, list[Time]] = {library: [] for library in workers}
    for _ in range(effort.repeats):
        for library, at_work in workers.items():
            if "failed" in entries[library] or sum(t.wall for t in times[library]) >= effort.budget:
                continue
            try:
                taken = at_work.run(effort.limit)
            except Exception as error:
                entries[library]["failed"] = str(error)
                continue
            times[library].append(Time(taken["wall"], taken["cpu"] / THREADS))
    return {library: t for library, t in times.items() if "failed" not in entries[library]}


def _compare(problem: Path, libraries: list[str]) -> dict[str, dict[str, Any]]:
    """Relative Frobenius distance of every kernel from the first peer's."""
    reference = min(libraries, key=lambda library: library == OURS, default="")
    report = {}
    for library in libraries:
        K, target = (np.load(_kernel(problem, which)).astype(np.float64) for which in (library, reference))
        distance = float(np.linalg.norm(K - target) / np.linalg.norm(target)) if K.shape == target.shape else np.inf
        report[library] = {"ok": distance <= TOLERANCE, "from": reference, "distance": distance}
    return report


def _distinct(library: str, samples: int) -> list[Setting]:
    """The settings that differ on so many samples: a batch of at least all of them is no batch."""
    return [s for s in LIBRARIES[library].settings if s.get("batch") is None or s["batch"] < samples]


@contextmanager
def _saved(case: Case) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        case.save(path)
        yield path


def _kernel(problem: Path, library: str) -> Path:
    return problem.with_name(f"{library}.npy")


def _last_words(log: str, status: int) -> str:
    """The line of the error, or how the process ended."""
    lines = [line for line in log.splitlines() if "Error" in line]
    return lines[-1].strip()[:200] if lines else f"ended with status {status}"
