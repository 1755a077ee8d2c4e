"""The one place with hooks in jacobians: a batch in, a recorded one out, the model as it was before.

A forward pass with hooks records, for every use of a layer that has a rule, its input and the place of its output
in the autograd graph. What becomes of them is in trace.py. Numbers are checked once per `Capture`: the model when it is
first looked at (apart.py), the rules when layer Jacobians are first asked for (verify.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from torchtangent.jacobians.apart import check_in_batch, first_trace
from torchtangent.jacobians.call import Network, alone
from torchtangent.jacobians.inputs import (
    Inputs,
    Loss,
    Output,
    batch_size,
    check_devices,
    check_finite,
    equal,
    map_leaves,
    take,
    versions,
)
from torchtangent.jacobians.modes import check_autograd, check_inference_mode, check_modes, unwrapped
from torchtangent.jacobians.rules import rule_of
from torchtangent.jacobians.select import Params, select
from torchtangent.jacobians.trace import Trace
from torchtangent.jacobians.uses import LayerUse
from torchtangent.jacobians.verify import verify
from torchtangent.notice import warn
from torchtangent.operators.space import Space

BUDGET = 256 << 20  # bytes of activations, factors or vectors at a time
_MOST = 1 << 16  # samples at a time: gradients of more lose digits in float32 where MKL sums them for narrow layers
_SHARE = 32  # on a GPU, which few samples at a time leave idle, at least a 32nd of its memory


class Capture:
    """A model, a choice of parameters and of an output, ready to be differentiated sample by sample.

    What is checked, and when:

    - `look`, before anything: that the model treats two samples one by one, on the first batch.
    - `check`, before layer Jacobians: the rules, on the same samples. `trace` checks batches that use layers otherwise.
    - `compare`, after every forward pass: that samples of larger batches have the outputs that they have alone.
    - `check_unmoved`, before every use: that the model is still the same function.

    Args:
        model: Any module, in a mode in which its samples do not interact. What `torch.compile`, `DataParallel` or
            `DistributedDataParallel` wrapped is taken out, and parameters have the names they have inside.
        params: Which parameters (see `select`).
        output: Which tensor of the model's result: a callable, a key or attribute name, or None for the
            result itself or its `logits`.
        loss: If given, what is differentiated is the loss of each sample (see `Network`).
        flatten: Whether outputs with more axes than (N, T, C) count as (N, C).
    """

    def __init__(
        self,
        model: nn.Module,
        params: Params = None,
        output: Output = None,
        loss: Loss | None = None,
        *,
        flatten: bool = False,
    ) -> None:
        model = unwrapped(model)
        check_autograd(model)
        check_modes(model)
        self.model = model
        with alone():  # in another thread the parameters may be replaced for a while
            self.network = Network(model, output, loss, flatten=flatten)
            self.params = select(model, params)
            self.state = self._state()
        self.space = Space.of(self.params)
        self.tied = {name for name, p in self.params.items() if self.network.places_of(p) > 1}
        self.uncovered: set[str] = set()  # parameters that only the fallback gets right
        self.shared: set[tuple[object, int]] = set()  # calls of layers whose result all samples share, as positions
        self.unproven: set[str] = set()  # parameters whose gradient was zero when they were checked
        self.loop = False  # the fallback cannot vectorize over samples
        self.kinds: set[torch.dtype] = set()  # in which the model computes: autocast inside of it has its own
        self.batched = True  # backward passes of all cotangents can run as one
        self._few: tuple[Inputs, Tensor] | None = None  # the samples that were looked at, and their outputs
        self._compared = 2  # samples of the largest batch whose outputs were compared with those of smaller ones
        self.way: Callable | None = None  # how J v is computed for this model (see products.py)
        self.way_has_graph: bool | None = None  # whether f may have a graph from the same pass
        self.signatures: dict[tuple, int] = {}  # the patterns of use that were checked, and with how many samples
        self.bytes_per_sample = (0, 0)  # of a trace: fixed, and for each cotangent
        self.output_shape = torch.Size()  # (C,) or (T, C), known once a batch was checked
        self._said: set[str] = set()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.params.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The parameters'."""
        return next(iter(self.params.values())).dtype

    @property
    def wide_dtype(self) -> torch.dtype:
        """That of sums: float32 at least."""
        return reduce(torch.promote_types, (p.dtype for p in self.params.values()), torch.float32)

    def trace(self, x: Inputs) -> Trace:
        """Run the model on a batch and record it; a batch that uses layers in a new way is also checked."""
        trace = self.check(x) or self.record(x)
        self.compare(x, trace.outputs)
        if self.signatures.get(trace.signature, 0) < min(2, len(trace.outputs)):
            trace = first_trace(self, x)
            verify(self, trace)
        return trace

    @property
    def _looked(self) -> int:
        """How many samples were looked at."""
        return 0 if self._few is None else len(self._few[1])

    def look(self, x: Inputs) -> Trace | None:
        """Check the inputs and, on the first batch, whether the model treats its samples one by one.

        Returns:
            The trace of the samples that were looked at just now, if any.
        """
        n = batch_size(x)
        self.check_unmoved()
        check_devices(self.model, x)
        if self._looked >= min(2, n):
            return None
        trace = first_trace(self, take(x, slice(0, n, max(1, n - 1))))
        self._few = map_leaves(Tensor.clone, trace.x), trace.outputs
        return trace

    def check(self, x: Inputs) -> Trace | None:
        """Do what `look` does and, before layer Jacobians are first used, check the rules (see verify.py).

        Returns:
            The trace of `x`, if all of it was looked at just now.
        """
        trace = self.look(x)
        if max(self.signatures.values(), default=0) < self._looked:
            assert self._few is not None
            verify(self, trace or self.record(self._few[0]))
        return trace if batch_size(x) <= 2 else None

    def compare(self, x: Inputs, f: Float[Tensor, "N *out"]) -> None:
        """See that samples have the outputs in a batch that they have alone, once for every larger batch."""
        n = len(f)
        if n > self._compared:
            for i in (0, n - 1):
                check_in_batch(self._output_of(take(x, slice(i, i + 1))), f[i : i + 1], n, self.rounding(f))
            self._compared = n

    def look_at_two(self, x: Inputs) -> None:
        """Find out what several samples share, by two copies of a sample if the batch has only one."""
        if batch_size(x) == 1 and not self._looked:
            with suppress(Exception):  # a model for batches of one sample
                self.record(map_leaves(lambda t: torch.cat([t, t]), x))

    def _output_of(self, sample: Inputs) -> Float[Tensor, "1 *out"]:
        """The output of one sample, perhaps known from the check."""
        if self._few is not None:
            few, outputs = self._few
            for i in range(len(outputs)):
                if equal(take(few, slice(i, i + 1)), sample):
                    return outputs[i : i + 1]
        return self.outputs(sample)

    def check_unmoved(self) -> None:
        """What was made of one model must not be used with another, or in another mode."""
        check_inference_mode()
        with alone():
            state = self._state()
        for what, now in state.items():
            if now != self.state[what]:
                raise RuntimeError(
                    f"The model's {what} changed since this object was made (or it was copied), so its values would "
                    "belong to another function. Make it again, or keep a copy of the model."
                )

    def rounding(self, f: Tensor) -> float:
        """What may be left of outputs that should be equal, relative to them: √ε of the coarsest dtype."""
        kinds = {t.dtype for t in (f, *self.params.values(), *self.model.buffers()) if t.is_floating_point()}
        return max(torch.finfo(kind).eps for kind in kinds | self.kinds) ** 0.5

    def outputs(self, x: Inputs) -> Float[Tensor, "N *out"]:
        """f(x), without a graph."""
        with self.network.undisturbed():
            f = self.network.value(x)
        check_finite(f)
        return f

    def _state(self) -> dict[str, list[Any]]:
        """What tells whether the model is still the same function."""
        modules = list(self.model.modules())
        return {
            "parameters": versions(p for module in modules for p in module._parameters.values() if p is not None),
            "buffers": versions(b for module in modules for b in module._buffers.values() if b is not None),
            "training mode": [module.training for module in modules],
        }

    def record(self, x: Inputs) -> Trace:
        """Run the model on a batch with hooks on every layer that has a rule."""
        uses: list[LayerUse] = []
        names = {id(p): name for name, p in self.params.items()}

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], y: Any) -> None:
            own = {a: names[id(p)] for a, p in _matrix_and_bias(module) if id(p) in names}
            value = args[0] if args else kwargs.get("input")
            if isinstance(y, Tensor) and y.requires_grad and isinstance(value, Tensor):
                value = value.detach()
                value = value.to(y.dtype) if value.is_floating_point() else value  # as autocast does inside of a layer
                uses.append(LayerUse(value, get_gradient_edge(y), y.shape, module, own))

        with ExitStack() as stack:
            stack.enter_context(self.network.undisturbed())
            for module in self.model.modules():
                if rule_of(module) and any(id(p) in names for _, p in _matrix_and_bias(module)):
                    handle = module.register_forward_hook(hook, prepend=True, with_kwargs=True)
                    stack.callback(handle.remove)
            f = self.network(x)
        check_finite(f.detach())
        return Trace(self, x, f, uses)

    def say_once(self, key: str, message: str) -> None:
        """A warning, once for this capture."""
        if key not in self._said:
            self._said.add(key)
            warn(message)

    def samples_within(self, base: int, cotangents: int) -> int:
        """How many samples at a time keep a trace with so many cotangents within `budget(base)`."""
        fixed, each = self.bytes_per_sample
        chains = self.device.type == "cpu" and self.dtype != torch.float64
        fit = max(1, self.budget(base) // max(1, fixed + cotangents * each))
        return min(_MOST, fit) if chains else fit

    def cotangents_within(self, base: int) -> int:
        """How many cotangents at a time keep a trace of one sample within `budget(base)`."""
        fixed, each = self.bytes_per_sample
        return max(1, (self.budget(base) - fixed) // max(1, each))

    def budget(self, base: int, share: int = _SHARE) -> int:
        """Bytes to work with: `base`, on a GPU at least 1/share of its memory, and twice the size of the model."""
        if self.device.type == "cuda":
            base = max(base, torch.cuda.get_device_properties(self.device).total_memory // share)
        return base + 2 * sum(p.nbytes for p in self.params.values())


def _matrix_and_bias(module: nn.Module) -> list[tuple[str, nn.Parameter | None]]:
    """What rules speak about. (Old-style weight_norm leaves other parameters in a module of the same type.)"""
    return [(a, module._parameters.get(a)) for a in ("weight", "bias")]
