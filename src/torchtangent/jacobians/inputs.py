"""What goes into a model and what comes out: batches of tensors, tuples or dicts; (N, ...) outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtangent.notice import NotFinite, dtype_name

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
Output = Callable[[Any], Tensor] | str | int | None
Loss = Callable[[Any, Any], Tensor]

_TARGETS = "the targets"  # a key that no keyword argument can have


def leaves(x: Inputs) -> list[Tensor]:
    """The per-sample tensors of a batch: every tensor with at least one axis."""
    values = x.values() if isinstance(x, Mapping) else (x if isinstance(x, tuple | list) else (x,))
    return [v for v in values if isinstance(v, Tensor) and v.dim() > 0]


def map_leaves(f: Callable[[Tensor], Any], x: Inputs) -> Any:
    """Apply `f` to the per-sample tensors of a batch and keep everything else."""

    def one(v: Any) -> Any:
        return f(v) if isinstance(v, Tensor) and v.dim() > 0 else v

    if isinstance(x, Mapping):
        return {k: one(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        values = [one(v) for v in x]
        return type(x)(*values) if hasattr(x, "_fields") else tuple(values)  # named tuples keep their names
    return one(x)


def equal(x: Any, other: Any) -> bool:
    """Whether inputs are equal, what is no tensor included."""
    if isinstance(x, Mapping) and isinstance(other, Mapping):
        return x.keys() == other.keys() and all(equal(x[k], other[k]) for k in x)
    if isinstance(x, tuple | list) and isinstance(other, tuple | list):
        return len(x) == len(other) and all(map(equal, x, other))
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        return torch.equal(x, other)
    return x is other or (isinstance(x, int | float | str) and x == other)


def versions(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Where tensors are and how often they were written to: unequal if they were changed in between."""
    return [(version_of(t), t.data_ptr() if t.layout == torch.strided else id(t)) for t in tensors]


def version_of(t: Tensor) -> int:
    """How often a tensor was written to."""
    return 0 if t.is_inference() else t._version


def wide(t: Tensor) -> Tensor:
    """Half precision becomes float32: sums are never taken below it."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def take(x: Inputs, index: slice) -> Any:
    """Some samples of a batch."""
    return map_leaves(lambda v: v[index], x)


def batch_size(x: Inputs) -> int:
    """N, the length of the first axis that all tensors of the batch share."""
    tensors = leaves(x)
    if not tensors:
        raise ValueError(
            f"The inputs are a {type(x).__name__} and hold no tensor with a sample axis. Pass a tensor (N, ...), a "
            "tuple or a dict of them; torch.as_tensor makes one of an array."
        )
    _check_dense(tensors)
    sizes = {len(v) for v in tensors}
    if len(sizes) > 1:
        shapes = [tuple(v.shape) for v in tensors]
        raise ValueError(
            f"The inputs disagree on the number of samples (first axis): shapes {shapes}. A tensor that all samples "
            "share (an adjacency matrix) belongs into a buffer of the model, or of a module around it. One graph with "
            "outputs at its nodes is one sample: give its tensors a first axis of 1, and outputs (1, T, C)."
        )
    n = sizes.pop()
    if n == 0:
        raise ValueError("The batch is empty (0 samples): there is nothing to differentiate.")
    return n


def _check_dense(tensors: Iterable[Tensor]) -> None:
    """Refuse tensors from which samples cannot be taken by their index."""
    for v in tensors:
        if v.layout != torch.strided or v.is_nested:
            kind = "nested" if v.is_nested else str(v.layout).removeprefix("torch.")
            raise ValueError(
                f"The inputs hold a {kind} tensor, from which samples cannot be taken. Pass a dense one, or the "
                "tensors that it is made of, samples first, and put it together in the model."
            )


def split(x: Inputs, size: int) -> Iterator[tuple[slice, Any]]:
    """Pieces of a batch of at most `size` samples, as even as can be, each with its place."""
    n = batch_size(x)
    if n <= size:
        yield slice(0, n), x
        return
    even = math.ceil(n / math.ceil(n / size))
    for i in range(0, n, even):
        index = slice(i, min(i + even, n))
        yield index, take(x, index)


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the model's call."""
    if isinstance(x, Mapping):
        return (), dict(x)
    if isinstance(x, tuple | list):
        return tuple(x), {}
    return (x,), {}


def with_targets(x: Inputs, y: Tensor) -> Inputs:
    """A batch of inputs and targets, which stay together when samples are taken from it."""
    return {**x, _TARGETS: y} if isinstance(x, Mapping) else (*arguments(x)[0], y)


def without_targets(x: Inputs) -> tuple[Inputs, Tensor]:
    """The inputs and the targets of such a batch."""
    if isinstance(x, Mapping):
        return {k: v for k, v in x.items() if k != _TARGETS}, x[_TARGETS]
    return tuple(x[:-1]), x[-1]


def check_devices(model: nn.Module, x: Inputs) -> None:
    """Model and data must live on one device, the data as dense tensors."""
    _check_dense(leaves(x))
    where = {p.device for p in model.parameters()}
    for v in leaves(x):
        if where and v.device not in where:
            device = sorted(map(str, where))[0]
            raise ValueError(
                f"The model is on device '{device}' but the data is on '{v.device}'. "
                f"Move one of them, for example x.to('{device}')."
            )


