"""The one place with hooks: a batch in, layer Jacobians out, the model as it was before.

A forward pass with hooks records, for every use of a layer that has a rule, its input and the place of its output
in the autograd graph. Pulling cotangents back to these places gives the factors (a, d) of each parameter. The graph
itself then says whether that is the whole story: a parameter that it uses more often than was recorded is read off
the graph (see operations.py), or goes to the fallback. Numbers are checked once per `Capture` (see verify.py).
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.conv import _ConvTransposeNd

from torchtangent.jacobians import fallback
from torchtangent.jacobians.call import Network, pull_back
from torchtangent.jacobians.factors import Dense, LayerJacobian, Outer, Scale, merge, zero
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.inputs import (
    Inputs,
    Output,
    batch_size,
    check_devices,
    check_finite,
    leaves,
    versions,
    wide,
)
from torchtangent.jacobians.modes import check_autograd, check_modes, unwrapped
from torchtangent.jacobians.rows import Told
from torchtangent.jacobians.rules import RULES, NoRule
from torchtangent.jacobians.select import Params, select
from torchtangent.jacobians.uses import LayerUse, Use, read_graph
from torchtangent.jacobians.verify import prove, verify
from torchtangent.notice import listed, warn
from torchtangent.operators.space import Space


class Capture:
    """A model, a choice of parameters and of an output, ready to be differentiated sample by sample.

    Args:
        model: Any module, in a mode in which its samples do not interact. What `torch.compile`, `DataParallel` or
            `DistributedDataParallel` wrapped is taken out, and parameters have the names they have inside.
        params: Which parameters (see `select`).
        output: Which tensor of the model's result: a callable, a key or attribute name, or None for the
            result itself or its `logits`.
    """

    def __init__(self, model: nn.Module, params: Params = None, output: Output = None) -> None:
        model = unwrapped(model)
        check_autograd(model)
        check_modes(model)
        self.model = model
        self.network = Network(model, output)
        self.params = select(model, params)
        self.space = Space.of(self.params)
        self.tied = {name for name, p in self.params.items() if self.network.places_of(p) > 1}
        self.uncovered: set[str] = set()  # parameters that only the fallback gets right
        self.inner: dict[tuple, bool | None] = {}  # of uses of some shape: are samples the inner axis of their rows?
        self.unproven: set[str] = set()  # parameters whose gradient was zero when they were checked
        self.loop = False  # the fallback cannot vectorize over samples
        self.batched = True  # backward passes of all cotangents can run as one
        self.push: Callable | None = None  # how J v is computed for this model (see products.py)
        self.state = self._state()
        self.signatures: dict[tuple, int] = {}  # the patterns of use that were checked, and with how many samples
        self.bytes_per_sample = (0, 0)  # of a trace: fixed, and for each cotangent
        self.output_shape = torch.Size()  # (C,) or (T, C), known once a batch was checked
        self._said: set[str] = set()

    def trace(self, x: Inputs) -> Trace:
        """Run the model on a batch and record it; the first batch is also checked."""
        trace = self.check(x) or self.record(x)
        n = len(trace.outputs)
        return trace if self.signatures.get(trace.signature, 0) >= min(2, n) else verify(self, x, samples=n)

    def check(self, x: Inputs) -> Trace | None:
        """Check the inputs and, on the first batch, the rules themselves (see verify.py).

        Returns:
            The trace of `x`, if all of it was looked at.
        """
        n = batch_size(x)
        check_devices(self.model, x)
        self.check_unmoved()
        if max(self.signatures.values(), default=0) >= min(2, n):
            return None
        trace = verify(self, x, samples=min(n, 2))
        return trace if n <= 2 else None

    def check_unmoved(self) -> None:
        """What was made of one model must not be used with another, or in another mode."""
        check_autograd(self.model)
        for what, now in self._state().items():
            if now != self.state[what]:
                raise RuntimeError(
                    f"The model's {what} changed since this object was made (or it was copied), so its values would "
                    "belong to another function. Make it again, or keep a copy of the model."
                )

    def outputs(self, x: Inputs) -> Float[Tensor, "N *out"]:
        """f(x), without a graph."""
        with self.network.undisturbed(), torch.no_grad():
            f = self.network(x)
        check_finite(f)
        return f

    def _state(self) -> dict[str, list[Any]]:
        """What tells whether the model is still the same function."""
        return {
            "parameters": versions(self.model.parameters()),
            "buffers": versions(self.model.buffers()),
            "training mode": [module.training for module in self.model.modules()],
        }

    def record(self, x: Inputs) -> Trace:
        """Run the model on a batch with hooks on every layer that has a rule."""
        uses: list[LayerUse] = []
        names = {id(p): name for name, p in self.params.items()}

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], y: Any) -> None:
            own = {a: names[id(p)] for a, p in _matrix_and_bias(module) if id(p) in names}
            value = args[0] if args else kwargs.get("input")
            if isinstance(y, Tensor) and y.requires_grad and isinstance(value, Tensor):
                uses.append(LayerUse(value.detach(), get_gradient_edge(y), y.shape, module, own))

        with ExitStack() as stack:
            stack.enter_context(self.network.undisturbed())
            for module in self.model.modules():
                if type(module) in RULES and any(id(p) in names for _, p in _matrix_and_bias(module)):
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
        return max(1, self.budget(base) // max(1, fixed + cotangents * each))

    def cotangents_within(self, base: int) -> int:
        """How many cotangents at a time keep a trace of one sample within `budget(base)`."""
        fixed, each = self.bytes_per_sample
        return max(1, (self.budget(base) - fixed) // max(1, each))

    def budget(self, base: int) -> int:
        """Bytes to work with: `base`, and some multiple of the model itself. The same on every machine."""
        return base + 2 * sum(p.nbytes for p in self.params.values())


class Trace:
    """One recorded batch: outputs, and layer Jacobians for any cotangents."""

    def __init__(self, capture: Capture, x: Inputs, f: Tensor, uses: list[LayerUse]) -> None:
        self.capture, self.x, self.graph_outputs = capture, x, f
        self.graph = Graph(f)
        seen = [u.of_samples(len(f)) for u in uses if u.edge.node in self.graph.nodes]
        recorded = Counter(name for u in seen for name in u.params)
        used = {name: len(self.graph.users[id(p)]) for name, p in capture.params.items()}
        self.unused = [name for name, count in used.items() if count == 0]
        # A parameter that the graph uses more often than layers did is read off the graph, all of its uses.
        more = {name for name, count in used.items() if count != recorded[name]} - capture.uncovered
        others, unknown = read_graph(self.graph, {name: p for name, p in capture.params.items() if name in more})
        self.uses: list[Use] = [u for u in (use.without(more) for use in seen) if u.params]
        self.uses += others
        self.uncovered = (unknown - set(self.unused)) | capture.uncovered
        if len(self.unused) == len(capture.params):
            raise ValueError(
                f"None of the parameters ({', '.join(self.unused)}) influences the output: its whole Jacobian would be "
                "zero. Does the model detach it, or compute it under no_grad?"
            )
        if self.unused:
            capture.say_once(
                "unused",
                f"These parameters never influence the output, so their part of the Jacobian is zero: "
                f"{listed(self.unused)}.",
            )

    @property
    def outputs(self) -> Float[Tensor, "N *C"]:
        """f(x), detached."""
        return self.graph_outputs.detach()

    @property
    def signature(self) -> tuple[tuple[object, float], ...]:
        """Which layers were used, in which order, with how many rows for a sample: new ones are checked anew."""
        return tuple((u.key, u.rows / len(self.graph_outputs)) for u in self.uses)

    def units(self) -> Float[Tensor, "C N *out"]:
        """One unit cotangent for each output."""
        f = self.outputs
        one = torch.eye(f[0].numel(), dtype=f.dtype, device=f.device)
        return one.unsqueeze(1).expand(-1, len(f), -1).reshape(-1, *f.shape)

    def pull(self, cotangents: Float[Tensor, "C N *out"]) -> dict[str, LayerJacobian]:
        """Pull cotangents back to every parameter: factors by rules, the rest by the fallback.

        Returns:
            For each parameter its Jacobian, with the cotangents in the place of the network's outputs.
        """
        n, c = len(self.graph_outputs), len(cotangents)
        params = self.capture.params
        pieces: dict[str, list[LayerJacobian]] = defaultdict(list)
        rest = set(self.uncovered)
        for i, (use, d, inner) in enumerate(self._pull_to_uses(cotangents)):
            if rest.issuperset(use.params):
                continue
            try:
                if inner is None:
                    raise NoRule("rows that are no samples' in turn")
                factors = use.factors(d, n, inner=inner)
            except NoRule:
                rest.update(use.params)
                continue
            for name, factor in factors.items():
                pieces[name].append(replace(factor, origin=(i,)) if isinstance(factor, Outer | Scale) else factor)
        self.uncovered = rest
        found: dict[str, LayerJacobian] = {}
        if rest:
            found.update(self._fall_back(sorted(rest), cotangents))
            _orient(found, self.capture)
        for name, p in params.items():
            if name not in found:
                found[name] = merge(pieces[name]) if pieces[name] else zero(n, c, wide(p.detach()))
        layers = {name: found[name] for name in params}
        if self.capture.unproven and not prove(self, layers, cotangents):
            return self.pull(cotangents)
        return layers

    def _pull_to_uses(self, cotangents: Float[Tensor, "C N *out"]) -> Iterator[tuple[Use, Tensor, bool | None]]:
        """Each use, the cotangents of its output, and whether samples are the inner axis of its rows (None: neither).

        That is looked at where it could be otherwise, once for batches of the same shape (see rows.py).
        """
        n, c, known = len(self.graph_outputs), len(cotangents), self.capture.inner
        shapes = tuple(t.shape for t in leaves(self.x))
        keys = [(i, use.key, use.shape, shapes) for i, use in enumerate(self.uses)]
        doubtful = {
            i
            for i, use in enumerate(self.uses)
            if n > 1 and use.rows and (self.graph.irregular or (use.rows != n and keys[i] not in known))
        }
        if doubtful:
            half = any(t.dtype in (torch.float16, torch.bfloat16) for t in (self.outputs, *(u.x for u in self.uses)))
            told = Told(n, c, powers=3 if half else 16)
            cotangents = torch.cat([cotangents, told.cotangent(cotangents)])
        for i, (use, d) in enumerate(zip(self.uses, self._backward(cotangents), strict=True)):
            inner = known.get(keys[i], False)
            if i in doubtful:
                inner, sure = told.inner_axis(use.by_row(d))
                if sure and not self.graph.irregular:
                    known[keys[i]] = inner
            yield use, d[:, :c], inner

    def _backward(self, cotangents: Float[Tensor, "C N *out"]) -> list[Tensor]:
        """∂(u·f)/∂y, (rows, C, *y), for every recorded use, stored with the cotangents first."""
        if not self.uses:
            return []
        edges = [u.edge for u in self.uses]
        with self.capture.network.undisturbed():
            grads = self._all_at_once(edges, cotangents) or self._one_by_one(edges, cotangents)
        found = [
            cotangents.new_zeros(u.shape[0], len(cotangents), *u.shape[1:]) if g is None else g.transpose(0, 1)
            for u, g in zip(self.uses, grads, strict=True)
        ]
        # Sums tell, and are waited for once; only one that is not finite is looked into.
        if found and not torch.isfinite(torch.stack([d.sum() for d in found])).all():
            for use, d in zip(self.uses, found, strict=True):
                if not torch.isfinite(d).all():
                    names = ", ".join(use.params)
                    raise ValueError(
                        f"The derivative of the output with respect to the layer of {names} has NaN or infinity "
                        "although the output is finite (as √x has at 0)."
                    )
        return [wide(d) for d in found]

    def _all_at_once(self, edges: list[GradientEdge], cotangents: Tensor) -> Sequence[Tensor | None] | None:
        """One backward pass with the cotangents as a further axis, or None where torch cannot vectorize it."""
        if not self.capture.batched:
            return None
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            try:
                return torch.autograd.grad(
                    self.graph_outputs, edges, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
                )
            except torch.OutOfMemoryError:
                raise  # with fewer samples it may do
            except (RuntimeError, UserWarning):
                self.capture.batched = False
                return None

    def _one_by_one(self, edges: list[GradientEdge], cotangents: Tensor) -> Sequence[Tensor | None]:
        """One backward pass for each cotangent."""
        found: list[Tensor | None] = [None] * len(edges)
        for i, u in enumerate(cotangents):
            grads = torch.autograd.grad(self.graph_outputs, edges, u, retain_graph=True, allow_unused=True)
            for j, grad in enumerate(grads):
                if grad is not None:
                    buffer = found[j]
                    if buffer is None:
                        buffer = found[j] = grad.new_empty(len(cotangents), *grad.shape)
                    buffer[i] = grad
        return found

    def gradient(self, u: Float[Tensor, "N *out"]) -> dict[str, Tensor]:
        """Jᵀu by autograd, parameter by parameter."""
        with self.capture.network.undisturbed():
            return pull_back(self.graph_outputs, self.capture.params, u, keep_graph=True)

    def _fall_back(self, names: list[str], cotangents: Tensor) -> dict[str, LayerJacobian]:
        capture, f = self.capture, self.capture.network
        chosen = {name: capture.params[name] for name in names}
        with capture.network.undisturbed():
            if not capture.loop:
                try:
                    return fallback.vectorized(f, chosen, self.x, cotangents)
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
                    capture.loop = True
                    capture.say_once(
                        "loop",
                        f"The Jacobian of {listed(names)} is computed sample by sample (exact, but slow): "
                        f"torch cannot vectorize this model ({str(error).strip().splitlines()[0][:200]}).",
                    )
            return fallback.looped(f, chosen, self.x, cotangents)


def _orient(found: dict[str, LayerJacobian], capture: Capture) -> None:
    """Note which axis of a weight counts the layer's units where it is not the first."""
    names = {id(p): name for name, p in capture.params.items()}
    for module in capture.model.modules():
        name = names.get(id(module._parameters.get("weight")), "")
        layer = found.get(name)
        if isinstance(module, _ConvTransposeNd) and isinstance(layer, Dense):
            found[name] = replace(layer, groups=module.groups, order=(1, 0, *range(2, len(layer.shape))))


def _matrix_and_bias(module: nn.Module) -> list[tuple[str, nn.Parameter | None]]:
    """What rules speak about. (Old-style weight_norm leaves other parameters in a module of the same type.)"""
    return [(a, module._parameters.get(a)) for a in ("weight", "bias")]
