"""Attention's projections: no layer's hook sees them, but the graph between its inputs and its output does."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.inputs import leaves, wide
from torchtangent.jacobians.operations import Operation, find_operations
from torchtangent.jacobians.rules import NoRule

MATRICES = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight")
PROJECTIONS = (*MATRICES, "in_proj_bias", "out_proj.bias")


class Projection(NamedTuple):
    """One product with a projection: what it does, the samples that attention saw, and the cotangent of its output.

    Samples are the inner axis of its rows: tokens come first in there, whatever `batch_first` says.
    """

    of: Operation
    samples: int
    d: Tensor

    @classmethod
    def arrived(cls, of: Operation, samples: int, d: Tensor) -> Projection:
        """In the backward pass, which is at the node of this product."""
        return cls(of.filled(torch._C._current_autograd_node()), samples, d)

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        """Of n samples of the model, each of which may be several of attention's (windows of an image)."""
        assert isinstance(module, nn.MultiheadAttention)
        if not module.batch_first and 1 < self.samples != n == self.of.rows // self.samples:
            raise RuntimeError(
                f"The model's input seems to have tokens first: its first axis has {n} entries, and its attention sees "
                f"{self.samples} samples of {n} tokens. Make the optimizer with batch_axis=1."
            )
        if self.samples % n:
            raise NoRule(f"it saw {self.samples} samples for {n} of the model")
        found = self.of.factors(wide(self.d).unsqueeze(1), self.samples, inner=True)
        return {name: jacobian.regroup(n) for name, jacobian in found.items()}


class Unread(NamedTuple):
    """A call of which the samples' gradients cannot be told, and why."""

    d: Tensor
    why: str

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        raise NoRule(self.why)


def projections(
    module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor
) -> list[tuple[Node, Operation]] | None:
    """The products with projections that are trained; None if they cannot be read."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None  # a checkpoint: whatever is read would be computed again
    trained = {name: p for name, p in module.named_parameters() if name in PROJECTIONS and p.requires_grad}
    found, unknown = find_operations(Graph(y, leaves(args) + leaves(kwargs)), trained)
    return None if unknown else found


def samples_of(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many samples attention sees; what has no axis for them is one."""
    query = args[0] if args else kwargs["query"]
    return query.shape[0 if module.batch_first else 1] if query.dim() == 3 else 1


def has_tokens_first(model: nn.Module) -> bool:
    """Whether there is attention in it that sees tokens first and samples second."""
    return any(isinstance(module, nn.MultiheadAttention) and not module.batch_first for module in model.modules())


def tokens_first(model: nn.Module) -> set[nn.Module]:
    """The layers of torch's transformers that see tokens first and samples second, as they do by default."""
    found: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            found.update([] if getattr(module.self_attn, "batch_first", True) else module.modules())
        elif isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder) and module.norm is not None:
            found.update([module.norm] if tokens_first(module.layers) else [])
    return found


def projection_of(model: nn.Module, path: str, attribute: str) -> tuple[str, str] | None:
    """Where a parameter stands, as (path of the attention, name in it), if it is one of attention's projections.

    The last one is a layer in there, which is never called; attention computes with its weight.
    """
    module = model.get_submodule(path)
    if type(module) is nn.MultiheadAttention and attribute in PROJECTIONS:
        return path, attribute
    outer, _, own = path.rpartition(".")
    last = type(module) is NonDynamicallyQuantizableLinear and own == "out_proj"
    if last and type(model.get_submodule(outer)) is nn.MultiheadAttention:
        return outer, f"out_proj.{attribute}"
    return None