def pick(result: Any, output: Output, n: int, *, flatten: bool = False) -> Tensor:
    """The (N, C) or (N, T, C) tensor inside whatever the model returned; (N,) counts as one output.

    If it may be flattened, more axes count as one long output.
    """
    f = tensor_of(result, output)
    if f.dim() == 0 or len(f) != n:
        raise ValueError(
            f"The model's output of shape {tuple(f.shape)} is not per-sample: its first axis should be the "
            f"{n} samples of the batch. Pass output=... to pick (N, C) outputs."
        )
    if f.dim() == 1:
        f = f.unsqueeze(1)
    if f.numel() == 0:
        raise ValueError(f"The model's output of shape {tuple(f.shape)} is empty: there is nothing to differentiate.")
    if f.dim() > 3 and flatten:
        f = f.flatten(1)
    if f.dim() > 3:
        raise ValueError(
            f"The model's output for {n} samples has shape {tuple(f.shape)}; expected (N, C) or (N, T, C). Pass "
            "output=lambda r: r.flatten(1) for one long output or, where the second axis is classes and the others are "
            "places (pixels), output=lambda r: r.flatten(2).transpose(1, 2)."
        )
    return f


def tensor_of(result: Any, output: Output) -> Tensor:
    """The output tensor in whatever a model returned, in its own shape."""
    f = find(result, output)
    if not isinstance(f, Tensor) or not f.is_floating_point():
        kind = f"a tensor of {f.dtype}" if isinstance(f, Tensor) else f"a {type(f).__name__}"
        raise ValueError(
            f"The model's output is {kind}, not a floating-point tensor. "
            "Pass output=... to say which tensor to differentiate, for example output=lambda r: r.logits."
        )
    return f


def find(result: Any, output: Output) -> Any:
    """What `output` says, or the result itself, or its logits; nothing about it is checked."""
    if callable(output):
        return output(result)
    if isinstance(output, int):
        if isinstance(result, Tensor):
            raise ValueError(
                f"output={output} would pick one of several results, and the model returns a tensor. For one of its "
                f"outputs pass output=lambda f: f[:, {output}]."
            )
        if not isinstance(result, tuple | list) or not -len(result) <= output < len(result):
            has = f"{len(result)} results" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
            raise ValueError(f"output={output} would pick one of several results, and the model returns {has}.")
        return result[output]
    if output is not None and not isinstance(output, str):
        raise ValueError(f"output should be a function of the model's result, a name or a number, got {output!r}.")
    if isinstance(output, str):
        found = result.get(output) if isinstance(result, Mapping) else getattr(result, output, None)
        if found is None:
            has = f"keys {', '.join(map(repr, result))}" if isinstance(result, Mapping) else type(result).__name__
            raise ValueError(f"The model's result ({has}) has no {output!r} for output={output!r}.")
        return found
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping) and "logits" in result:
        return result["logits"]
    return getattr(result, "logits", result)


def check_loss(loss: Any, call: str) -> None:
    """Refuse what is no function, such as a class of losses."""
    if not callable(loss) or isinstance(loss, type):
        raise TypeError(f"{call}: loss should be a function, got a {type(loss).__name__}.")


def losses(loss: Loss, result: Any, output: Output, y: Tensor, n: int) -> Tensor:
    """The loss of each of n samples, (N, 1)."""
    values = loss(find(result, output), y)
    if not isinstance(values, Tensor) or tuple(values.shape) != (n,):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"loss(outputs, targets) should give one value for each of the {n} samples, ({n},), and gave {shape}. Pass "
            "reduction='none' on to torch's losses, lambda f, y: F.cross_entropy(f, y, reduction='none'), and sum over "
            "all but the first axis; targets (N,) broadcast outputs (N, 1) to (N, N)."
        )
    return values.unsqueeze(1)


def check_product(found: Tensor, vectors: Tensor) -> None:
    """A product of J with finite numbers is finite, unless J itself or the dtype's range is the reason."""
    found, vectors = _inside(found), _inside(vectors)
    if bool(torch.isfinite(found.sum())):
        return  # no entry needs to be looked at
    if bool(torch.isfinite(vectors).all()) and not bool(torch.isfinite(found).all()):
        raise NotFinite(
            "The product has NaN or infinity although the outputs are finite: a derivative is infinite (as that of "
            f"√x is at 0), or numbers leave the range of {dtype_name(found.dtype)}."
        )


def _inside(t: Tensor) -> Tensor:
    """The numbers in a tensor that `vmap` or other transforms of torch.func have wrapped: those of all its copies."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


def check_finite(f: Tensor) -> None:
    """Outputs with NaN or infinity have no meaningful Jacobian."""
    finite = torch.isfinite(f)
    if not bool(finite.all()):
        bad = int((~finite).flatten(1).any(1).nonzero()[0])
        raise NotFinite(
            f"The model's output has NaN or infinity (first at sample {bad} of the batch). "
            "Check the inputs and the parameters."
        )
