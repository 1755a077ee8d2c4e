"""NNGeometry: hooks catch a layer's input and output gradient, one backward pass per column of the Fisher's root.

The exact softmax Fisher takes C-1 backward passes (a Cholesky root), down to the inputs but without
weight gradients. Convolutions go through `F.unfold`, again at every pass.
"""

from collections.abc import Callable
from typing import Any

from nngeometry.layercollection import LayerCollection
from nngeometry.metrics import FIM
from nngeometry.object import PMatBlockDiag, PMatDiag, PMatEKFAC, PMatImplicit, PMatKFAC, PVector
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.cases import Problem
from benchmarks.peers import BATCHES, DAMPING, Builder, Built, refuse_large_blocks

DISTRIBUTION = "nngeometry"


class Batched(Dataset):
    """The data, a whole batch at a time: saves the loader from collating single samples."""

    def __init__(self, problem: Problem):
        self.problem = problem

    def __len__(self) -> int:
        return len(self.problem.x)

    def __getitems__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        """All samples of a batch at once."""
        return self.problem.x[index], self.problem.y[index]


def loader(problem: Problem) -> DataLoader:
    """The loader that NNGeometry asks for."""
    return DataLoader(Batched(problem), batch_size=problem.batch, collate_fn=lambda batch: batch)


def _prepare(representation: type) -> Callable[[Problem], Callable[[], Built]]:
    def prepare(problem: Problem) -> Callable[[], Built]:
        if representation is PMatBlockDiag:
            refuse_large_blocks(problem, copies=2)  # a product as large, and the quotient
        data = loader(problem)
        layers = LayerCollection.from_model(problem.model)

        def build() -> Built:
            F = FIM(
                problem.model,
                data,
                representation,
                variant="classif_logits",
                device=str(problem.x.device),
                layer_collection=layers,
            )
            if representation is PMatEKFAC:
                F.update_diag(data)
            return _built(F, layers)

        return build

    return prepare


def _built(F: Any, layers: LayerCollection) -> Built:
    solvable = not isinstance(F, PMatImplicit)
    return Built(
        mv=F.mv,
        solve=(lambda v: F.solve(v, regul=DAMPING)) if solvable else None,
        trace=F.trace,
        diag=F.get_diag if isinstance(F, PMatDiag | PMatBlockDiag) else None,
        pack=lambda flat: _dict(PVector(layers, vector_repr=flat)),
        unpack=lambda v: v.to_torch(),
    )


def _dict(v: PVector) -> PVector:
    """A vector that has both formats at hand."""
    v.dict_repr = {k: tuple(t.contiguous() for t in parts) for k, parts in v.to_dict().items()}
    return v


BUILDERS = {
    "diagonal": Builder(_prepare(PMatDiag), BATCHES),
    "kfac": Builder(_prepare(PMatKFAC), BATCHES),
    "ekfac": Builder(_prepare(PMatEKFAC), BATCHES),
    "block": Builder(_prepare(PMatBlockDiag), BATCHES),
    "implicit": Builder(_prepare(PMatImplicit), BATCHES, lazy=True),
}
