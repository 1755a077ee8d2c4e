"""Calling a model without leaving a trace on it."""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.jacobians.inputs import (
    Inputs,
    Loss,
    Output,
    arguments,
    batch_size,
    find,
    leaves,
    losses,
    map_leaves,
    pick,
    version_of,
    without_targets,
)
from torchtangent.jacobians.switches import plain_attention, plain_layers, precision, step_by_step
from torchtangent.notice import dtype_name
from torchtangent.operators import product
from torchtangent.operators.autocast import no_autocast

T = TypeVar("T")


class Network:
    """A model as a function of its inputs and, if wanted, of its parameters: (N, C) or (N, T, C) outputs.

    It runs on copies of the model's buffers. A parameter or module that has several names is replaced under all.

    Args:
        model: Any module.
        output: Which tensor of its result.
        loss: If given, inputs come with targets (see `with_targets`), and the outputs are the losses of the samples.
        flatten: Whether outputs with more axes than (N, T, C) count as (N, C).
    """

    def __init__(
        self, model: nn.Module, output: Output = None, loss: Loss | None = None, *, flatten: bool = False
    ) -> None:
        self.model, self.output, self.loss, self.flatten = model, output, loss, flatten
        self._writes: bool | None = None  # to its inputs: known after the first call
        self._returned: torch.Size | None = None  # the shape of a sample's output that counts as another one
        self._differentiates = False  # whether its forward calls autograd, as a network that outputs forces does
        self._names: dict[int, list[str]] = defaultdict(list)
        self._modules = list(model.named_modules())
        self._recurrent = any(isinstance(module, nn.RNNBase) for _, module in self._modules)
        self._parameters = list(model.parameters())
        for path, module in self._modules:
            for attribute, p in module._parameters.items():
                if p is not None:
                    self._names[id(p)].append(f"{path}.{attribute}" if path else attribute)

    def __call__(self, x: Inputs, params: Mapping[int, Tensor] | None = None) -> Tensor:
        """The outputs for a batch; `params` maps the id of a parameter to what stands in for it.

        Outputs (N,) are (N, 1) here: `as_returned` undoes that.
        """
        x = map_leaves(self._own, x)
        inputs, targets = (x, None) if self.loss is None else without_targets(x)
        args, kwargs = arguments(inputs)
        before = [version_of(t) for t in leaves(x)]
        replaced = self._copied_buffers()
        for key, value in (params or {}).items():
            replaced.update(dict.fromkeys(self._names[key], value))
        try:
            if replaced:
                result = torch.func.functional_call(self.model, replaced, args, kwargs, tie_weights=False)
            else:
                result = self.model(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            if not getattr(error, "__notes__", None):
                error.add_note(
                    f"The model, of {self._dtypes}, was called with {_described(args, kwargs)}, samples first: it sees "
                    "parts of a batch, and must work for any number of samples. (A single sample needs an axis for "
                    "them: x[None].)"
                )
            raise
        self._check_writes([version_of(t) for t in leaves(x)] != before)
        n = batch_size(x)
        try:
            if self.loss is not None and targets is not None:
                return losses(self.loss, result, self.output, targets, n)
            f = pick(result, self.output, n, flatten=self.flatten)
            if self.flatten or f.shape[1:] == (1,):
                self._returned = find(result, self.output).shape[1:]
            return f
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            if callable(self.output):
                error.add_note(
                    f"output=… was called on the model's result for {n} samples: it sees parts of a batch, and may "
                    "depend on nothing else. What belongs to samples (masks, targets) goes in as an input of the model."
                )
            raise

    @property
    def _dtypes(self) -> str:
        """Those of the parameters."""
        return " and ".join(sorted({dtype_name(p.dtype) for p in self._parameters})) or "no parameters"

    def of(self, model: nn.Module) -> Network:
        """The same outputs of another model."""
        return Network(model, self.output, self.loss, flatten=self.flatten)

    def as_returned(self, f: Float[Tensor, "N *out"]) -> Tensor:
        """Outputs in the shape in which the model gives them."""
        return f if self._returned is None else f.view(len(f), *self._returned)

    def value(self, x: Inputs) -> Tensor:
        """The outputs for a batch, without a graph; inside, a model that differentiates in its forward has one."""
        with torch.set_grad_enabled(self._differentiates):
            try:
                return self(x).detach()
            except RuntimeError as error:
                if self._differentiates or "does not require grad" not in str(error):
                    raise
        self._differentiates = True
        return self.value(x)

    def _own(self, t: Tensor) -> Tensor:
        """An input without its own graph; a copy, if the model may write to it or it was made in inference mode."""
        frozen = t.is_inference() and not torch.is_inference_mode_enabled()  # autograd keeps none of those
        return t.detach() if self._writes is False and not frozen else t.detach().clone()

    def _check_writes(self, written: bool) -> None:
        """Go on with copies of the inputs only for a model that writes to them."""
        if written and self._writes is False:
            raise RuntimeError(
                "The model writes to its inputs, in this batch and not in the first: yours may have changed. Let it "
                "write to a copy."
            )
        self._writes = self._writes or written

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Where the model is called and differentiated."""
        with undisturbed(), self._products():
            yield

    def _products(self) -> AbstractContextManager[Any]:
        """How the model multiplies: a recurrent one step by step, one with large matrices by the fastest way."""
        return step_by_step() if self._recurrent else product.everywhere(self._parameters)

    def places_of(self, p: nn.Parameter) -> int:
        """In how many places of the model a parameter stands; more than one if it is tied."""
        return len(self._names[id(p)])

    def _copied_buffers(self) -> dict[str, Tensor]:
        copies: dict[str, Tensor] = {}
        made: dict[int, Tensor] = {}
        for path, module in self._modules:
            for attribute, b in module._buffers.items():
                if b is not None:
                    made[id(b)] = made.get(id(b), b.clone())
                    copies[f"{path}.{attribute}" if path else attribute] = made[id(b)]
        return copies


def _described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What a model was given, for an error that it raised."""
    parts = [("", value) for value in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    said = [
        f"{name}{tuple(v.shape)} {dtype_name(v.dtype)}" if isinstance(v, Tensor) else f"{name}{type(v).__name__}"
        for name, v in parts
    ]
    return f"{len(parts)} argument{'s' if len(parts) > 1 else ''} ({', '.join(said)})"


def pull_back(f: Tensor, params: Mapping[str, Tensor], u: Tensor, *, keep_graph: bool = False) -> dict[str, Tensor]:
    """Jᵀu by autograd for outputs f with a graph; zero for a parameter that takes no part in them."""
    if not f.requires_grad:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise RuntimeError(
                "Inside torch.func.grad, jvp or vmap the model records no graph for a product with Jᵀ. Differentiate "
                "with torch.autograd, or compute the product outside."
            )
        return {name: torch.zeros_like(p, requires_grad=False) for name, p in params.items()}
    with undisturbed():
        grads = torch.autograd.grad(
            f, list(params.values()), u.view_as(f), retain_graph=keep_graph, allow_unused=True, materialize_grads=True
        )
    return {name: g.to_dense() if g.is_sparse else g for name, g in zip(params, grads, strict=True)}


_lock = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """For the thread that calls or reads a model here.

    torch has forward mode, and what stands in for a model's parameters, in one thread at a time, and says nothing where
    it is in two. Autograd's own threads pass: they work for one that waits for them.
    """
    with nullcontext() if isinstance(threading.current_thread(), threading._DummyThread) else _lock:
        yield


_inside: list[int] = []  # the threads in which models are called and differentiated here, not by their users


def engine_at_work() -> bool:
    """Whether this thread calls or differentiates a model for the library."""
    return threading.get_ident() in _inside


def engine_at_work_anywhere() -> bool:
    """Whether any thread does: on a GPU backward passes are in threads of autograd's own."""
    return bool(_inside)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Gradients on, autocast and fused attention (it lacks derivatives) off, random state kept, in one thread."""
    with (
        alone(),
        torch.enable_grad(),
        no_autocast(),
        nullcontext() if engine_at_work() else torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        _uncompiled(),
        plain_attention(),
        plain_layers(),
    ):
        _inside.append(threading.get_ident())
        try:
            yield
        finally:
            _inside.remove(threading.get_ident())


def _uncompiled() -> AbstractContextManager[Any]:
    """Where parts of a model that `torch.compile` compiled run as they are written: compiled code takes no hooks."""
    loaded = "torch._dynamo" in sys.modules and not torch.compiler.is_compiling() and not engine_at_work()
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()


@contextmanager
def float32_products(matmul: str = "ieee", convolution: str = "ieee", *, autocast: bool = False) -> Iterator[None]:
    """Products of float32 on a GPU in full precision ("ieee") or in "tf32"; the user's settings return.

    Autocast is switched off, unless it is to be left as it is.
    With TF32 a sample's output differs a little between batch sizes, so checks that compare need full precision.
    """
    with precision(matmul, convolution), nullcontext() if autocast else no_autocast():
        yield


def eagerly(function: Callable[..., T]) -> Callable[..., T]:
    """`torch.compiler.disable`, but the compiler, which takes seconds to import, is left alone until it is in use."""
    disabled = functools.cache(torch.compiler.disable)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if "torch._dynamo" in sys.modules:
            return disabled(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call
