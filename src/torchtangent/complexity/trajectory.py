"""Capacity along the trajectory that training took."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtangent.curvature import Diagonal, fisher
from torchtangent.jacobians.inputs import Inputs, Output
from torchtangent.jacobians.select import Params, select


def feature_norm(model: nn.Module, x: Inputs, *, params: Params = None, output: Output = None) -> float:
    """‖Φ‖ / √N = (Tr K / N)^½: the size of the tangent features, a mean over samples and a sum over outputs.

    It costs one pass over the samples: neither K nor Φ is formed.

    >>> feature_norm(nn.Linear(3, 2), torch.ones(5, 3))      # K[n,n,c,c] = ‖x‖² + 1 = 4 for each of two outputs
    2.8284...
    """
    F = fisher(model, (x, None), Diagonal, likelihood="gaussian", params=params, output=output)
    return math.sqrt(float(F.trace()))


class Trajectory:
    """The complexity C = Σ_t ‖w_{t+1} − w_t‖ ‖Φ_t‖ / √N of a training run: call `step` now and then, in eval mode.

    ‖Φ_t‖ / √N (see `feature_norm`) is taken on a fixed set of inputs where the step begins. A step may span many
    updates of the optimizer: then its length is that of the straight line between its ends.

    Args:
        model: The network that trains.
        x: The inputs on which its tangent features are measured, some 100 of the training set.
        params: Which parameters, by name pattern or predicate; all trainable ones by default.
        output: Which tensor of the model's result.

    Attributes:
        lengths: ‖w_{t+1} − w_t‖ of the steps.
        norms: ‖Φ_t‖ / √N at their beginnings, and at the end of the last.

    Reference:
        Baratin et al., Implicit regularization via neural feature alignment, 2021.

    >>> net = nn.Linear(3, 1)
    >>> run = Trajectory(net, torch.ones(5, 3))
    >>> with torch.no_grad():
    ...     _ = net.bias.add_(0.5)
    >>> run.step(), run.complexity
    (1.0, 1.0)
    """

    def __init__(self, model: nn.Module, x: Inputs, *, params: Params = None, output: Output = None) -> None:
        self._model, self._x, self._params, self._output = model, x, params, output
        self._weights = self._read()
        self.lengths: list[float] = []
        self.norms = [self._measure()]

    def step(self) -> float:
        """Add the way from where the last step ended to where the weights are now; returns the increment."""
        weights, norm = self._read(), self._measure()
        if weights.keys() != self._weights.keys():
            raise RuntimeError(
                "Other parameters are trainable now than when the last step ended: begin a new Trajectory."
            )
        moved = [torch.linalg.vector_norm(w - self._weights[name], dtype=torch.float64) for name, w in weights.items()]
        self.lengths.append(float(torch.stack(moved).norm()))
        self.norms.append(norm)
        self._weights = weights
        return self.increments[-1]

    @property
    def increments(self) -> list[float]:
        """‖w_{t+1} − w_t‖ ‖Φ_t‖ / √N, step by step."""
        return [length * norm for length, norm in zip(self.lengths, self.norms, strict=False)]

    @property
    def complexity(self) -> float:
        """Their sum."""
        return sum(self.increments)

    def _read(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in select(self._model, self._params).items()}

    def _measure(self) -> float:
        return feature_norm(self._model, self._x, params=self._params, output=self._output)
