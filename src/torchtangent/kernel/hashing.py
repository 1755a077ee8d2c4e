"""What a tensor holds, as a short hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

import torch
from jaxtyping import UInt8
from torch import Tensor

STRIPE = 8 << 20  # bytes that are hashed, copied and moved at once


def content_hash(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str:
    """A hash of names, shapes, dtypes and bytes, the same on every device.

    >>> content_hash({"x": torch.zeros(3)}) == content_hash([("x", torch.zeros(3))])
    True
    >>> content_hash({"x": torch.zeros(3)}) == content_hash({"x": torch.zeros(3, 1)})
    False
    """
    digest = new_hash()
    for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
        digest.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        rows = torch.atleast_1d(tensor.detach())
        for part in stripes(slice(0, len(rows)), rows[:1].nbytes):
            digest.update(bytes_of(rows[part].cpu()).numpy().data)
    return digest.hexdigest()


def new_hash() -> hashlib.blake2b:
    """The hash that is used for everything, of 16 bytes."""
    return hashlib.blake2b(digest_size=16)


def bytes_of(tensor: Tensor) -> UInt8[Tensor, "bytes"]:
    """A tensor's bytes in row-major order; its own memory, if it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def stripes(rows: slice, row_bytes: int, least: int = 1) -> Iterator[slice]:
    """Rows, as many at a time as make a stripe, and `least` at least."""
    step = max(1, least, STRIPE // max(1, row_bytes))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))
