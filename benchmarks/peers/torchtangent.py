"""torchtangent itself, by its public face."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torchtangent as tt
from benchmarks.cases import Problem
from benchmarks.peers import DAMPING, TOLERANCE, Builder, Built, refuse_large_blocks

DISTRIBUTION = "torchtangent"


def _prepare(representation: Any) -> Callable[[Problem], Callable[[], Built]]:
    def prepare(problem: Problem) -> Callable[[], Built]:
        if representation is tt.BlockDiagonal:
            refuse_large_blocks(problem, copies=1)
        whole = problem.batch >= len(problem.x)
        data = (problem.x, problem.y) if whole else problem.batches()

        def build() -> Built:
            F = tt.fisher(problem.model, data, representation, likelihood="categorical", kind="exact")
            if representation is tt.Implicit:
                F = replace(F, rtol=TOLERANCE)
            return Built(
                mv=F.__matmul__,
                solve=lambda v: F.solve(v, damping=DAMPING),
                trace=F.trace if representation is not tt.Implicit else None,
                diag=F.diag if representation in (tt.Diagonal, tt.BlockDiagonal) else None,
            )

        return build

    return prepare


BUILDERS = {
    "diagonal": Builder(_prepare(tt.Diagonal)),
    "kfac": Builder(_prepare(tt.KFAC)),
    "ekfac": Builder(_prepare(tt.EKFAC)),
    "block": Builder(_prepare(tt.BlockDiagonal)),
    "implicit": Builder(_prepare(tt.Implicit), lazy=True),
}
