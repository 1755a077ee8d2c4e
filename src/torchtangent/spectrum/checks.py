"""What cannot be decomposed is refused: a K that is not finite or not symmetric."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtangent.kernel.matrix import Matrix

_FEW = 64  # rows of a kernel to judge it by


def check_symmetric(block: Tensor, dtype: torch.dtype) -> None:
    """Refuse a K of which a block QᵀKQ is not finite or not symmetric."""
    gap, size = torch.linalg.vector_norm(block - block.T), torch.linalg.vector_norm(block)
    check_numbers(size)
    if bool(gap > 10 * torch.finfo(dtype).eps ** 0.5 * size):
        raise ValueError(
            f"K is not symmetric: ‖K − Kᵀ‖ / ‖K‖ is about {float(gap / size):.1e}. A kernel of two sets of inputs will "
            "not do here; if this is one of a single set, only not precise enough, pass (K + K.T) / 2."
        )


def check_some_rows(K: Matrix) -> None:
    """Refuse a K that is not finite or not symmetric, judged by some of its rows."""
    few = torch.linspace(0, K.shape[0] - 1, min(K.shape[0], _FEW), device=K.device).long()
    check_symmetric(K.rows(few)[:, few], K.dtype)


def check_numbers(sums: Tensor) -> None:
    """Refuse a K of which some sums of entries are not finite."""
    if not bool(torch.isfinite(sums).all()):
        raise ValueError("K has NaN or infinity. Check how it was computed.")
