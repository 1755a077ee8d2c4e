"""The projections inside attention: no hook of a layer sees them, so they are read off autograd's graph."""

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
    """One product with a projection: the operation, the number of samples, and the cotangent of its output.

    Samples are the inner axis of its rows: torch puts tokens first inside attention, whatever `batch_first` says.
    """

    of: Operation
    samples: int
    d: Tensor

    @classmethod
    def arrived(cls, of: Operation, samples: int, d: Tensor) -> Projection:
        """The projection whose node the backward pass has just reached."""
        return cls(of.filled(torch._C._current_autograd_node()), samples, d)

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        """The factored Jacobians for n samples of the model, each of which may be several of attention's (windows)."""
        assert isinstance(module, nn.MultiheadAttention)
        if not module.batch_first and 1 < self.samples != n == self.of.rows // self.samples:
            raise RuntimeError(
                f"The model's input seems to have tokens first: its first axis has {n} entries, and its attention sees "
                f"{self.samples} samples of {n} tokens. Make the optimizer with batch_axis=1."
            )
        if self.samples % n:
            raise NoRule(f"it saw {self.samples} samples for {n} of the model")
        found = self.of.factors(wide(self.d).unsqueeze(1), self.samples, inner=True)
        own = {name: jacobian for name, jacobian in found.items() if isinstance(jacobian, LayerJacobian)}
        assert len(own) == len(found)  # nothing is made of its parameters
        return {name: jacobian.regroup(n) for name, jacobian in own.items()}


class Unread(NamedTuple):
    """A call whose per-sample gradients are unknown, and why."""

    d: Tensor
    why: str

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        raise NoRule(self.why)


def projections(
    module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor
) -> list[tuple[Node, Operation]] | None:
    """The nodes and operations of the trained projections; None if the graph cannot be read."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None  # a checkpoint would recompute whatever is read
    trained = {name: p for name, p in module.named_parameters() if name in PROJECTIONS and p.requires_grad}
    found, unknown = find_operations(Graph(y, leaves(args) + leaves(kwargs)), trained)
    return None if unknown else found


def samples_of(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of samples that attention sees; an input without an axis for them is one."""
    query = args[0] if args else kwargs["query"]
    return query.shape[0 if module.batch_first else 1] if query.dim() == 3 else 1


def has_tokens_first(model: nn.Module) -> bool:
    """Whether some attention in the model sees tokens first and samples second."""
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
    """(path of the attention, name in it) of a parameter, if it is one of attention's projections.

    The output projection is a layer of its own, but is never called: attention uses its weight.
    """
    module = model.get_submodule(path)
    if type(module) is nn.MultiheadAttention and attribute in PROJECTIONS:
        return path, attribute
    outer, _, own = path.rpartition(".")
    last = type(module) is NonDynamicallyQuantizableLinear and own == "out_proj"
    if last and type(model.get_submodule(outer)) is nn.MultiheadAttention:
        return outer, f"out_proj.{attribute}"
    return None
