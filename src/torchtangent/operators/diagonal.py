"""A diagonal matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.basis import Identity
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import Factorization, Spectrum


@final
@dataclass(frozen=True, eq=False, repr=False)
class DiagonalOperator(Operator):
    """M = diag(values).

    Args:
        values: (P,).

    Example:
        >>> import torch
        >>> M = DiagonalOperator(torch.tensor([1.0, 4.0]))
        >>> M.sqrt_mv(torch.ones(2)), M.quad(torch.ones(2))
        (tensor([1., 2.]), tensor(5.))
    """

    values: Tensor
    space: Space | None = field(default=None, kw_only=True)

    keeps_factorization: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError(f"DiagonalOperator needs values of shape (P,), got {tuple(self.values.shape)}.")
        self._describe(len(self.values), like=self.values)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self.values.unsqueeze(1) * V

    def _factorize(self, damping: float) -> Factorization:
        spectrum, name = self._spectrum, repr(self)
        shifted = spectrum.shifted(damping, name)[0].unsqueeze(1)
        return Factorization(lambda V: V / shifted, lambda: spectrum.logdet(damping, name))

    def _decompose(self) -> Spectrum:
        return Spectrum(self.values, Identity(self.size, self.dtype, self.device))

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.values.clone()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self._spectrum.power_trace(power)
