"""J v and Jᵀu by automatic differentiation: J is never formed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtangent.jacobians.call import float32_products, pull_back
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Inputs, batch_size, check_finite, take, wide
from torchtangent.jacobians.verify import noise

Tangent = dict[str, Tensor]
Way = Callable[[Capture, Inputs, Tangent, bool], tuple[Tensor, Tensor]]


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
    `no_grad` or an embedding has a padding row (see `_LeftOut`). So each way is first checked against the adjoint on a
    few samples: ⟨u, Jv⟩ = ⟨Jᵀu, v⟩. v is converted to the dtype of the parameters.
    """
    v = {name: t.to(capture.params[name].dtype) for name, t in v.items()}
    few = take(x, slice(0, min(2, batch_size(x))))
    if capture.push is None:
        capture.push = _choose(capture, few)
    if graph and capture.push_with_graph is None:  # a checkpoint inside the model, for instance, does not allow it
        capture.push_with_graph = not _failure(capture.push, capture, few, graph=True)
    f, w = capture.push(capture, x, v, graph and bool(capture.push_with_graph))
    check_finite(f.detach())
    capture.compare(x, f.detach())
    return f, w


def push_otherwise(
    capture: Capture, x: Inputs, v: Tangent
) -> tuple[Float[Tensor, "N *out"], Float[Tensor, "N *out"]] | None:
    """The same by reverse mode from now on, after the way so far disagreed with it; None if it is reverse mode."""
    if capture.push in _SLOW:
        return None
    capture.push, capture.push_with_graph = _twice_reverse, None
    capture.say_once("forward-mode", f"J @ v takes {_SLOW[_twice_reverse]} (exact, but slower): {_DISAGREES}.")
    return push(capture, x, v, graph=True)


def _choose(capture: Capture, x: Inputs) -> Way:
    """The first way that works; warns if it is a slow one."""
    failures: dict[Way, str] = {}
    for way in (_forward, *_SLOW):
        failures[way] = _failure(way, capture, x)
        if failures[way]:
            continue
        if way in _SLOW:
            why = f"forward mode does not do for this model ({failures[_forward]})"
            capture.say_once("forward-mode", f"J @ v takes {_SLOW[way]} (exact, but slower): {why}.")
        return way
    said = "; ".join(f"{_SLOW.get(way, 'forward mode')}: {why}" for way, why in failures.items())
    raise RuntimeError(f"J @ v fails for {type(capture.model).__name__} in every way ({said}).")


def has_padding(module: nn.Module) -> bool:
    """Whether a module is an embedding with a padding row, which forward mode (wrongly) differentiates."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None


def _failure(way: Way, capture: Capture, x: Inputs, *, graph: bool = False) -> str:
    """Why a way fails or is not the adjoint of `pull`; empty if it works."""
    left_out = _LeftOut()

    def forth(v: Tangent) -> tuple[Tensor, Tensor]:
        return way(capture, x, v, graph)

    def back(u: Tensor, f: Tensor | None) -> Tangent:
        with left_out if f is None else nullcontext():
            return pull(capture, x, u, f)

    try:
        adjoint = _adjoint(capture, batch_size(x), forth, back, graph=graph)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        lacking = re.search(r"forward AD with (\S+)", str(error))
        return f"{lacking[1]} lacks it" if lacking else str(error).splitlines()[0][:120]
    return (left_out.found if way is _forward else "") or ("" if adjoint else _DISAGREES)


class _LeftOut(TorchFunctionMode):
    """Notes what reverse mode leaves out and forward mode does not, as it depends on the data where that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.found and any(isinstance(t, Tensor) and t.requires_grad for t in (*args, *kwargs.values())):
            self.found = _left_out(func, args, kwargs, result)
        return result


def _left_out(func: Any, args: tuple, kwargs: Mapping[str, Any], result: Any) -> str:
    if func in (nn.functional.embedding, nn.functional.embedding_bag):
        padded = kwargs.get("padding_idx") is not None or (func is nn.functional.embedding and len(args) > 2)
        return "it differentiates the padding row of an embedding" if padded else ""
    number = isinstance(result, Tensor) and result.is_floating_point() and not result.requires_grad
    if number and (func == torch.Tensor.data.__get__ or not torch.is_grad_enabled()):  # type: ignore[attr-defined]
        return "it differentiates what the model computes without gradients"
    return ""


