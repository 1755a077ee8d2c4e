"""Workers: in this process one task after another, or side by side in separate processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch
from threadpoolctl import threadpool_limits

from torchtangent.kernel.budget import MEMORY

Report = Callable[[int, int | None], None]
Work = Callable[[Report], Any]
_LOADED = ["torchtangent.lab.report", "torch._dynamo", "sklearn.datasets", "typer"]  # what takes long to import
_PAUSE = 0.2  # seconds between two reports of a process


def silent(done: int, total: int | None) -> None:
    """A report of progress that does nothing."""


class Here:
    """Runs one task at a time, in this process."""

    room = 1

    def __init__(self) -> None:
        self._done: list[tuple[str, Any]] = []

    def start(self, name: str, work: Work, report: Report) -> None:
        """Run a task; `ended` returns its result next."""
        try:
            self._done.append((name, work(report)))
        except Exception as error:
            _debug(error)
            self._done.append((name, error))

    def ended(self) -> list[tuple[str, Any]]:
        """The tasks that have ended since the last call: name, and result or exception."""
        done, self._done = self._done, []
        return done

    def stop(self) -> None:
        """Nothing is left running."""


class Apart:
    """Does `room` pieces of work side by side, each in a fresh process that has its share of threads and memory.

    A process that dies takes nothing with it but its own work, and what it held on a GPU is free when it ends. None
    outlives this one, even if it is killed. `memory` is the fraction of the machine's that they have together; what
    `TORCHTANGENT_MEMORY` says, where it is set, is for each of them.
    """

    def __init__(self, room: int, memory: float) -> None:
        self.room = room
        self._memory = memory
        self._running: dict[Connection, tuple[str, Report, Any]] = {}
        self._refused: list[tuple[str, Any]] = []
        # Copies of a process that has imported torch, and done nothing with it, are there at once.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._processes: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._processes.set_forkserver_preload(_LOADED)

    def start(self, name: str, work: Work, report: Report) -> None:
        """Begin it; `work` and what it returns travel between processes."""
        inbox, outbox = self._processes.Pipe(duplex=False)
        arguments = (outbox, work, self.room, self._memory)
        process = self._processes.Process(target=_apart, args=arguments, name=name, daemon=True)
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # it cannot travel, such as a lambda
            self._refused.append((name, error))
            return
        outbox.close()
        self._running[inbox] = (name, report, process)

    def ended(self) -> list[tuple[str, Any]]:
        """Wait until something has ended: name and result, or the exception that was raised."""
        done, self._refused = self._refused, []
        while not done:
            for inbox in cast(list[Connection], wait(list(self._running))):
                name, report, process = self._running[inbox]
                try:
                    kind, value = inbox.recv()
                except (EOFError, OSError):  # OSError: in the middle of a message
                    process.join()
                    hint = "; was there too little memory for so many jobs?" if process.exitcode == -9 else ""
                    kind, value = "ended", RuntimeError(f"its process died (exit code {process.exitcode}){hint}")
                if kind == "step":
                    report(*value)
                    continue
                done.append((name, value))
                process.join()
                del self._running[inbox]
        return done

    def stop(self) -> None:
        """End what is running."""
        for _, _, process in self._running.values():
            process.terminate()
        for _, _, process in self._running.values():
            process.join()


def _apart(outbox: Connection, work: Work, room: int, memory: float) -> None:
    """The life of a process: its share of the machine, its work, its answer."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threads = max(1, torch.get_num_threads() // room)
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # those of numpy
    os.environ.setdefault(MEMORY, str(memory / room))
    said = 0.0

    def report(done: int, total: int | None) -> None:
        nonlocal said
        if time.monotonic() - said > _PAUSE:
            said = time.monotonic()
            outbox.send(("step", (done, total)))

    try:
        value = work(report)
    except KeyboardInterrupt:
        return
    except Exception as error:
        _debug(error)
        value = error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            value = RuntimeError(f"{type(error).__name__}: {error}")
    outbox.send(("ended", value))


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one, which may have had no time to say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _debug(error: Exception) -> None:
    if os.environ.get("TORCHTANGENT_DEBUG"):
        traceback.print_exception(error)
