"""f(x) and J v of a frozen network, differentiable with respect to v and, if need be, the inputs."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map_only

from torchtangent.jacobians.call import alone, eagerly, float32_products, pull_back
from torchtangent.jacobians.compare import is_adjoint, noise
from torchtangent.jacobians.faithful import Faithful, reads_padding
from torchtangent.jacobians.graph import Graph, kinds_in
from torchtangent.jacobians.inputs import check_finite, wide
from torchtangent.jacobians.switches import plain_attention, plain_layers, step_by_step
from torchtangent.linear.frozen import Args, Frozen, Kwargs, Tangent, check_reached
from torchtangent.linear.reverse import needs_gradient, reverse_twice, row_by_row
from torchtangent.notice import warn

Way = Callable[[Frozen, Tangent, Args, Kwargs], tuple[Tensor, Tensor]]
SLOW: dict[Way, str] = {
    reverse_twice: "two reverse passes",
    row_by_row: "one reverse pass for each entry of the output",
}


def forward_mode(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """One pass with dual numbers, in which f records no graph. Not for inputs that require a gradient."""
    f = functools.partial(frozen.value, args, kwargs)
    at = {name: frozen.weight(name) for name in v}
    if not torch.is_grad_enabled():
        v = {name: t.detach() for name, t in v.items()}  # gradients are on, so that it shows where f turns them off
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        with torch.enable_grad(), Faithful():
            value, w = torch.func.jvp(f, (at,), (v,))[:2]
        return value, w
    return _bare_duals(f, at, v)


@eagerly  # a graph break would lose the dual numbers, and the result would silently be wrong
def _bare_duals(f: Callable[[Tangent], Tensor], at: Tangent, v: Tangent) -> tuple[Tensor, Tensor]:
    """The same as `torch.func.jvp`, with less overhead."""
    with alone(), torch.enable_grad(), forward_ad.dual_level(), Faithful():
        value, w = forward_ad.unpack_dual(f({name: forward_ad.make_dual(at[name], t) for name, t in v.items()}))
    return value, torch.zeros_like(value) if w is None else w


@eagerly
@float32_products(autocast=True)
def choose(frozen: Frozen, names: list[str], args: Args, kwargs: Kwargs, *, forward: bool = True) -> tuple[Way, bool]:
    """The first way to compute J v that runs for this network and agrees with reverse mode on this batch.

    Forward mode (unless it is excluded) does not support all layers, and may differ from reverse mode (see
    jacobians/faithful.py). So for random u and v, ⟨u, J v⟩ has to equal ⟨Jᵀu, v⟩, and its derivative with respect to v
    has to be Jᵀu. It is never differentiated with respect to the inputs: the forward-mode formulas of LayerNorm and
    InstanceNorm treat their statistics as constants.

    Returns:
        The way, and whether this batch confirms it: where a gradient is zero, nothing was compared.
    """
    generator = torch.Generator().manual_seed(0)
    at = frozen.leaves(names)
    with torch.enable_grad(), frozen.at(at):
        own, named = _copied(args, kwargs)
        f = frozen(*own, **named)
        check_finite(f.detach().reshape(len(f) if f.dim() else 1, -1))
        check_reached(f, [*at.values(), *tree_leaves((args, kwargs, own, named))])
        graph = Graph(f)
        padding = reads_padding(graph, lambda: _again(frozen, args, kwargs), {*map(id, at.values())})
        u = noise(f.detach(), generator)
        gradient = pull_back(f, at, u)
    v = {name: noise(g, generator).requires_grad_() for name, g in gradient.items()}
    trial = _Trial(u, v, gradient, max(torch.finfo(kind).eps for kind in kinds_in(graph) | {f.dtype}) ** 0.5)
    ways, why = _candidates(args, kwargs, forward=forward, padding=padding)
    for way in ways:
        if _works(way, trial, frozen, args, kwargs):
            if way in SLOW:
                warn(f"The linearization takes {SLOW[way]} (exact, but slower): {why}.")
            return way, all(bool(g.detach().any()) for g in gradient.values())
    if needs_gradient(args, kwargs):
        raise ValueError(
            "The inputs need a gradient, for which this network has to have second derivatives, and they fail. "
            "Detach the inputs."
        )
    raise ValueError(
        "J v and Jᵀu of this network contradict each other, however they are computed. "
        "Does it draw random numbers, change its weights or buffers when it is called, or hold compiled parts?"
    )


def _candidates(args: Args, kwargs: Kwargs, *, forward: bool, padding: bool) -> tuple[list[Way], str]:
    """The ways to try, the fastest first, and the reason if a slow one is taken."""
    if needs_gradient(args, kwargs):
        return [reverse_twice], "the inputs need a gradient"
    if padding:
        return [*SLOW], "forward mode differentiates the padding row of an embedding"
    if not forward:
        return [*SLOW], "the model writes, under no_grad, to what has a derivative"
    return [forward_mode, *SLOW], "forward mode fails for this model"


def _again(frozen: Frozen, args: Args, kwargs: Kwargs) -> Tensor:
    """f(x), of copies of the inputs."""
    args, kwargs = _copied(args, kwargs)
    return frozen(*args, **kwargs)


def _copied(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Copies of the inputs, as the network may write to them."""
    return tree_map_only(Tensor, torch.clone, (args, kwargs))


class _Trial(NamedTuple):
    """Random u and v, and the true gradient Jᵀu."""

    u: Tensor
    v: Tangent
    gradient: Tangent
    small: float


def _works(way: Way, trial: _Trial, frozen: Frozen, args: Args, kwargs: Kwargs) -> bool:
    """Whether a way computes J v, with the derivative Jᵀ."""
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)  # torch's own
            w = way(frozen, trial.v, *_copied(args, kwargs))[1]
            back = pull_back(w, trial.v, trial.u)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError):
        return False
    pairs = [(wide(g), wide(back[name])) for name, g in trial.gradient.items()]
    wrong = math.hypot(*(float((g - other).detach().norm()) for g, other in pairs))
    norm = math.hypot(*(float(g.detach().norm()) for g, _ in pairs))
    small = max(trial.small, torch.finfo(autocast_dtype(w) or w.dtype).eps ** 0.5)
    return is_adjoint(trial.u, w, trial.gradient, trial.v, small) and wrong <= small * norm


def autocast_dtype(t: Tensor) -> torch.dtype | None:
    """The dtype of autocast on the device of a tensor; None if it is off."""
    kind = t.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def unmix(network: nn.Module) -> None:
    """Make norm layers convert their inputs to their own dtype under autocast."""
    for module in network.modules():
        if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm):
            module.register_forward_pre_hook(_convert, with_kwargs=True)


def _convert(module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """A forward pre-hook: under autocast, inputs and weights of different dtypes would make forward mode fail."""
    own = next((t for t in (module.weight, getattr(module, "running_var", None)) if isinstance(t, Tensor)), None)
    if own is None or autocast_dtype(own) is None:
        return args, kwargs
    return tree_map_only(Tensor, lambda t: t.to(own.dtype), (args, kwargs))


@contextmanager
def unfused(attention: bool, recurrent: bool) -> Iterator[None]:
    """A context without flash attention and other fused kernels of the layers in use: they have no forward mode."""
    if torch.compiler.is_compiling() and not attention and not recurrent:
        with sdpa_kernel(SDPBackend.MATH):  # which the compiler supports, unlike locks
            yield
        return
    with (
        plain_attention(),
        plain_layers() if attention else nullcontext(),
        step_by_step() if recurrent else nullcontext(),
    ):
        yield
