"""f(x) and J v of a frozen network, as expressions that autograd differentiates by v and by the inputs."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from torchtangent.jacobians.call import float32_products, pull_back
from torchtangent.jacobians.inputs import TangentWarning, check_finite
from torchtangent.linear.frozen import Frozen

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Tangent = dict[str, Tensor]
Way = Callable[[Frozen, Tangent, Args, Kwargs], tuple[Tensor, Tensor]]
T = TypeVar("T")


def eagerly(function: Callable[..., T]) -> Callable[..., T]:
    """`torch.compiler.disable`, but the compiler, which takes seconds to import, is left alone until it is in use."""
    disabled = functools.cache(torch.compiler.disable)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if "torch._dynamo" in sys.modules:
            return disabled(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def forward_mode(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """One pass with dual numbers; f records no graph. Not for inputs that need a gradient."""

    def f(weights: Tangent) -> Tensor:
        with frozen.at(weights):
            return frozen(*args, **kwargs)

    at = {name: frozen.weight(name) for name in v}
    if torch.compiler.is_compiling():
        value, w = torch.func.jvp(f, (at,), (v,))[:2]
        return value, w
    return _bare_duals(f, at, v)


@eagerly  # at a graph break it would lose the duals, and be wrong without a word
def _bare_duals(f: Callable[[Tangent], Tensor], at: Tangent, v: Tangent) -> tuple[Tensor, Tensor]:
    """What `torch.func.jvp` does, in less time."""
    with forward_ad.dual_level():
        value, w = forward_ad.unpack_dual(f({name: forward_ad.make_dual(at[name], t) for name, t in v.items()}))
    return value, torch.zeros_like(value) if w is None else w


def reverse_twice(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """u ↦ Jᵀu is linear in u, so its own transpose is v ↦ J v."""
    if needs_gradient(args, kwargs):
        return _with_inputs(frozen, v, args, kwargs)
    return _at_a_point(_transpose_twice, frozen, v, args, kwargs)


def row_by_row(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """One reverse pass for each entry of f: for what can be differentiated only once."""
    return _at_a_point(_rows, frozen, v, args, kwargs)


SLOW: dict[Way, str] = {
    reverse_twice: "two reverse passes",
    row_by_row: "one reverse pass for each entry of the output",
}
Product = Callable[[Tensor, list[Tensor], Sequence[Tensor]], Tensor]


def _transpose_twice(f: Tensor, at: list[Tensor], v: Sequence[Tensor]) -> Tensor:
    u = torch.zeros_like(f, requires_grad=True)
    grads = torch.autograd.grad(f, at, u, create_graph=True, allow_unused=True)
    pairs = [(g, t) for g, t in zip(grads, v, strict=True) if g is not None and g.requires_grad]
    if not pairs:
        return torch.zeros_like(f)
    columns, tangents = [g for g, _ in pairs], [t for _, t in pairs]
    return torch.autograd.grad(columns, u, tangents, allow_unused=True, materialize_grads=True)[0]


def _rows(f: Tensor, at: list[Tensor], v: Sequence[Tensor]) -> Tensor:
    def times_v(entry: Tensor) -> Tensor:
        grads = torch.autograd.grad(entry, at, retain_graph=True, allow_unused=True)
        return sum(((g * t).sum() for g, t in zip(grads, v, strict=True) if g is not None), f.new_zeros(()))

    return torch.stack([times_v(entry) for entry in f.flatten()]).view_as(f)


class _Point(NamedTuple):
    """Where J is taken, with the graph of f there, and a way to J v."""

    product: Product
    frozen: Frozen
    at: Tangent
    f: Tensor


@eagerly
def _at_a_point(product: Product, frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    at = _leaves(frozen, v)
    with torch.enable_grad(), frozen.at(at):
        f = frozen(*args, **kwargs)
    return f.detach(), _Push.apply(_Point(product, frozen, at, f), *v.values())


class _Push(torch.autograd.Function):
    """v ↦ J v, whose derivative is Jᵀ: one reverse pass through the network."""

    @staticmethod
    def forward(ctx: Any, point: _Point, *v: Tensor) -> Tensor:
        ctx.point = point
        if not point.f.requires_grad:
            return torch.zeros_like(point.f)
        with torch.enable_grad(), point.frozen.at(point.at):
            return point.product(point.f, list(point.at.values()), v).detach()

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Any, ...]:
        return None, *_Pull.apply(ctx.point, u)


class _Pull(torch.autograd.Function):
    """u ↦ Jᵀu, whose derivative is J: without it second derivatives would vanish, and nobody would say so."""

    @staticmethod
    def forward(ctx: Any, point: _Point, u: Tensor) -> tuple[Tensor, ...]:
        ctx.point = point
        with point.frozen.at(point.at):
            return tuple(pull_back(point.f, point.at, u, keep_graph=True).values())

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> tuple[None, Tensor]:
        return None, _Push.apply(ctx.point, *v)


@eagerly
def _with_inputs(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    leaves, spec = tree_flatten((args, kwargs))

    def f(x: Sequence[Tensor]) -> Tensor:
        rest = iter(x)
        args, kwargs = tree_unflatten([next(rest) if _moves(t) else t for t in leaves], spec)
        return frozen(*args, **kwargs)

    return _WithInputs.apply(frozen, f, list(v), *v.values(), *filter(_moves, leaves))


def _leaves(frozen: Frozen, names: Iterable[str]) -> Tangent:
    return {name: frozen.weight(name).detach().requires_grad_() for name in names}


def _moves(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad


def needs_gradient(args: Args, kwargs: Kwargs) -> bool:
    """Whether an input does."""
    return torch.is_grad_enabled() and any(map(_moves, tree_leaves((args, kwargs))))


class _WithInputs(torch.autograd.Function):
    """f and J v as functions of v and of the inputs x."""

    @staticmethod
    def forward(
        ctx: Any, frozen: Frozen, f: Callable[[Sequence[Tensor]], Tensor], names: list[str], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        v, x = tensors[: len(names)], tensors[len(names) :]
        at, leaves = _leaves(frozen, names), [t.detach().requires_grad_() for t in x]
        with torch.enable_grad(), frozen.at(at):
            value = f(leaves)
            w = _transpose_twice(value, list(at.values()), v)
        ctx.frozen, ctx.f, ctx.at, ctx.leaves, ctx.value = frozen, f, at, leaves, value
        ctx.save_for_backward(*tensors)
        return value.detach(), w.detach()

    @staticmethod
    def backward(ctx: Any, df: Tensor, dw: Tensor) -> tuple[Any, ...]:
        at, again = list(ctx.at.values()), torch.is_grad_enabled()
        v, x = ctx.saved_tensors[: len(at)], ctx.saved_tensors[len(at) :]
        with torch.enable_grad(), ctx.frozen.at(ctx.at):
            # Higher derivatives reach the inputs through views, which df and dw know nothing of.
            x = [t.view_as(t) for t in x] if again else ctx.leaves
            value = ctx.f(x) if again else ctx.value
            g = torch.autograd.grad(value, at, dw, create_graph=True, allow_unused=True)
            pairs = [(value, df), *((a, t) for a, t in zip(g, v, strict=True) if a is not None and a.requires_grad)]
            heads, directions = [a for a, _ in pairs], [t for _, t in pairs]
            dx = torch.autograd.grad(heads, x, directions, retain_graph=True, create_graph=again, allow_unused=True)
        return None, None, None, *(g if again else tree_map_only(Tensor, torch.detach, g)), *dx


@eagerly
@float32_products()
def choose(frozen: Frozen, names: list[str], args: Args, kwargs: Kwargs) -> Way:
    """The first way that runs for this network and agrees with reverse mode on this batch, for random u and v.

    Forward mode lacks some layers, and differs from reverse mode where a network says `no_grad` or an embedding has a
    padding row. So ⟨u, J v⟩ has to be ⟨Jᵀu, v⟩, and its derivative by v has to be Jᵀu. By the inputs it is not to be
    differentiated at all: the formulas of LayerNorm and InstanceNorm take their statistics for constants.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

    at = _leaves(frozen, names)
    with torch.enable_grad(), frozen.at(at):
        f = frozen(*args, **kwargs)
        check_finite(f.detach().reshape(len(f) if f.dim() else 1, -1))
        u = noise(f.detach())
        gradient = pull_back(f, at, u)
    v = {name: noise(g).requires_grad_() for name, g in gradient.items()}

    def works(way: Way) -> bool:
        try:
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)  # torch's own
                w = way(frozen, v, args, kwargs)[1]
                return _transposed(u, w, gradient, v, pull_back(w, v, u))
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError):
            return False

    inputs = needs_gradient(args, kwargs)
    for way in [reverse_twice] if inputs else SLOW if _has_padding(frozen, names) else (forward_mode, *SLOW):
        if works(way):
            if way in SLOW:
                why = "the inputs need a gradient" if inputs else "forward mode fails for this model"
                warnings.warn(
                    f"The linearization takes {SLOW[way]} (exact, but slower): {why}.", TangentWarning, stacklevel=2
                )
            return way
    if inputs:
        raise ValueError(
            "The inputs need a gradient, for which this network has to have second derivatives, and they fail. "
            "Detach the inputs."
        )
    raise ValueError(
        "J v and Jᵀu of this network contradict each other, however they are computed. "
        "Does it draw random numbers, change its weights or buffers when it is called, or hold compiled parts?"
    )


