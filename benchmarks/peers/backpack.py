"""BackPACK: one extended backward pass carries all C columns of the loss Hessian's root through the network.

It returns entries and Kronecker factors and leaves the algebra to the user, so only building is measured,
and for KFAC the product by its Kronecker helper. For convolutions its Kronecker factors are another
approximation (gradients summed over locations, inputs not averaged), so that their values are not compared.
"""

import copy
from collections.abc import Callable

import torch
from backpack import backpack, extend
from backpack.extensions import KFLR, DiagGGNExact
from backpack.utils.kroneckers import apply_kfac_mat_prod
from torch import Tensor, nn

from benchmarks.cases import Problem
from benchmarks.peers import BATCHES, Builder, Built, diagonal_of, flatten, splitter

DISTRIBUTION = "backpack-for-pytorch"


def diagonal(problem: Problem) -> Callable[[], Built]:
    """DiagGGNExact."""
    sweep = _sweep(problem, DiagGGNExact, "diag_ggn_exact")
    return lambda: diagonal_of(flatten(values[0] for values in sweep()))


def kfac(problem: Problem) -> Callable[[], Built]:
    """KFLR: the exact one of its Kronecker factorizations, a block per parameter."""
    sweep = _sweep(problem, KFLR, "kflr")

    def build() -> Built:
        factors = sweep()

        def mv(v: list[Tensor]) -> list[Tensor]:
            return [apply_kfac_mat_prod(f, t.reshape(-1)) for f, t in zip(factors, v, strict=True)]

        def trace() -> Tensor:
            return sum(torch.stack([f.trace() for f in fs]).prod() for fs in factors)

        return Built(mv=mv, trace=trace, pack=splitter(problem), unpack=flatten)

    return build


def _sweep(problem: Problem, extension: type, field: str) -> Callable[[], list[list[Tensor]]]:
    """The extension's tensors for every parameter, averaged over the batches."""
    model = copy.deepcopy(problem.model)
    chain = all(type(m) is not nn.Module and not list(m.children()) for m in model)
    model = extend(model, use_converter=not chain)
    loss = extend(nn.CrossEntropyLoss())
    params = list(model.parameters())

    def sweep() -> list[list[Tensor]]:
        total: list[list[Tensor]] = []
        for x, y in problem.batches():
            model.zero_grad()
            with backpack(extension()):
                loss(model(x), y).backward()
            found = [getattr(p, field) for p in params]
            found = [list(f) if isinstance(f, list) else [f] for f in found]
            share = len(x) / len(problem.x)
            if not total and share == 1:
                total = found
            elif not total:
                total = [[share * t for t in f] for f in found]
            else:
                for have, new in zip(total, found, strict=True):
                    for h, t in zip(have, new, strict=True):
                        h.add_(t, alpha=share)
            for p in params:
                delattr(p, field)
        return total

    return sweep


BUILDERS = {
    "diagonal": Builder(diagonal, BATCHES),
    "kfac": Builder(
        kfac,
        BATCHES,
        differs="a block per parameter; for convolutions gradients are summed over locations",
    ),
}
