"""Operators for other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchtangent.operators.autocast import without_autocast

if TYPE_CHECKING:
    from torchtangent.operators.base import Operator


def to_scipy(M: Operator) -> Any:
    """A `scipy.sparse.linalg.LinearOperator` that multiplies by M."""
    from scipy.sparse.linalg import LinearOperator

    @without_autocast
    def multiply(x: Any) -> Any:
        if np.iscomplexobj(x):
            return multiply(x.real) + 1j * multiply(x.imag)
        v = torch.from_numpy(np.array(x)).to(device=M.device, dtype=M.dtype)  # a copy: it may be read-only
        return M._matmat(v.reshape(M.size, -1)).reshape(v.shape).detach().cpu().numpy()

    return LinearOperator(
        (M.size, M.size),
        matvec=multiply,
        rmatvec=multiply,
        matmat=multiply,
        rmatmat=multiply,
        dtype=torch.empty((), dtype=M.dtype, device="cpu").numpy().dtype,
    )
