"""A model at one moment, on a probe set: what measures are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.alignment.labels import as_targets
from torchtangent.alignment.similarity import NOISE
from torchtangent.complexity.fixed import distance
from torchtangent.jacobians.call import Network
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.select import among
from torchtangent.kernel.ntk import flatten, ntk
from torchtangent.kernel.samples import Samples
from torchtangent.notice import NotFinite
from torchtangent.probe.activity import Activity, activity
from torchtangent.spectrum import center


class Undefined(ArithmeticError):
    """A measure has no value in this state."""


@dataclass(frozen=True, eq=False)
class View:
    """A model that is being trained, and a fixed probe set.

    Attributes:
        model: The user's model.
        names: The names of the parameters that count.
        output: Which tensor of the model's result to use.
        x: The inputs.
        y: The labels; None if no measure needs them.
        by_layer: Whether the kernel of each layer is wanted.
        label: The name of the labels in errors.
    """

    model: nn.Module
    names: frozenset[str]
    output: Output
    x: Any
    y: Any
    by_layer: bool
    label: str = "y"

    @property
    def params(self) -> dict[str, nn.Parameter]:
        """The parameters that count."""
        return {name: p for name, p in self.model.named_parameters() if name in self.names}

    @property
    def network(self) -> Network:
        """The model as a function of its inputs."""
        return Network(self.model, self.output)

    @property
    def samples(self) -> Samples:
        """The inputs, on the device where the model is now."""
        return Samples(self.x, next(iter(self.params.values())).device)


class State:
    """A model at one moment. Each quantity is computed on first use, and kept.

    Args:
        view: The model and its probe set.
        start: The state at the start of training; this one by default.
        before: The state at the last record; this one by default.

    Attributes:
        finite: Whether everything computed so far was finite.
    """

    def __init__(self, view: View, start: State | None = None, before: State | None = None) -> None:
        self.view = view
        self.start = start or self
        self.before = before or self
        self.finite = True

    @cached_property
    def params(self) -> dict[str, Tensor]:
        """θ, copied."""
        found = {name: p.detach().clone() for name, p in self.view.params.items()}
        self._check_finite(found.values())
        return found

    @cached_property
    def activity(self) -> Activity:
        """The outputs, the last representation, and which ReLUs are on."""
        seen = activity(self.view.network, self.view.samples)
        self._check_finite([seen.outputs])
        return seen

    @cached_property
    def targets(self) -> Float[Tensor, "N C"]:
        """The targets of the outputs, according to the labels."""
        if self.view.y is None:
            raise ValueError(
                f"{self.view.label} is None, but measures such as 'cka' compare the network with labels. Pass "
                f"{self.view.label}, or measures=[...] without them."
            )
        return as_targets(self.view.y, tuple(self.activity.outputs.shape), self.view.label)

    @cached_property
    def kernels(self) -> dict[str, Float[Tensor, "N N C C"]]:
        """The kernel of each layer, that is, of the parameters directly in one module."""
        total: dict[str, Tensor] = {}
        for name, K in self._ntk(per_layer=True).items():
            layer = name.rpartition(".")[0] or type(self.view.model).__name__
            total[layer] = total[layer] + K if layer in total else K
        return total

    @cached_property
    def kernel(self) -> Float[Tensor, "N N C C"]:
        """K, of all parameters."""
        K = reduce(torch.add, self.kernels.values()) if self.view.by_layer else self._ntk()
        self._check_finite([K])
        return K

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " K"]:
        """All eigenvalues of K centred per class, the largest first; those that rounding made negative are zero."""
        K = center(self.kernel.double())
        rounding = torch.finfo(self.kernel.dtype).eps * torch.linalg.vector_norm(self.kernel, dtype=torch.float64)
        if torch.linalg.vector_norm(K) <= NOISE * rounding:
            raise Undefined  # all samples have the same gradient: the network is dead
        return torch.linalg.eigvalsh(flatten(K)).flip(0).clamp(min=0).to(self.kernel.dtype)

    @cached_property
    def feature_norm(self) -> Float[Tensor, ""]:
        """‖Φ‖ / √N = √(Tr K / N)."""
        return (flatten(self.kernel).trace() / len(self.kernel)).sqrt()

    @cached_property
    def increment(self) -> Float[Tensor, ""]:
        """The term that the last record and this state add to the complexity: ‖θ_{t+1} − θ_t‖ ‖Φ_t‖ / √N."""
        return self.distance(self.before) * self.before.feature_norm

    @cached_property
    def complexity(self) -> Float[Tensor, ""]:
        """The sum of all increments so far."""
        return self.increment if self.before is self else self.before.complexity + self.increment

    def distance(self, other: State) -> Float[Tensor, ""]:
        """‖θ − θ'‖."""
        return distance(self.params, other.params)

    def forget(self, *kept: str) -> State:
        """Keep only these quantities: nothing else can be computed once the model has changed."""
        self.__dict__ = {name: value for name, value in vars(self).items() if name in kept}
        return self

    def saved(self) -> dict[str, Any]:
        """The quantities that a state has kept, as tensors."""
        return {name: vars(value) if name == "activity" else value for name, value in vars(self).items()}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> State:
        """A state with the quantities that were saved."""
        state = cls.__new__(cls)
        state.__dict__ = {name: Activity(**value) if name == "activity" else value for name, value in saved.items()}
        return state

    def _ntk(self, **options: Any) -> Any:
        options |= {"params": among(self.view.names), "output": self.view.output, "progress": False}
        try:
            return ntk(self.view.model, self.view.x, **options)
        except NotFinite as error:
            self.finite = False
            raise Undefined from error

    def _check_finite(self, tensors: Iterable[Tensor]) -> None:
        if not all(bool(torch.isfinite(t).all()) for t in tensors):
            self.finite = False
            raise Undefined