def _transposed(u: Tensor, w: Tensor, gradient: Tangent, v: Tangent, back: Tangent) -> bool:
    """Whether w = J v and back = Jᵀu, given the true gradient Jᵀu."""

    def wide(t: Tensor) -> Tensor:
        return t.detach().to(torch.promote_types(t.dtype, torch.float32))

    products = wide(u) * wide(w)
    terms = [float((wide(g) * wide(v[name])).sum()) for name, g in gradient.items()]
    size = float(products.norm()) + sum(map(abs, terms))
    wrong = math.hypot(*(float((wide(g) - wide(back[name])).norm()) for name, g in gradient.items()))
    norm = math.hypot(*(float(wide(g).norm()) for g in gradient.values()))
    small = max(torch.finfo(dtype).eps for dtype in (w.dtype, autocast_dtype(w) or w.dtype)) ** 0.5
    return abs(float(products.sum()) - sum(terms)) <= small * size and wrong <= small * norm


def autocast_dtype(t: Tensor) -> torch.dtype | None:
    """What products are rounded to where a tensor is, if that is switched on."""
    kind = t.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _has_padding(frozen: Frozen, names: list[str]) -> bool:
    """Whether an embedding has a padding row: forward mode differentiates it, reverse mode does not."""
    uses = [module for name in names for module, _ in frozen.places[name]]
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None for m in uses)


def unmix(network: nn.Module) -> None:
    """Let norm layers convert their inputs under autocast."""
    for module in network.modules():
        if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm):
            module.register_forward_pre_hook(_convert, with_kwargs=True)


def _convert(module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Under autocast inputs and weights of a norm layer differ in dtype, and forward mode fails."""
    own = next((t for t in (module.weight, getattr(module, "running_var", None)) if isinstance(t, Tensor)), None)
    if own is None or autocast_dtype(own) is None:
        return args, kwargs
    return tree_map_only(Tensor, lambda t: t.to(own.dtype), (args, kwargs))


@contextmanager
def unfused(attention: bool, recurrent: bool) -> Iterator[None]:
    """Without flash attention, and without other fused kernels of the layers that occur: they have no forward mode."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    switches: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn) if recurrent else ()
    enabled = [switch.enabled for switch in switches]
    try:
        if attention:
            torch.backends.mha.set_fastpath_enabled(False)
        for switch in switches:
            switch.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        if attention:
            torch.backends.mha.set_fastpath_enabled(fastpath)
        for switch, before in zip(switches, enabled, strict=True):
            switch.enabled = before
