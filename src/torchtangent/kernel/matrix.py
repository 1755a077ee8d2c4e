"""A kernel as a matrix, whatever holds it: a tensor, an array on disk, or something that only has products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.ntk import flatten
from torchtangent.operators import Operator
from torchtangent.operators.autocast import without_autocast
from torchtangent.operators.product import product

_BLOCK_BYTES = 256 << 20  # size of the blocks of rows in which a matrix is moved
_WIDE_BYTES = {"cpu": 2 << 20}  # of those in which one is converted to float64: what a CPU's cache holds
_COLUMNS = 256  # columns of the identity multiplied at a time


class Matrix(ABC):
    """A real matrix (M, N), made from a kernel by `as_matrix`.

    Attributes:
        shape: (M, N).
        dtype: The dtype of products and rows, at least float32.
        stored: The dtype of the numbers as given, which says how exact they are.
        device: Where products are computed.
        resident: Whether nothing has to be moved for a product: its cost is that of the multiplications.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    resident: bool = False

    @property
    def stored(self) -> torch.dtype:
        return self.dtype

    @abstractmethod
    def __matmul__(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        """K V."""

    def times(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        """K V, computed in float64 if the entries of K are at hand, so that terms may cancel without loss."""
        with float32_products():
            return (self @ V.to(self.dtype)).double()

    @abstractmethod
    def rows(self, index: Int[Tensor, " R"]) -> Float[Tensor, "R N"]:
        """The rows with these indices."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "M N"]:
        """The whole matrix; not a copy if it is a tensor already."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " M"]:
        """The diagonal."""


def as_matrix(K: Tensor | np.ndarray | Operator | Any, device: torch.device | str | None = None) -> Matrix:
    """A kernel as a `Matrix` (M, N).

    Args:
        K: A tensor or an array, possibly on disk (`np.load(…, mmap_mode="r")`), of shape (M, N) or (M, N, C, C), which
            then has a row for each sample and output; an operator; or any object with `shape` and `@`. Such an object
            is given arrays if its `dtype` is numpy's and tensors if it is torch's; without a dtype, both are tried.
        device: Where to compute; by default where K is.

    >>> K = as_matrix(np.eye(3)[:2])
    >>> K.shape, K @ torch.ones(3, 1, dtype=torch.float64)
    ((2, 3), tensor([[1.],
            [1.]], dtype=torch.float64))
    """
    if isinstance(K, Matrix):
        return K
    shape = tuple(K.shape)
    if len(shape) not in (2, 4) or (len(shape) == 4 and shape[2] != shape[3]):
        raise ValueError(f"A kernel has shape (M, N) or (M, N, C, C), got {shape}.")
    if not isinstance(K, Tensor | np.ndarray):
        return _Products(K, device)
    dtype = torch.promote_types(_checked_dtype(K.dtype), torch.float32)
    own = K.device if isinstance(K, Tensor) else torch.device("cpu")
    where = own if device is None else torch.empty(0, device=device).device
    if isinstance(K, Tensor) and K.dtype == dtype and K.device == where:
        return _Resident(K if K.dim() == 2 else flatten(K))
    return _Streamed(K, dtype, where)


def wide_rows(columns: int, device: torch.device) -> int:
    """How many rows of a matrix to convert to float64 at a time."""
    return max(1, _WIDE_BYTES.get(device.type, _BLOCK_BYTES) // (8 * columns))


def as_square(K: Tensor | np.ndarray | Operator | Any, device: torch.device | str | None = None) -> Matrix:
    """K as a square matrix, with a row for each sample and output."""
    shape = tuple(K.shape)
    if len(shape) not in (2, 4) or shape[0] != shape[1]:
        raise ValueError(f"K must be a square matrix (N, N), or (N, N, C, C) for C outputs, got shape {shape}.")
    return as_matrix(K, device)


def _checked_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype for one of torch or numpy, which must be a floating-point one."""
    own = dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, dtype)).dtype
    if not own.is_floating_point:
        raise ValueError(f"K has dtype {dtype}: a kernel has floating-point numbers. Convert it first.")
    return own


@final
class _Resident(Matrix):
    """A tensor with the right dtype on the right device."""

    resident = True

    def __init__(self, K: Float[Tensor, "M N"]) -> None:
        self._K = K
        self.shape, self.dtype, self.device = (K.shape[0], K.shape[1]), K.dtype, K.device

    def __matmul__(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        return product(self._K, V)

    def times(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        step = wide_rows(self.shape[1], self.device)
        return torch.cat([block.double() @ V.double() for block in self._K.split(step)])

    def rows(self, index: Int[Tensor, " R"]) -> Float[Tensor, "R N"]:
        return self._K[index.to(self.device)]

    def dense(self) -> Float[Tensor, "M N"]:
        return self._K

    def diagonal(self) -> Float[Tensor, " M"]:
        return self._K.diagonal()


@final
class _Streamed(Matrix):
    """An array, or a tensor of another dtype or device, that is converted in blocks of rows."""

    def __init__(self, K: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._K, self.dtype, self.device = K, dtype, device
        self._stored = _checked_dtype(K.dtype)
        self._outputs = K.shape[2] if K.ndim == 4 else 1
        self.shape = (K.shape[0] * self._outputs, K.shape[1] * self._outputs)
        bytes_of_a_row = self.shape[1] * self._outputs * K.itemsize
        self._step = max(1, _BLOCK_BYTES // bytes_of_a_row)

    @property
    def stored(self) -> torch.dtype:
        return self._stored

    def __matmul__(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        return torch.cat([product(R, V) for R in self._blocks()])

    def times(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        return torch.cat([R.double() @ V.double() for R in self._blocks()])

    def rows(self, index: Int[Tensor, " R"]) -> Float[Tensor, "R N"]:
        samples, place = (index.cpu() // self._outputs).unique(return_inverse=True)
        rows = place * self._outputs + index.cpu() % self._outputs
        where: Any = samples.numpy() if isinstance(self._K, np.ndarray) else samples.to(self._K.device)
        return self._moved(self._K[where])[rows.to(self.device)]

    def dense(self) -> Float[Tensor, "M N"]:
        return torch.cat([*self._blocks()])

    def diagonal(self) -> Float[Tensor, " M"]:
        n = np.arange(min(self._K.shape[:2]))
        own = self._K[n, n]  # (N,) or (N, C, C)
        own = own if isinstance(own, Tensor) else torch.from_numpy(np.array(own))
        return (own.diagonal(dim1=1, dim2=2).flatten() if own.dim() == 3 else own).to(self.device, self.dtype)

    def _blocks(self) -> Iterator[Float[Tensor, "R N"]]:
        for i in range(0, self._K.shape[0], self._step):
            yield self._moved(self._K[i : i + self._step])

    def _moved(self, block: Any) -> Float[Tensor, "R N"]:
        """Rows on the device. An array is copied, because torch does not accept read-only memory."""
        block = (block if isinstance(block, Tensor) else torch.from_numpy(np.array(block))).to(self.device, self.dtype)
        return block if block.dim() == 2 else flatten(block)


@final
class _Products(Matrix):
    """An object that only has products; where rows are asked for, it must be symmetric."""

    def __init__(self, K: Any, device: torch.device | str | None) -> None:
        self._K = K
        self.shape = tuple(K.shape)
        dtype = getattr(K, "dtype", None)
        dtype = _dtype_of_products(K) if dtype is None else dtype
        self._takes_arrays = not isinstance(dtype, torch.dtype)
        self.dtype = torch.promote_types(_checked_dtype(dtype), torch.float32) if self._takes_arrays else dtype
        where = "cpu" if self._takes_arrays else getattr(K, "device", "cpu")
        self.device = torch.empty(0, device=where).device  # resolves "cuda" to "cuda:0"
        if device is not None and torch.empty(0, device=device).device != self.device:
            raise ValueError(f"K works on {self.device} and cannot be moved to {device} from here.")

    @without_autocast
    def __matmul__(self, V: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
        if not self._takes_arrays:
            return self._K @ V
        return torch.from_numpy(np.array(self._K @ V.detach().numpy())).to(self.dtype)

    def rows(self, index: Int[Tensor, " R"]) -> Float[Tensor, "R N"]:
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"Rows of a {self.shape} product are not known. Pass the matrix itself.")
        return torch.cat([self._columns(part).T for part in index.split(_COLUMNS)])

    def dense(self) -> Float[Tensor, "M N"]:
        return torch.cat([self._columns(part) for part in torch.arange(self.shape[1], device="cpu").split(_COLUMNS)], 1)

    def diagonal(self) -> Float[Tensor, " M"]:
        if isinstance(self._K, Operator):
            return self._K.diag()
        parts = torch.arange(min(self.shape), device="cpu").split(_COLUMNS)
        return torch.cat([self._columns(part)[part].diagonal() for part in parts])

    def _columns(self, index: Int[Tensor, " K"]) -> Float[Tensor, "M K"]:
        units = torch.zeros(self.shape[1], len(index), dtype=self.dtype, device=self.device)
        units[index.to(self.device), torch.arange(len(index), device=self.device)] = 1
        return self @ units


def _dtype_of_products(K: Any) -> Any:
    """The dtype of K @ v, for whichever v it accepts: a tensor of float32 or float64, or an array."""
    v = torch.ones(K.shape[1], 1, device=getattr(K, "device", "cpu"))
    error: Exception | None = None
    for one in (v, v.double(), np.ones((K.shape[1], 1), np.float32)):
        try:
            return (K @ one).dtype
        except (TypeError, ValueError, RuntimeError, AttributeError) as found:
            error = found
    raise ValueError(
        f"K @ v fails for this {type(K).__name__}, with tensors and with arrays. Give it a dtype."
    ) from error
