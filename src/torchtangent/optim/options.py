"""The options that KFAC and EKFAC share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from torchtangent.curvature.cotangents import LIKELIHOODS
from torchtangent.notice import check_choice
from torchtangent.optim.partition import RESTS


class Options(TypedDict, total=False):
    """The keyword arguments of every preconditioned optimizer; `EKFAC` explains them."""

    params: Any
    momentum: float
    weight_decay: float
    basis_every: int
    sua: bool
    rest: str
    loss: str
    curvature: str
    likelihood: str | None
    decoupled: bool
    kl_clip: float | None
    scaler: Any
    seed: int
    batch_axis: int


@dataclass(frozen=True)
class Settings:
    """The options that hold for all parameters and the whole run; `EKFAC` explains them.

    >>> Settings().basis_every
    50
    """

    basis_every: int = 50
    sua: bool = False
    rest: str = "block"
    loss: str = "mean"
    curvature: str = "empirical"
    likelihood: str | None = None
    decoupled: bool = False
    kl_clip: float | None = 1e-3
    scaler: Any = None
    seed: int = 0
    batch_axis: int = 0

    @classmethod
    def of(cls, kind: str, options: Mapping[str, Any]) -> Settings:
        """The settings of an optimizer of this kind; a TypeError names an option that it does not have."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                valid = ["params", "momentum", "weight_decay", *known]
                raise TypeError(f"{kind} has no option {name!r}. Valid options: {', '.join(valid)}.")
        return cls(**options)

    def __post_init__(self) -> None:
        check_choice("rest", self.rest, RESTS)
        check_choice("loss", self.loss, ("mean", "sum"))
        check_choice("curvature", self.curvature, ("empirical", "sampled"))
        if self.curvature == "sampled" and self.likelihood is None:
            raise ValueError(
                "curvature='sampled' draws labels from a likelihood=. Choose one of "
                f"{', '.join(map(repr, LIKELIHOODS))}."
            )
        if self.likelihood is not None:
            check_choice("likelihood", self.likelihood, LIKELIHOODS)
            if self.curvature != "sampled":
                raise ValueError(f"likelihood={self.likelihood!r} is for curvature='sampled', here it is 'empirical'.")
        if self.batch_axis not in (0, 1):
            raise ValueError(
                f"batch_axis={self.batch_axis}: samples are the first axis (0) of the input, or the second."
            )
        if not isinstance(self.basis_every, int) or self.basis_every < 1:
            raise ValueError(
                f"basis_every={self.basis_every}: the number of steps between decompositions is a whole number, at "
                "least 1."
            )
        if self.kl_clip is not None and not self.kl_clip > 0:
            raise ValueError(f"kl_clip={self.kl_clip}: it should be positive, or None for no clipping.")
