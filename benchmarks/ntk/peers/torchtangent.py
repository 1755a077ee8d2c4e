"""torchtangent itself, by its public face."""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

import torchtangent as tt
from benchmarks.ntk.cases import load

DISTRIBUTIONS = ("torchtangent", "torch")


def prepare(data: Mapping[str, np.ndarray]) -> Callable[[], Tensor]:
    """The kernel with every default."""
    model, x = load(data)
    tt.ntk(model, x[:2])  # loads code, takes little memory
    return lambda: tt.ntk(model, x)


def unpack(K: Tensor) -> np.ndarray:
    """(N, N, C, C) as it is."""
    return K.numpy()
