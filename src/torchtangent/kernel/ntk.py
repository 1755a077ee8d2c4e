"""`ntk()`: the tangent kernel."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.select import Params
from torchtangent.kernel.job import Job
from torchtangent.progress import Report


def ntk(
    model: nn.Module,
    x1: Any,
    x2: Any = None,
    *,
    output: Output = None,
    reduce: str = "full",
    params: Params = None,
    per_layer: bool = False,
    precision: str | torch.dtype | None = None,
    max_memory: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Report | None = None,
    explain: bool = False,
) -> Any:
    r"""The tangent kernel K[n,m,c,e] = ⟨∂f_c(x_n)/∂θ, ∂f_e(x_m)/∂θ⟩.

    Each layer's part is contracted from its factors in the cheapest way; J as a whole is never formed.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x1: Inputs: a tensor (N1, ...), a tuple or dict of them, or a data set of single inputs. They may live on the
            CPU while the model is on a GPU.
        x2: Inputs of the second axis; by default x1, and then K is symmetric to the last bit.
        output: Which tensor of the model's result, (N, C) or (N, T, C), in which case T·C counts as C.
        reduce: "full"; "trace", Σ_c K[n,m,c,c]; "sum", Σ_ce K[n,m,c,e]; or "diag", K[n,m,c,c].
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        per_layer: Return a dict with the kernel of each parameter instead; they sum to K.
        precision: "float64", "float32", "tf32", "bfloat16" or "float16", or a dtype (factors rounded to it, products
            summed in float32). The model's own by default; the model itself always runs in its own.
        max_memory: Bytes to stay within; by default a fixed fraction of the memory of the machine, or of its container,
            shared by torchrun's processes on it. The environment variable `TORCHTANGENT_MEMORY` can set the fraction
            for each process, such as 0.2 where several share it.
        out: A file (.npy) to write the kernel to, tile by tile. A run that was stopped resumes where it was; under
            torchrun the ranks share the tiles.
        progress: Show a line with rate and end time: True, False, on terminals only (default), or a function of
            (pairs done, pairs in all).
        explain: Print the plan: for each parameter the way, multiplications, bytes per sample and predicted seconds.

    Returns:
        (N1, N2, C, C) for "full", (N1, N2, C) for "diag", (N1, N2) for "trace" and "sum"; with `out` a read-only
        `numpy.memmap` of the file.

    >>> import torch
    >>> net = nn.Linear(2, 1)
    >>> x = torch.tensor([[1., 0.], [2., 3.]])
    >>> ntk(net, x, reduce="trace")                # ⟨x_n, x_m⟩ + 1
    tensor([[ 2.,  3.],
            [ 3., 14.]])
    """
    if max_memory is not None and not isinstance(max_memory, int | np.integer):
        raise TypeError(f"max_memory is a number of bytes, got {max_memory!r}.")
    if out is not None and per_layer:
        raise ValueError("out= writes one kernel; per_layer=True gives several. Ask for one parameter with params=...")
    job = Job(
        model,
        x1,
        x2,
        output=output,
        reduce=reduce,
        params=params,
        per_layer=per_layer,
        precision=precision,
        max_memory=None if max_memory is None else int(max_memory),
        stored=out is not None,
    )
    if explain:
        print(job.plan)
    return job.run(progress) if out is None else job.run_to(out, progress)


def flatten(K: Any) -> Any:
    """(N1, N2, C, C) → (N1·C, N2·C): a kernel, tensor or array, with a row for each sample and output.

    >>> import torch
    >>> flatten(torch.arange(16.).view(2, 2, 2, 2))[0]
    tensor([0., 1., 4., 5.])
    """
    if K.ndim != 4:
        raise ValueError(f"flatten takes a kernel (N1, N2, C, C), got shape {tuple(K.shape)}.")
    N, M, C, E = K.shape
    return (K.permute if isinstance(K, Tensor) else K.transpose)(0, 2, 1, 3).reshape(N * C, M * E)
