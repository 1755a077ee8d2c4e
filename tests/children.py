"""Processes that a test may kill: forked from a clean one that has imported what they need, not from pytest."""

from __future__ import annotations

import multiprocessing

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["pytest", "torchtangent", "torch._dynamo"])  # torch imports the last one late