@float32_products()
def _adjoint(
    capture: Capture,
    n: int,
    forth: Callable[[Tangent], tuple[Tensor, Tensor]],
    back: Callable[[Tensor, Tensor | None], Tangent],
    *,
    graph: bool = False,
) -> bool:
    """Whether ⟨u, Jv⟩ = ⟨Jᵀu, v⟩ for n samples and random u and v, larger where gradients are small.

    Args:
        forth: v → f and J v.
        back: u, and perhaps f → Jᵀu.
        graph: Whether to pass f, with its graph, from the former to the latter.
    """
    generator = torch.Generator().manual_seed(0)
    like = torch.empty(n, *capture.output_shape, dtype=capture.dtype, device=capture.device)
    u = noise(like, generator)
    g = back(u, None)
    small = capture.rounding(u)
    norms = torch.stack(torch._foreach_norm([wide(t) for t in g.values()]))
    sizes = norms.clamp(min=small**0.5 * norms.amax()).tolist()  # gradients may be zero but for rounding
    v = {
        name: noise(p.detach(), generator) / (size or 1.0)
        for (name, p), size in zip(capture.params.items(), sizes, strict=True)
    }
    f, w = forth(v)
    return is_adjoint(u, w, back(u, f) if graph else g, v, small)


def is_adjoint(u: Tensor, w: Tensor, g: Mapping[str, Tensor], v: Mapping[str, Tensor], small: float) -> bool:
    """Whether ⟨u, w⟩ = ⟨g, v⟩, as for w = J v and g = Jᵀu, up to the fraction `small` of their terms."""
    products = wide(u.detach()) * wide(w.detach())
    terms = torch.stack([(wide(g[name].detach()) * wide(v[name].detach())).sum() for name in g])
    size = float(products.norm() + terms.abs().sum())
    return abs(float(products.sum() - terms.sum())) <= small * size


def _forward(capture: Capture, x: Inputs, v: Tangent, graph: bool) -> tuple[Tensor, Tensor]:
    keys = {name: id(p) for name, p in capture.params.items()}

    def f(values: dict[int, Tensor]) -> Tensor:
        return capture.network(x, values)

    values = {id(p): p if graph else p.detach() for p in capture.params.values()}
    with capture.network.undisturbed(), torch.set_grad_enabled(graph), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        value, derivative = torch.func.jvp(f, (values,), ({keys[name]: t for name, t in v.items()},))[:2]
    return value, derivative.detach() if graph else derivative


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
    layers = trace.pull(trace.units())
    w = torch.stack([layer.flat() @ wide(v[name]).flatten() for name, layer in layers.items()]).sum(0)
    return f, w.view_as(f).to(f.dtype)


_DISAGREES = "it disagrees with the reverse one"
_SLOW: dict[Way, str] = {_twice_reverse: "two reverse passes", _by_layers: "one reverse pass for each output"}


class Replayed:
    """The model's derivative at a batch, kept: J v and Jᵀu without running the model again.

    J v replays the traced tangent of the forward pass, Jᵀu the graph of the backward pass. Tracing takes some tenths of
    a second, so it pays for many products. Raises if torch cannot trace the model.
    """

    def __init__(self, capture: Capture, x: Inputs) -> None:
        self.params, self._network = capture.params, capture.network
        keys = [id(p) for p in self.params.values()]

        def f(*values: Tensor) -> Tensor:
            return capture.network(x, dict(zip(keys, values, strict=True)))

        with capture.network.undisturbed():
            self._f = capture.network(x)
            with torch.no_grad(), warnings.catch_warnings():
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


def replayed(capture: Capture, x: Inputs) -> Replayed | None:
    """`Replayed`, or None if torch cannot trace the model, or the trace is wrong."""
    try:
        kept = Replayed(capture, x)
        adjoint = _adjoint(capture, batch_size(x), lambda v: (kept.outputs, kept.push(v)), lambda u, _: kept.pull(u))
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
