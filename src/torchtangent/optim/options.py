"""The options that KFAC and EKFAC share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from torchtangent.curvature.cotangents import LIKELIHOODS, check_choice
from torchtangent.optim.plan import RESTS


class Options(TypedDict, total=False):
    """What every preconditioned optimizer takes besides `model`, `lr` and `damping`; see there and `Settings`."""

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


@dataclass(frozen=True)
class Settings:
    """What holds for all parameters and the whole run.

    Args:
        basis_every: Steps between two decompositions.
        sua: Take the taps of convolutions as uncorrelated: smaller input factors, over channels only.
        rest: What is no matrix of a linear map: "block" (norm layers and lone biases by their exact block, or by one
            for each channel where that has more than 1024 rows; embeddings by their diagonal), "diagonal" or "plain".
        loss: Whether the loss is a "mean" or a "sum" over samples; the step is the same for both. With gradient
            accumulation "mean" is the mean over all samples since the last step.
        curvature: "empirical" (per-sample gradients of the loss) or "sampled" (labels drawn from the model; needs
            `likelihood`, and `step` a closure). Where a sample has several terms the likelihood sums over them.
        likelihood: "categorical", "bernoulli" or "gaussian", for sampled curvature.
        decoupled: Whether weight decay multiplies θ by 1 − ηω instead of being preconditioned with the gradient.
        kl_clip: κ: the step is shortened to η² uᵀ(F + ε)u ≤ κ, about twice the KL divergence that it causes.
        scaler: The `torch.amp.GradScaler` of the loop. Needed only where `scaler.unscale_(opt)` is called before
            `scaler.step(opt)`.
        seed: Of the sampled labels.

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
    kl_clip: float | None = None
    scaler: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("rest", self.rest, RESTS)
        check_choice("loss", self.loss, ("mean", "sum"))
        check_choice("curvature", self.curvature, ("empirical", "sampled"))
        if self.curvature == "sampled":
            check_choice("likelihood", str(self.likelihood), LIKELIHOODS)
        if self.basis_every < 1:
            raise ValueError(
                f"basis_every={self.basis_every}: the number of steps between decompositions is at least 1."
            )
        if self.kl_clip is not None and not self.kl_clip > 0:
            raise ValueError(f"kl_clip={self.kl_clip}: it should be positive, or None for no clipping.")
