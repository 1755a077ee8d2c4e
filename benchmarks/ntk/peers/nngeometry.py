"""NNGeometry's Gram matrix: a backward pass per pair of outputs and of batches, hooks contract layer by layer.

Linear layers are contracted as products of two Gram matrices; convolutions form per-sample gradients, by
`F.unfold` or by a grouped convolution.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
from nngeometry.backend.torch_hooks import use_conv_impl_for_convs, use_unfold_impl_for_convs
from nngeometry.gram import GramMatrix
from nngeometry.layercollection import LayerCollection
from nngeometry.object import FMatDense
from torch import Tensor

from benchmarks.cases import Problem
from benchmarks.ntk.cases import load
from benchmarks.peers.nngeometry import loader

DISTRIBUTIONS = ("nngeometry", "torch")
CONVOLUTIONS: dict[str, type[AbstractContextManager]] = {
    "unfold": use_unfold_impl_for_convs,
    "conv": use_conv_impl_for_convs,
}


def prepare(data: Mapping[str, np.ndarray], batch: int | None, conv: str) -> Callable[[], FMatDense]:
    """The Gram matrix, by batches of samples."""
    model, x = load(data)
    layers = LayerCollection.from_model(model)

    def kernel(x: Tensor) -> FMatDense:
        examples = loader(Problem(model, x, torch.zeros(len(x)), batch or len(x)))
        with CONVOLUTIONS[conv]():
            return GramMatrix(model, examples, layer_collection=layers)

    kernel(x[:2])  # loads code, takes little memory
    return lambda: kernel(x)


def unpack(G: FMatDense) -> np.ndarray:
    """From (C, N, C, N)."""
    return G.to_torch().detach().permute(1, 3, 0, 2).numpy()
