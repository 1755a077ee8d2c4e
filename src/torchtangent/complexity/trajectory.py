"""Capacity along the training trajectory."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from torchtangent.complexity.fixed import batches, check_layout, distance, kept_inputs, layout
from torchtangent.curvature import Diagonal, fisher
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.modes import in_eval, unwrapped
from torchtangent.jacobians.select import Params, among, select
from torchtangent.kernel.samples import Samples
from torchtangent.notice import NotFinite


def feature_norm(model: nn.Module, x: Any, *, params: Params = None, output: Output = None) -> float:
    """‖Φ‖ / √N = (Tr K / N)^½: the norm of the tangent features, with a mean over samples and a sum over outputs.

    It takes one pass over the samples; neither K nor Φ is formed.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result to use.

    >>> import torch
    >>> feature_norm(nn.Linear(3, 2), torch.ones(5, 3))      # K[n,n,c,c] = ‖x‖² + 1 = 4 for each of two outputs
    2.8284...
    """
    chosen = select(unwrapped(model), params)
    samples = Samples(x, next(iter(chosen.values())).device)
    data = ((part, None) for part in batches(samples))
    with samples.explaining():
        F = fisher(model, data, Diagonal, likelihood="gaussian", params=among(chosen), output=output)
    return math.sqrt(float(F.trace()))


class Trajectory:
    """The complexity C = Σ_t ‖w_{t+1} − w_t‖ ‖Φ_t‖ / √N of a training run: call `step` every now and then.

    ‖Φ_t‖ / √N (see `feature_norm`) is measured on a fixed set of inputs at the beginning of the step, in eval mode; the
    model is left as it was. A step may span many updates of the optimizer: its length is then that of the straight line
    between its ends. A step that ends where the network has NaN or infinity is not counted.

    Args:
        model: The network that is being trained.
        x: The inputs on which its tangent features are measured, as for `feature_norm`; about 100 of the training set.
            Inputs in memory are copied.
        params: Which parameters, by name pattern or a predicate (name, parameter); by default those that are trainable
            now.
        output: Which tensor of the model's result to use.

    Attributes:
        lengths: ‖w_{t+1} − w_t‖ of the steps.
        norms: ‖Φ_t‖ / √N at the beginning of each step, and at the end of the last.

    Reference:
        Baratin et al., Implicit regularization via neural feature alignment, 2021.

    >>> import torch
    >>> net = nn.Linear(3, 1)
    >>> _ = nn.init.zeros_(net.bias)
    >>> run = Trajectory(net, torch.ones(5, 3))
    >>> with torch.no_grad():
    ...     _ = net.bias.add_(0.5)
    >>> run.step(), run.complexity
    (1.0, 1.0)
    """

    def __init__(self, model: nn.Module, x: Any, *, params: Params = None, output: Output = None) -> None:
        self._model, self._output = unwrapped(model), output
        self._x = kept_inputs(x)
        self._names = frozenset(select(self._model, params))
        self._weights = self._read()
        self.lengths: list[float] = []
        self.norms = [self._measure()]
        if not math.isfinite(self.norms[0]):
            raise ValueError("The network has NaN or infinity at the start: there is nothing to go on from.")

    def step(self) -> float:
        """Add the step from where the last one ended to the current weights; returns its increment, or NaN."""
        check_layout(layout(self._weights), self._chosen())
        weights, norm = self._read(), self._measure()
        length = float(distance(weights, self._weights))
        if not math.isfinite(length + norm):
            return math.nan
        self.lengths.append(length)
        self.norms.append(norm)
        self._weights = weights
        return self.increments[-1]

    @property
    def increments(self) -> list[float]:
        """‖w_{t+1} − w_t‖ ‖Φ_t‖ / √N, step by step."""
        return [length * norm for length, norm in zip(self.lengths, self.norms, strict=False)]

    @property
    def complexity(self) -> float:
        """The sum of the increments."""
        return sum(self.increments, 0.0)

    def _read(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._chosen().items()}

    def _chosen(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self._model.named_parameters() if name in self._names}

    def _measure(self) -> float:
        """‖Φ‖ / √N; NaN if the network is not finite."""
        with in_eval(self._model, self._names):
            try:
                return feature_norm(self._model, self._x, params=among(self._names), output=self._output)
            except NotFinite:
                return math.nan
