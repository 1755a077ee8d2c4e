"""curvlinops: linear operators. (E)KFAC from hooks, C backward passes with weight gradients; products by torch.func.

The type-2 Fisher is the exact one. Weights and biases are taken jointly, as we do. A block of the block diagonal
is a Gauss-Newton operator of one layer's parameters: nothing is formed, a product costs one pass per layer.
"""

from collections.abc import Callable

import torch
from curvlinops import (
    CGInverseLinearOperator,
    EKFACLinearOperator,
    GGNLinearOperator,
    KFACInverseLinearOperator,
    KFACLinearOperator,
)
from curvlinops.examples import IdentityLinearOperator
from torch import Tensor, nn

from benchmarks.cases import Problem
from benchmarks.peers import BATCHES, DAMPING, TOLERANCE, Builder, Built, flatten, splitter

DISTRIBUTION = "curvlinops-for-pytorch"


def kfac(problem: Problem) -> Callable[[], Built]:
    """KFAC-expand."""

    def build() -> Built:
        A = KFACLinearOperator(*_arguments(problem), **_FACTORED, num_data=len(problem.x))
        A.compute_kronecker_factors()
        return _factored(A, problem)

    return build


def ekfac(problem: Problem) -> Callable[[], Built]:
    """KFAC-expand's eigenbasis with the true second moments."""

    def build() -> Built:
        A = EKFACLinearOperator(*_arguments(problem), **_FACTORED, num_data=len(problem.x))
        A.compute_kronecker_factors()
        A.compute_eigenvalue_correction()
        return _factored(A, problem)

    return build


def implicit(problem: Problem) -> Callable[[], Built]:
    """The Gauss-Newton matrix, equal to the Fisher for a softmax."""

    def build() -> Built:
        G = _ggn(problem, list(problem.model.parameters()))
        return Built(mv=G.__matmul__, solve=_cg(G), pack=splitter(problem), unpack=flatten)

    return build


def block(problem: Problem) -> Callable[[], Built]:
    """One implicit operator per layer."""
    owners = [m for m in problem.model.modules() if list(m.parameters(recurse=False))]
    groups = [list(m.parameters(recurse=False)) for m in owners]

    def build() -> Built:
        operators = [_ggn(problem, params) for params in groups]

        def mv(vs: list[list[Tensor]]) -> list[list[Tensor]]:
            return [G @ v for G, v in zip(operators, vs, strict=True)]

        return Built(mv=mv, pack=_grouped(problem, groups), unpack=lambda vs: flatten(t for v in vs for t in v))

    return build


_FACTORED = {
    "fisher_type": "type-2",
    "kfac_approx": "expand",
    "separate_weight_and_bias": False,
    "check_deterministic": False,
    "num_per_example_loss_terms": 1,
}


def _arguments(problem: Problem) -> tuple:
    return problem.model, nn.CrossEntropyLoss(), list(problem.model.parameters()), problem.batches()


def _factored(A: KFACLinearOperator, problem: Problem) -> Built:
    inverse = KFACInverseLinearOperator(A, damping=DAMPING, use_exact_damping=True)

    def trace() -> Tensor:
        A._trace = None  # it is cached; every call is to compute it
        return A.trace

    return Built(mv=A.__matmul__, solve=inverse.__matmul__, trace=trace, pack=splitter(problem), unpack=flatten)


def _ggn(problem: Problem, params: list[nn.Parameter]) -> GGNLinearOperator:
    loss, data = nn.CrossEntropyLoss(), problem.batches()
    return GGNLinearOperator(problem.model, loss, params, data, check_deterministic=False, num_data=len(problem.x))


def _cg(G: GGNLinearOperator) -> Callable[[list[Tensor]], list[Tensor]]:
    shapes = [tuple(p.shape) for p in G._params]
    damped = G + DAMPING * IdentityLinearOperator(shapes, G._params[0].device, torch.float32)
    return CGInverseLinearOperator(damped, tolerance=TOLERANCE, eps=0.0, max_iter=1000, max_tridiag_iter=0).__matmul__


def _grouped(problem: Problem, groups: list[list[nn.Parameter]]) -> Callable[[Tensor], list[list[Tensor]]]:
    split, sizes = splitter(problem), [len(g) for g in groups]

    def pack(flat: Tensor) -> list[list[Tensor]]:
        parts = iter(split(flat))
        return [[next(parts) for _ in range(n)] for n in sizes]

    return pack


BUILDERS = {
    "kfac": Builder(kfac, BATCHES),
    "ekfac": Builder(ekfac, BATCHES),
    "block": Builder(block, BATCHES, lazy=True),
    "implicit": Builder(implicit, BATCHES, lazy=True),
}
