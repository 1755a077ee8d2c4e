"""J v and Jᵀu by automatic differentiation: J is never formed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products, pull_back
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.compare import is_adjoint, noise, norms
from torchtangent.jacobians.faithful import Faithful, Unfaithful, reads_padding
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.inputs import Inputs, check_finite, take, wide
from torchtangent.operators.product import product
from torchtangent.operators.streams import following

Tangent = dict[str, Tensor]
Way = Callable[[Capture, Inputs, Tangent, bool], tuple[Tensor, Tensor]]

_FEW = slice(0, 2)  # the samples on which ways are checked


def pull(capture: Capture, x: Inputs, u: Float[Tensor, "N *out"], f: Float[Tensor, "N *out"] | None = None) -> Tangent:
    """Jᵀu, parameter by parameter. If f(x) is given with its graph, no forward pass is needed; the graph is used up."""
    with capture.network.undisturbed():
        if f is None or not f.requires_grad:
            f = capture.network(x)
            check_finite(f.detach())
            capture.compare(x, f.detach())
        return pull_back(f, capture.params, u)


def push(
    capture: Capture, x: Inputs, v: Tangent, *, graph: bool = False
) -> tuple[Float[Tensor, "N *out"], Float[Tensor, "N *out"]]:
    """f(x) and J v, by the first way that works for this model; with `graph`, f keeps its graph if the way has one.

    Forward mode is the fastest, but it does not support all layers, and it differs from reverse mode where a model uses
    `no_grad` or an embedding has a padding row (see faithful.py). So each way is first checked against the adjoint on a
    few samples: ⟨u, Jv⟩ = ⟨Jᵀu, v⟩. v is converted to the dtype of the parameters.
    """
    v = {name: t.to(capture.params[name].dtype) for name, t in v.items()}
    if capture.way is None:
        capture.way = _choose(capture, x)
    if graph and capture.way_has_graph is None:  # a checkpoint inside the model, for instance, does not allow it
        capture.way_has_graph = not _failure(capture.way, capture, take(x, _FEW), graph=True)
    way = capture.way
    try:
        f, w = way(capture, x, v, graph and bool(capture.way_has_graph))
    except Unfaithful as error:
        capture.way, capture.way_has_graph = _choose(capture, x, not_forward=str(error)), None
        return push(capture, x, v, graph=graph)
    check_finite(f.detach())
    sample = None if way is _by_layers else _not_finite(w)
    if sample is not None and (why := _failure(way, capture, take(x, sample))):
        # As at √relu(h): where reverse mode multiplies by zero, forward mode divides by it.
        capture.way = _choose(capture, take(x, sample), not_forward=why) if way is _forward else _by_layers
        capture.way_has_graph = None
        return push(capture, x, v, graph=graph)
    capture.compare(x, f.detach())
    return f, w


def _not_finite(w: Float[Tensor, "N *out"]) -> slice | None:
    """The first sample with NaN or infinity."""
    if torch._C._functorch.is_functorch_wrapped_tensor(w) or bool(torch.isfinite(w.sum())):
        return None
    samples = torch.isfinite(w).flatten(1).all(1).logical_not().nonzero()
    return slice(int(samples[0]), int(samples[0]) + 1) if len(samples) else None


def push_otherwise(
    capture: Capture, x: Inputs, v: Tangent
) -> tuple[Float[Tensor, "N *out"], Float[Tensor, "N *out"]] | None:
    """The same by reverse mode from now on, if the way so far disagrees with it on this batch; None if it does not."""
    if capture.way is not _forward or not (why := _failure(_forward, capture, x)):
        return None
    capture.way, capture.way_has_graph = _choose(capture, x, not_forward=why), None
    return push(capture, x, v, graph=True)


def _choose(capture: Capture, x: Inputs, not_forward: str = "") -> Way:
    """The first way that works, but not forward mode if there is a reason against it; warns if it is a slow one."""
    failures: dict[Way, str] = {_forward: not_forward}
    for way in (_forward, *_SLOW):
        failures[way] = failures.get(way) or _failure(way, capture, take(x, _FEW))
        if failures[way]:
            continue
        if way in _SLOW:
            why = f"forward mode does not do for this model ({failures[_forward]})"
            capture.say_once("forward-mode", f"J @ v takes {_SLOW[way]} (exact, but slower): {why}.")
        return way
    said = "; ".join(f"{_SLOW.get(way, 'forward mode')}: {why}" for way, why in failures.items())
    raise RuntimeError(f"J @ v fails for {type(capture.model).__name__} in every way ({said}).")


@float32_products()
def _failure(way: Way, capture: Capture, x: Inputs, *, graph: bool = False) -> str:
    """Why a way fails or is not the adjoint of `pull`; empty if it works."""
    try:
        with capture.network.undisturbed():
            f = capture.network(x)
            chosen = {id(p) for p in capture.params.values()}
            if way is _forward and reads_padding(Graph(f), lambda: capture.network(x), chosen):
                return "it differentiates the padding row of an embedding"
        u, v, g = _probe(capture, f, lambda u: pull(capture, x, u, f))
        f, w = way(capture, x, v, graph)
        adjoint = is_adjoint(u, w, pull(capture, x, u, f) if graph else g, v, capture.rounding(w))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        lacking = re.search(r"forward AD with (\S+)", str(error))
        return f"{lacking[1]} lacks it" if lacking else str(error).splitlines()[0][:120]
    return "" if adjoint else "it disagrees with the reverse one"


def _probe(
    capture: Capture, f: Float[Tensor, "N *out"], back: Callable[[Tensor], Tangent]
) -> tuple[Tensor, Tangent, Tangent]:
    """Random u and v to compare ⟨u, Jv⟩ with ⟨Jᵀu, v⟩, v larger where gradients are small; and Jᵀu = back(u)."""
    generator = torch.Generator().manual_seed(0)
    u = noise(f.detach(), generator)
    g = back(u)
    sizes = norms(list(g.values()))
    least, largest = capture.rounding(u) ** 0.5 * max(sizes), max(sizes) or 1.0  # small ones may only be rounding
    v = {
        name: noise(p.detach(), generator) / (max(size, least) / largest or 1.0)
        for (name, p), size in zip(capture.params.items(), sizes, strict=True)
    }
    return u, v, g


def _forward(capture: Capture, x: Inputs, v: Tangent, graph: bool) -> tuple[Tensor, Tensor]:
    keys = {name: id(p) for name, p in capture.params.items()}

    def f(values: dict[int, Tensor]) -> Tensor:
        return capture.network(x, fixed | values)

    fixed = {} if graph else _fixed(capture)
    values = {id(p): p if graph else p.detach() for p in capture.params.values()}
    with capture.network.undisturbed(), Faithful(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        value, derivative = torch.func.jvp(f, (values,), ({keys[name]: t for name, t in v.items()},))[:2]
    if graph:
        return value, derivative.detach()
    with torch.no_grad():  # tensors of the model may ask for gradients; what forward mode outside of this has stays
        return value.clone(), derivative.clone()


def _fixed(capture: Capture) -> dict[int, Tensor]:
    """What stands in for all parameters, so that none asks for a graph. Gradients stay on, as `Faithful` needs them."""
    return {id(p): p.detach() for p in capture.model.parameters() if p.requires_grad}


def _twice_reverse(capture: Capture, x: Inputs, v: Tangent, graph: bool) -> tuple[Tensor, Tensor]:
    with capture.network.undisturbed():
        f = capture.network(x)
        w = transpose_twice(f, [*capture.params.values()], [*v.values()]).detach()
    return f if graph else f.detach(), w


def transpose_twice(f: Tensor, params: Sequence[Tensor], v: Sequence[Tensor]) -> Tensor:
    """J v for outputs f with a graph: u ↦ Jᵀu is linear in u, so its own transpose is v ↦ J v."""
    u = torch.zeros_like(f, requires_grad=True)
    grads = torch.autograd.grad(f, params, u, create_graph=True, allow_unused=True)
    pairs = [(g, t) for g, t in zip(grads, v, strict=True) if g is not None and g.requires_grad]
    if not pairs:
        return torch.zeros_like(f)
    columns, tangents = [g for g, _ in pairs], [t for _, t in pairs]
    return torch.autograd.grad(columns, u, tangents, allow_unused=True, materialize_grads=True)[0]


def _by_layers(capture: Capture, x: Inputs, v: Tangent, graph: bool) -> tuple[Tensor, Tensor]:
    trace = capture.trace(x)
    f = trace.outputs
    pairs = [(layer.flat().flatten(0, 1), wide(v[name]).view(-1, 1)) for name, layer in trace.layers().items()]
    w = torch.stack([product(rows, column) for rows, column in pairs]).sum(0)
    return f, w.view_as(f).to(f.dtype)


_SLOW: dict[Way, str] = {_twice_reverse: "two reverse passes", _by_layers: "one reverse pass for each output"}


class Replayed:
    """The model's derivative at a batch, kept: J v and Jᵀu without running the model again.

    J v replays the traced tangent of the forward pass, Jᵀu the graph of the backward pass. Tracing takes some tenths of
    a second, so it pays for many products. Raises if torch cannot trace the model.

    Args:
        capture: The model.
        x: The batch.
        stream: Where the model runs, and with it its backward passes, on a GPU: a stream on which they can be recorded.
    """

    def __init__(self, capture: Capture, x: Inputs, stream: torch.cuda.Stream | None = None) -> None:
        self.params, self._network = capture.params, capture.network
        keys, fixed = [id(p) for p in self.params.values()], _fixed(capture)

        def f(*values: Tensor) -> Tensor:
            return capture.network(x, fixed | dict(zip(keys, values, strict=True)))

        with capture.network.undisturbed(), following(stream):
            self._f = capture.network(x)
            with Faithful(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own, about tracing
                self._tangent = torch.func.linearize(f, *(p.detach() for p in self.params.values()))[1]

    @property
    def outputs(self) -> Float[Tensor, "N *out"]:
        return self._f.detach()

    def push(self, v: Tangent) -> Float[Tensor, "N *out"]:
        """J v."""
        with self._network.undisturbed(), torch.no_grad():
            return self._tangent(*v.values())

    def pull(self, u: Float[Tensor, "N *out"]) -> Tangent:
        """Jᵀu."""
        with self._network.undisturbed():
            return pull_back(self._f, self.params, u, keep_graph=True)


def replayed(capture: Capture, x: Inputs, stream: torch.cuda.Stream | None = None) -> Replayed | None:
    """`Replayed`, or None if torch cannot trace the model, or the trace is wrong."""
    try:
        kept = Replayed(capture, x, stream)
        with float32_products():
            u, v, g = _probe(capture, kept.outputs, kept.pull)
            adjoint = is_adjoint(u, kept.push(v), g, v, capture.rounding(u))
        return kept if adjoint and _repeats(capture, kept) else None
    except Exception:  # tracing fails in many ways, and is only a shortcut
        return None


@float32_products()
def _repeats(capture: Capture, kept: Replayed) -> bool:
    """Whether J v is the same each time. In-place operations can make a trace overwrite what it keeps."""
    generator = torch.Generator().manual_seed(1)
    v, other = ({name: noise(p.detach(), generator) for name, p in capture.params.items()} for _ in range(2))
    first = kept.push(v).clone()
    kept.push(other)
    again = kept.push(v)
    return float((wide(again) - wide(first)).norm()) <= 10 * torch.finfo(first.dtype).eps * float(wide(first).norm())
