"""Short hashes of the contents of tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

import torch
from jaxtyping import UInt8
from torch import Tensor

STRIPE = 8 << 20  # bytes that are hashed, copied or moved at a time


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
    """A new hash, of the one kind used everywhere: blake2b with 16 bytes."""
    return hashlib.blake2b(digest_size=16)


def bytes_of(tensor: Tensor) -> UInt8[Tensor, "bytes"]:
    """A tensor's bytes in row-major order; a view if it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def stripes(rows: slice, row_bytes: int, least: int = 1) -> Iterator[slice]:
    """A range of rows in stripes of about `STRIPE` bytes, but at least `least` rows."""
    step = max(1, least, STRIPE // max(1, row_bytes))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))
