"""torch.func as in PyTorch's tutorial on tangent kernels: vmap over jacrev, then a sum of products per parameter.

The tutorial forms two Jacobians; here both sets of samples are the same, and one is formed.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from benchmarks.ntk.cases import load

DISTRIBUTIONS = ("torch",)


def prepare(data: Mapping[str, np.ndarray], batch: int | None) -> Callable[[], Tensor]:
    """The kernel, Jacobians formed `batch` samples at a time."""
    model, x = load(data)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def single(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, params, (x[None],))[0]

    def kernel(x: Tensor) -> Tensor:
        J = vmap(jacrev(single), (None, 0), chunk_size=batch)(params, x)
        return sum(torch.einsum("ncp,mep->nmce", j, j) for j in (j.flatten(2) for j in J.values()))

    kernel(x[:2])  # loads code, takes little memory
    return lambda: kernel(x)


def unpack(K: Tensor) -> np.ndarray:
    """(N, N, C, C) as it is."""
    return K.numpy()
