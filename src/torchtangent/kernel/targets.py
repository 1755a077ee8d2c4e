"""Targets for a kernel as columns: whatever the form they are given in, row n·C + c is output c of sample n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from torchtangent.kernel.matrix import Matrix
from torchtangent.notice import warn


@final
@dataclass(frozen=True)
class Form:
    """The form of targets: (N,) for one output, (N, C) for C outputs; a last axis K holds K targets at once.

    Attributes:
        samples: N.
        outputs: C.
        targets: K, or None for a single target without that axis.

    >>> form = Form(samples=2, outputs=3)
    >>> form.shape, form.restore(torch.arange(6.0)[:, None])
    ((2, 3), tensor([[0., 1., 2.],
            [3., 4., 5.]]))
    """

    samples: int
    outputs: int
    targets: int | None = None

    @property
    def rows(self) -> int:
        """N·C."""
        return self.samples * self.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the targets."""
        inner = () if self.outputs == 1 else (self.outputs,)
        return (self.samples, *inner) if self.targets is None else (self.samples, *inner, self.targets)

    def by_sample(self, columns: Shaped[Tensor, "rows K"]) -> Shaped[Tensor, "M C K"]:
        """The rows split into samples and outputs."""
        return columns.unflatten(0, (-1, self.outputs))

    def restore(self, columns: Shaped[Tensor, "rows K"]) -> Shaped[Tensor, "M ..."]:
        """Columns, for these samples or others, in the form of the targets."""
        return self.each(columns if self.outputs == 1 else self.by_sample(columns))

    def each(self, values: Shaped[Tensor, "... K"]) -> Shaped[Tensor, "..."]:
        """Values with a last axis for targets, without that axis if the targets have none."""
        return values[..., 0] if self.targets is None else values


def form_of(y: Tensor, kernel: Sequence[int], name: str = "y", *, classes: bool = False, instead: str = "") -> Form:
    """The form of targets for a kernel of this shape, (N, N, C, C) or (N·C, N·C).

    With `classes`, a sample has one label for all of its outputs: (N,) or (N, K). If y looks like classes without that,
    the error advises to make them one-hot, followed by the text `instead`.

    >>> form_of(torch.ones(2, 3), (6, 6))
    Form(samples=2, outputs=3, targets=None)
    """
    given = tuple(y.shape)
    if len(kernel) == 4:
        outputs = kernel[2]
    else:  # a matrix does not say how many outputs there are: the number of samples in y does
        outputs = kernel[0] // given[0] if given and given[0] > 1 and kernel[0] % given[0] == 0 else 1
    samples = kernel[0] if len(kernel) == 4 else kernel[0] // outputs
    one = (samples,) if classes or outputs == 1 else (samples, outputs)
    if given[: len(one)] != one or len(given) > len(one) + 1 or 0 in given:
        hint = f" Classes are passed one-hot, F.one_hot({name}, {outputs}){instead}."
        alone = f" If this is one sample with {kernel[0]} outputs, pass the kernel as (1, 1, {kernel[0]}, {kernel[0]})."
        raise ValueError(
            f"A kernel {tuple(kernel)} of {samples} samples with {outputs} output{'s' * (outputs > 1)} needs {name} of "
            f"shape {one}, or ({', '.join(map(str, one))}, K) for K targets at once; got {given}."
            + hint * (outputs > 1 and given == (samples,) and not y.is_floating_point())
            + alone * (len(kernel) == 2 and given == (1, kernel[0]))
        )
    return Form(samples, outputs, given[-1] if len(given) > len(one) else None)


def as_columns(
    y: Any, kernel: Sequence[int], like: Tensor | Matrix, name: str = "y", *, instead: str = ""
) -> tuple[Float[Tensor, "rows K"], Form]:
    """Targets that are numbers, as columns with the dtype and device of `like`; and the form they had."""
    y = numbers(y, name)
    form = form_of(y, kernel, name, instead=instead)
    if y.dim() == 1 and len(classes := _classes(y)) > 2:
        warn(
            f"{name} holds the integers 0 to {len(classes) - 1}, which are taken as numbers here. If they are classes, "
            f"pass them one-hot, F.one_hot({name}){instead}; if not, {name}.float() says so."
        )
    columns = y.to(like.device, like.dtype).reshape(form.rows, -1)
    check_targets(columns, form, name)
    return columns, form


def _classes(y: Shaped[Tensor, " N"]) -> list[int]:
    """The values of y if they are the integers 0, 1, …, k; else an empty list."""
    if y.is_floating_point() or y.dtype == torch.bool:
        return []
    values = y.unique().tolist()
    return values if values == list(range(len(values))) else []


def numbers(y: Any, name: str) -> Shaped[Tensor, "..."]:
    """Targets or labels as a tensor; if that is impossible, the error names them."""
    try:
        if not isinstance(y, Tensor) and hasattr(y, "__array__"):
            y = np.ascontiguousarray(y)  # torch takes no negative strides
        found = y if isinstance(y, Tensor) else torch.as_tensor(y, device="cpu")
        if isinstance(y, list | tuple | float) and found.is_floating_point():
            found = torch.as_tensor(y, dtype=torch.float64, device="cpu")  # not torch's default dtype
        return found.detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} should be numbers in a tensor, an array or a list, but this {type(y).__name__} holds others. "
            "Classes that have names become integers by np.unique(y, return_inverse=True)[1]."
        ) from error


def check_targets(columns: Float[Tensor, "rows K"], form: Form, name: str) -> None:
    """Refuse columns with NaN or infinity."""
    bad = (~torch.isfinite(columns)).any(1)
    if bool(bad.any()):
        sample = int(bad.nonzero()[0]) // form.outputs
        raise ValueError(f"{name} has NaN or infinity, first in sample {sample}.")
