"""Matrix products, by the faster of the two libraries that torch has for them on a CPU.

MKL, which `torch.mm` calls, keeps its AVX-512 code to Intel's processors. oneDNN, which torch calls for convolutions,
does not: on an AMD EPYC the same product in float32 took half the time. torch has no public switch between the two;
the operator below is the one that compiled models call for their linear layers. Where it is missing, switched off
(`torch.backends.mkldnn.enabled`) or of no use, products are torch's own.

Where a factor is narrow, MKL adds one product after the other, to what is there already if there is something: sums of
10⁶ float32 numbers were off by 10⁻⁴. Such products are taken in parts, which are added in float64.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from torchtangent.operators.autocast import without_autocast

_WORTH = 1 << 22  # multiplications of a product, and
_EDGE = 8  # its shortest edge, from which on oneDNN is faster,
_TERMS = 1 << 18  # unless its sums are longer
_NARROW = 16  # columns: with fewer, MKL's sums are one chain,
_LONG = 1 << 11  # and from so many terms on they are taken in parts
_CHAIN = 1 << 10  # of so many
_COPIED = 1 << 24  # numbers of a factor that has to be copied, at most: of a left one by columns, or one with gaps
_LARGE = 1 << 16  # entries of a weight whose products are worth a look at every operation of a model
_ALIGNED = 16  # numbers: MKL and GPUs multiply rows that begin at multiples of this faster
_ROWS = 512  # of a product that is added to something, at a time: what is added stays in the cache


@without_autocast
def product(
    a: Float[Tensor, "*B n k"],
    b: Float[Tensor, "*B k m"],
    out: Float[Tensor, "*B n m"] | None = None,
    *,
    reused: bool = False,
) -> Float[Tensor, "*B n m"]:
    """a b; a batch of one as plain matrices, which are faster, and large ones one by one.

    Args:
        a: Of any layout, like b.
        b: If batched, with as many matrices as a.
        out: Where to write it.
        reused: Whether the result is a factor of further products; it is then stored as they like it.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    plain = out is None and not reused and a.dim() == b.dim() == 2
    if plain and a.shape[0] * b.numel() < _WORTH and a.shape[1] <= _LONG:  # what follows would take as long
        return a @ b
    if a.device.type == "cpu":
        if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] == 1:
            return product(a[0], b[0], None if out is None else out[0], reused=reused).unsqueeze(0)
        if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] > 0 and by_onednn(a[0], b[0]):
            out = a.new_empty(*a.shape[:2], b.shape[2]) if out is None else out
            for one, other, place in zip(a, b, out, strict=True):
                product(one, other, place)
            return out
        if by_onednn(a, b):
            found = _multiply(a, b)
            return found if out is None else out.copy_(found)
    if _long_sums(a, b):
        total = _in_parts(a, b)
        return total if out is None else out.copy_(total)
    if reused and out is None:
        out = empty_rows(a, *a.shape[:-1], b.shape[-1])
    return torch.bmm(a, b, out=out) if a.dim() == b.dim() == 3 else torch.matmul(a, b, out=out)


def add_product(
    out: Float[Tensor, "n m"], a: Float[Tensor, "n k"], b: Float[Tensor, "k m"], alpha: float = 1.0
) -> None:
    """out += alpha a b."""
    if not by_onednn(a, b):
        if _narrow(a, b):
            out.add_(product(a, b), alpha=alpha)
        else:
            out.addmm_(a, b, alpha=alpha)
        return
    b = _dense(b.T).T
    for part, place in zip(a.split(_ROWS), out.split(_ROWS), strict=True):
        if by_onednn(part, b):
            place.add_(_multiply(part, b), alpha=alpha)
        else:  # the last rows, if few
            place.addmm_(part, b, alpha=alpha)


def add_products(
    out: Float[Tensor, "B n m"], a: Float[Tensor, "B n k"], b: Float[Tensor, "B k m"], alpha: float = 1.0
) -> None:
    """out += alpha a b, for each of B matrices."""
    if len(out) == 1:
        add_product(out[0], a[0], b[0], alpha)
    else:
        if _narrow(a, b):
            out.add_(product(a, b), alpha=alpha)
        else:
            out.baddbmm_(a, b, alpha=alpha)


