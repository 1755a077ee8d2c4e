"""Processes that a test may kill: forked from a clean one that has imported what they need, not from pytest."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from typing import Any

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["pytest", "torchtangent", "torch._dynamo"])  # torch imports the last one late


def killed(target: Callable[..., None], *args: Any, within: float) -> bool:
    """Whether a child was killed, at most so many seconds after it has sent its first word, or was done before.

    The child is given the arguments and, last, a connection to send by.
    """
    receiver, sender = CHILDREN.Pipe(duplex=False)
    process = CHILDREN.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()  # the child alone has it, so that its end is seen here
    try:
        receiver.recv()
    except EOFError:  # nothing was left to say
        process.join()
    else:
        time.sleep(random.SystemRandom().uniform(0, within))
        process.kill()
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
