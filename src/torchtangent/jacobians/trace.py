"""A recorded batch: cotangents of its outputs in, layer Jacobians out.

Pulling cotangents back to the recorded uses gives the factors (a, d) of each parameter. The graph shows whether the
record is complete: a parameter that it uses more often than was recorded is read off the graph (see operations.py), or
goes to the fallback.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn.modules.conv import _ConvTransposeNd

from torchtangent.jacobians import fallback
from torchtangent.jacobians.call import pull_back
from torchtangent.jacobians.factors import Dense, LayerJacobian, Outer, Scale, zero
from torchtangent.jacobians.graph import Graph, kinds_in
from torchtangent.jacobians.inputs import Inputs, wide
from torchtangent.jacobians.layout import SHARED, find_strides
from torchtangent.jacobians.made import Behind, pull_behind
from torchtangent.jacobians.matrices import transposed_order
from torchtangent.jacobians.rows import SampleFactors
from torchtangent.jacobians.rules import NoRule
from torchtangent.jacobians.together import merge
from torchtangent.jacobians.uses import GraphUse, LayerUse, Use, read_graph
from torchtangent.jacobians.verify import prove
from torchtangent.notice import NotFinite, listed

if TYPE_CHECKING:
    from torchtangent.jacobians.capture import Capture

_INFINITE = (
    "The derivative of the output with respect to {} has NaN or infinity although the output is finite (as √x has at "
    "0)."
)
_MANY = 32  # with at least so many samples, and
_LARGE = 1 << 20  # bytes of one cotangent at the largest layer, a CPU is faster with one cotangent at a time


class Trace:
    """One recorded batch: outputs, and layer Jacobians for any cotangents."""

    def __init__(self, capture: Capture, x: Inputs, f: Tensor, uses: list[LayerUse]) -> None:
        self.capture, self.x, self.graph_outputs = capture, x, f
        self.graph = Graph(f)
        capture.kinds |= kinds_in(self.graph)
        calls: Counter[object] = Counter()
        there = {}
        for u in uses:
            if u.edge.node in self.graph.nodes:
                there[u.key, calls[u.key]] = u
                calls[u.key] += 1
        # The graph of one sample does not show what several would share.
        known = {(u.edge.node, u.edge.output_nr) for key, u in there.items() if len(f) == 1 and key in capture.shared}
        self._strides = find_strides(f, self.graph, known)
        if len(f) > 1:
            capture.shared |= {key for key, u in there.items() if self._stride(u) == SHARED}
        seen = [u.of_samples(len(f)) for u in there.values() if self._stride(u) != SHARED]
        recorded = Counter(name for u in seen for name in u.params)
        used = {name: len(self.graph.users[id(p)]) for name, p in capture.params.items()}
        self.unused = [name for name, count in used.items() if count == 0]
        # If the graph uses a parameter more often than recorded layers do, all of its uses are read off the graph.
        more = {name for name, count in used.items() if count != recorded[name]} - capture.uncovered
        others, unknown = read_graph(
            self.graph, {name: p for name, p in capture.params.items() if name in more}, self._strides
        )
        self.uses: list[Use] = [u for u in (use.without(more) for use in seen) if u.params]
        self.uses += others
        self.uses = [u for u in self.uses if u.shape.numel()]  # an empty output has no derivative
        self.uncovered = (unknown - set(self.unused)) | capture.uncovered
        if len(self.unused) == len(capture.params):
            raise ValueError(
                f"None of the parameters ({', '.join(self.unused)}) influences the output: its whole Jacobian would be "
                "zero. Does the model detach it, or compute it under no_grad?"
            )
        if self.unused:
            capture.say_once(
                "unused",
                f"These parameters do not influence the output (of the {len(f)} samples looked at first; they may be "
                f"experts that are not chosen), so their part of the Jacobian is zero there: {listed(self.unused)}.",
            )

    @property
    def outputs(self) -> Float[Tensor, "N *C"]:
        """f(x), detached."""
        return self.graph_outputs.detach()

    @property
    def signature(self) -> tuple[tuple[object, float], ...]:
        """The uses, in order, each with its rows per sample. A batch with a new signature is checked again."""
        return tuple((u.key, u.rows / len(self.graph_outputs)) for u in self.uses)

    @cached_property
    def strides(self) -> list[int]:
        """The stride of samples in the output of each use, or 0 if the graph does not determine it (see layout.py)."""
        return [self._stride(use) for use in self.uses]

    def _stride(self, use: Use) -> int:
        return self._strides.get((use.edge.node, use.edge.output_nr), 0)

    @property
    def doubtful(self) -> set[int]:
        """The uses whose rows may belong to any sample, which has to be found by trial (see rows.py)."""
        n = len(self.graph_outputs)
        unknown = [i for i, stride in enumerate(self.strides) if n > 1 and not stride]
        return {i for i in unknown if self.uses[i].rows % n == 0 and not self.uncovered.issuperset(self.uses[i].params)}

    @property
    def bytes_per_sample(self) -> tuple[int, int]:
        """What a trace holds: activations, and the factors of one cotangent.

        Activations are measured on the graph, too: if few layers are recorded, autograd saves far more than their
        inputs.
        """
        n, item = len(self.outputs), self.outputs.element_size()
        inputs = sum(u.x.numel() for u in self.uses)
        outputs = sum(u.shape.numel() for u in self.uses)
        rest = sum(self.capture.params[name].numel() for name in self.capture.uncovered)
        rest += sum(u.of.made for u in self.uses if isinstance(u, GraphUse))
        saved = self.graph.saved_bytes(without=chain(self.capture.model.parameters(), self.capture.model.buffers()))
        fixed = max(item * (inputs + 2 * outputs), saved)
        marked = 2 * outputs if self.doubtful else 0  # one or two further cotangents, to tell samples apart
        return (fixed + item * marked) // n, item * (outputs // n + rest)

    def layers(self, *, summed: bool = False) -> dict[str, LayerJacobian]:
        """The Jacobian of each parameter, of all outputs or of their sum."""
        return self.pull(torch.ones_like(self.outputs)[None] if summed else self.units())

    def units(self) -> Float[Tensor, "C N *out"]:
        """One unit cotangent for each output."""
        f = self.outputs
        one = torch.eye(f[0].numel(), dtype=f.dtype, device=f.device)
        return one.unsqueeze(1).expand(-1, len(f), -1).reshape(-1, *f.shape)

    def pull(self, cotangents: Float[Tensor, "C N *out"]) -> dict[str, LayerJacobian]:
        """Pull cotangents back to every parameter: factors by rules, the rest by the fallback.

        Returns:
            The Jacobian of each parameter, with cotangents instead of network outputs on its axis C.
        """
        n, c = len(self.graph_outputs), len(cotangents)
        params = self.capture.params
        pieces: dict[str, list[LayerJacobian]] = defaultdict(list)
        made: dict[str, list[Behind]] = defaultdict(list)
        rest = set(self.uncovered)
        for i, (use, d, inner) in enumerate(self._pull_to_uses(cotangents)):
            if rest.issuperset(use.params):
                continue
            try:
                if inner is None:
                    raise NoRule("rows that are not grouped by sample")
                factors = use.factors(d, n, inner=inner)
            except NoRule:
                rest.update(use.params)
                continue
            for name, factor in factors.items():
                if isinstance(factor, Behind):
                    made[name].append(factor)
                elif params[name].numel():
                    pieces[name].append(replace(factor, origin=(i,)) if isinstance(factor, Outer | Scale) else factor)
        for names in _made_alike({name: parts for name, parts in made.items() if name not in rest}):
            try:
                behind = pull_behind(made[names[0]], [params[name] for name in names])
            except NoRule:
                rest.update(names)
                continue
            for name, factor in zip(names, behind, strict=True):
                pieces[name].append(factor)
        self.uncovered = rest
        found: dict[str, LayerJacobian] = {}
        if rest:
            found.update(self._fall_back(sorted(rest), cotangents))
            _orient(found, self.capture)
            # A fallback that the first check did not need still has to be checked.
            self.capture.unproven |= rest - self.capture.uncovered - set(self.unused)
        for name, p in params.items():
            if name not in found:
                found[name] = merge(pieces[name]) if pieces[name] else zero(n, c, wide(p.detach()))
        layers = {name: found[name] for name in params}
        if self.capture.unproven and not prove(self, layers, cotangents):
            return self.pull(cotangents)
        return layers

    def _pull_to_uses(self, cotangents: Float[Tensor, "C N *out"]) -> Iterator[tuple[Use, Tensor, bool | None]]:
        """Each use, the cotangents of its output, and whether samples are the inner axis of its rows (None: neither).

        Where the graph does not determine the latter, it is found by trial, again for every batch and all cotangents.
        """
        n, c, doubtful = len(self.graph_outputs), len(cotangents), self.doubtful
        if doubtful:
            half = any(t.dtype in (torch.float16, torch.bfloat16) for t in (self.outputs, *(u.x for u in self.uses)))
            factors = SampleFactors(n, c, half=half)
            cotangents = torch.cat([cotangents, factors.cotangents(cotangents)])
        for i, (use, d) in enumerate(zip(self.uses, self._backward(cotangents), strict=True)):
            inner = factors.inner_axis(use.by_row(d)) if i in doubtful else use.inner(self.strides[i], n)
            yield use, d[:, :c], inner

    def _backward(self, cotangents: Float[Tensor, "C N *out"]) -> list[Tensor]:
        """∂(u·f)/∂y, (rows, C, *y), for every recorded use, stored with the cotangents first."""
        if not self.uses:
            return []
        edges = [u.edge for u in self.uses]
        with self.capture.network.undisturbed():
            grads = self._all_at_once(edges, cotangents) or self._one_by_one(edges, cotangents)
        pulled = [
            cotangents.new_zeros(u.shape[0], len(cotangents), *u.shape[1:]) if g is None else g.transpose(0, 1)
            for u, g in zip(self.uses, grads, strict=True)
        ]
        # The sums of all tensors are checked with one synchronization; entries only if a sum is not finite.
        if pulled and not torch.isfinite(torch.stack([d.sum() for d in pulled])).all():
            for use, d in zip(self.uses, pulled, strict=True):
                if not torch.isfinite(d).all():
                    raise NotFinite(_INFINITE.format("the layer of " + ", ".join(use.params)))
        return [wide(d) for d in pulled]

    def _all_at_once(self, edges: list[GradientEdge], cotangents: Tensor) -> Sequence[Tensor | None] | None:
        """One backward pass with the cotangents as a further axis; None if torch cannot do it or a loop is faster."""
        if not self.capture.batched or len(cotangents) == 1 or self._loops(cotangents):
            return None
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            try:
                return torch.autograd.grad(
                    self.graph_outputs, edges, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
                )
            except torch.OutOfMemoryError:
                raise  # the caller may try fewer samples
            except (RuntimeError, UserWarning):
                self.capture.batched = False
                return None

    def _loops(self, cotangents: Tensor) -> bool:
        """Whether one backward pass per cotangent is faster, as for many samples on a CPU with convolutions.

        There, torch's vectorized pass loops over the cotangents itself, and copies into larger tensors at every step.
        """
        if cotangents.device.type != "cpu" or cotangents.shape[1] < _MANY:
            return False
        size = cotangents.element_size() * max(u.shape.numel() for u in self.uses)
        return size >= _LARGE and any("Convolution" in node.name() for node in self.graph.nodes)

    def _one_by_one(self, edges: list[GradientEdge], cotangents: Tensor) -> Sequence[Tensor | None]:
        """One backward pass for each cotangent."""
        if len(cotangents) == 1:
            grads = torch.autograd.grad(self.graph_outputs, edges, cotangents[0], retain_graph=True, allow_unused=True)
            return [None if grad is None else grad.unsqueeze(0) for grad in grads]
        buffers: list[Tensor | None] = [None] * len(edges)
        for i, u in enumerate(cotangents):
            grads = torch.autograd.grad(self.graph_outputs, edges, u, retain_graph=True, allow_unused=True)
            for j, grad in enumerate(grads):
                if grad is not None:
                    buffer = buffers[j]
                    if buffer is None:  # stored by row, then cotangent, as products for each sample read it
                        shape = (len(grad), len(cotangents), *grad.shape[1:])
                        buffer = buffers[j] = grad.new_empty(shape).transpose(0, 1)
                    buffer[i] = grad
        return buffers

    def gradient(self, u: Float[Tensor, "N *out"]) -> dict[str, Tensor]:
        """Jᵀu by autograd, parameter by parameter."""
        with self.capture.network.undisturbed():
            return pull_back(self.graph_outputs, self.capture.params, u, keep_graph=True)

    def _fall_back(self, names: list[str], cotangents: Tensor) -> dict[str, LayerJacobian]:
        """The Jacobians of some parameters by the fallback; an error if they are infinite."""
        found = self._without_rules(names, cotangents)
        for name, layer in found.items():
            if not bool(torch.isfinite(layer.d).all()):
                raise NotFinite(_INFINITE.format(name))
        return found

    def _without_rules(self, names: list[str], cotangents: Tensor) -> dict[str, LayerJacobian]:
        """They, vectorized over samples or, if that fails, in a loop; perhaps not finite."""
        capture, f = self.capture, self.capture.network
        chosen = {name: capture.params[name] for name in names}
        with capture.network.undisturbed():
            if not capture.loop:
                try:
                    if any("PreluKernel" in node.name() for node in self.graph.nodes):
                        raise NotImplementedError("its derivatives of PReLU are wrong for several samples")
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


def _made_alike(made: Mapping[str, Sequence[Behind]]) -> list[list[str]]:
    """Parameters, those together of which the same was made."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, parts in made.items():
        groups[tuple(id(part.jacobian) for part in parts)].append(name)
    return list(groups.values())


def _orient(found: dict[str, LayerJacobian], capture: Capture) -> None:
    """Set the order of axes for weights of transposed convolutions, whose units are not on the first axis."""
    names = {id(p): name for name, p in capture.params.items()}
    for module in capture.model.modules():
        if not isinstance(module, _ConvTransposeNd):
            continue
        name = names.get(id(module._parameters.get("weight")), "")
        layer = found.get(name)
        if isinstance(layer, Dense):
            found[name] = replace(layer, groups=module.groups, order=transposed_order(len(layer.shape)))