def empty_rows(like: Tensor, *shape: int) -> Tensor:
    """An empty tensor for a factor of products: for MKL and GPUs its rows are longer, to begin where they like it."""
    *rows, columns = shape
    unit = 1 if like.device.type == "cpu" and _slow_mkl() else _ALIGNED
    return like.new_empty(*rows, math.ceil(columns / unit) * unit)[..., :columns]


class Everywhere(TorchDispatchMode):
    """Inside of it torch's own products of large matrices are taken the same way, below autograd."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled parts of a model stay compiled

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it is to import it, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and _suits(*args):
            return _multiply(*args)
        if func is torch.ops.aten.addmm.default and not kwargs:
            bias, a, b = args
            if bias.shape == b.shape[1:] and bias.is_contiguous() and _suits(a, b):
                return _multiply(a, b, bias)
        return func(*args, **(kwargs or {}))


def everywhere(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """`Everywhere`, where torch's own products are the slower ones and some of the weights are large matrices."""
    if _slow_mkl() and any(
        w.dim() == 2 and w.numel() >= _LARGE and w.dtype == torch.float32 and w.device.type == "cpu" for w in weights
    ):
        return Everywhere()
    return nullcontext()


def by_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN multiplies two matrices: they are large, it is faster, and no derivative is asked for."""
    if not _suits(a, b) or forward_ad._current_level >= 0:
        return False
    wanted = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return not wanted and not any(map(torch._C._functorch.is_functorch_wrapped_tensor, (a, b)))


def _long_sums(a: Float[Tensor, "*B n k"], b: Float[Tensor, "*B k m"]) -> bool:
    """Whether MKL would add more float32 numbers one by one than rounding allows."""
    return a.shape[-1] > _LONG and _narrow(a, b)


def _narrow(a: Float[Tensor, "*B n k"], b: Float[Tensor, "*B k m"]) -> bool:
    """Whether MKL adds float32 numbers one by one."""
    return min(a.shape[-2], b.shape[-1]) < _NARROW and a.device.type == "cpu" and a.dtype == torch.float32


def _in_parts(a: Float[Tensor, "*B n k"], b: Float[Tensor, "*B k m"]) -> Float[Tensor, "*B n m"]:
    """a b, of whose sums parts are added in float64."""
    whole = a.shape[-1] // _CHAIN * _CHAIN
    left = a[..., :whole].unflatten(-1, (-1, _CHAIN)).movedim(-2, 0)
    right = b[..., :whole, :].unflatten(-2, (-1, _CHAIN)).movedim(-3, 0)
    total = torch.matmul(left, right).sum(0, dtype=torch.float64)
    return (total + (a[..., whole:] @ b[..., whole:, :])).to(a.dtype)


def _suits(a: Tensor, b: Tensor) -> bool:
    return (
        _slow_mkl()
        and a.dim() == b.dim() == 2
        and a.shape[1] == b.shape[0] <= _TERMS
        and a.shape[0] * b.numel() >= _WORTH
        and min(a.shape[0], *b.shape) >= _EDGE
        and a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and a.layout == b.layout == torch.strided
        and {type(a), type(b)} <= {Tensor, nn.Parameter}
        and torch._C._get_mkldnn_enabled()
        and (a.is_contiguous() or a.numel() <= _COPIED)
        and (_without_gaps(b) or b.numel() <= _COPIED)
    )


def _multiply(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"], bias: Tensor | None = None) -> Float[Tensor, "n m"]:
    return torch.ops.mkldnn._linear_pointwise(_dense(a), _dense(b.T), bias, "none", [], "")


@cache
def _slow_mkl() -> bool:
    """Whether this is a processor with AVX-512 for which MKL does not use it."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "Intel" not in _vendor()
    )


def _vendor() -> str:
    """Who made the processor, as it says itself; Intel where nothing is said, so that products are torch's own."""
    about = Path("/proc/cpuinfo")
    if not about.exists():
        return platform.processor() or "Intel"
    lines = (line.partition(":") for line in about.read_text().splitlines())
    return next((value for key, _, value in lines if key.strip() == "vendor_id"), "Intel")


def _dense(t: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """The same numbers without gaps, of which oneDNN makes a slow loop."""
    return t if _without_gaps(t) else t.contiguous()


def _without_gaps(t: Float[Tensor, "n k"]) -> bool:
    """Whether rows, or columns, follow each other in memory."""
    return t.is_contiguous() or t.T.is_contiguous()
