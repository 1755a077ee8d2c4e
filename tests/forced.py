"""Kernels by a way of choice, and what they should be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchtangent.kernel.job import Job
from torchtangent.kernel.plan import make_plan, possible_ways

WAYS = ("formed", "forming", "product", "locations", "pixels", "tokens")
REDUCTIONS = ("full", "trace", "sum", "diag")


def expected_kernel(J1: Tensor, J2: Tensor, reduce: str = "full") -> Tensor:
    """The kernel from dense Jacobians (N, C, P), from its definition."""
    K = torch.einsum("ncp,mep->nmce", J1, J2)
    if reduce == "full":
        return K
    diagonal = K.diagonal(dim1=2, dim2=3)
    return {"trace": diagonal.sum(2), "sum": K.sum((2, 3)), "diag": diagonal}[reduce]


def make_job(problem: Any, reduce: str = "full", precision: str | None = None, params: str | None = None) -> Job:
    """The kernel of a model, its inputs and its output, to be run."""
    model, x, output = problem
    return Job(model, x, output=output, reduce=reduce, params=params, precision=precision)


def fits(job: Job, way: str) -> dict[str, str]:
    """The parameters that a way suits, each with it."""
    suits = {name: [w.name for w in possible_ways(layer, job.outputs)] for name, layer in job.task.layers.items()}
    return {name: way for name, names in suits.items() if way in names}


def run_forced(job: Job, way: str, edge: int, panel: int = 1) -> Tensor:
    """The kernel with a way forced wherever it is possible, and with small tiles."""
    edges = tuple((*range(0, len(x), edge), len(x)) for x in (job.x1, job.x2))
    job.plan = replace(make_plan(job.task, fits(job, way)), edges=edges, panel=panel, batch=2)
    return job.run(False)
