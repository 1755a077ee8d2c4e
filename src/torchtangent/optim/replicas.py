"""Sums over, and work divided among, the processes of DistributedDataParallel; with one process, nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtangent.notice import warn
from torchtangent.operators.streams import concurrently

Number = TypeVar("Number", int, float)


class Replicas:
    """The processes (ranks) that train one model together.

    Args:
        model: The model as the training loop calls it. If it is a `DistributedDataParallel`, compiled or not, its
            process group is used; any other model is trained by this process alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self.group: Any = None
        self.size, self.rank = 1, 0
        while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self.group = model.process_group
            self.size, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        elif dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            warn(
                f"There are {dist.get_world_size()} ranks, but the optimizer was given a model that is no "
                "DistributedDataParallel: each rank will precondition by its own samples alone. If the ranks train one "
                "model, wrap it first and make the optimizer with the wrapped one, or they will drift apart."
            )

    def total(self, t: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.size > 1:
            t = t.contiguous()
            dist.all_reduce(t, group=self.group)
        return t

    def sum(self, number: Number, like: Tensor) -> Number:
        """The sum of a number over all ranks; it travels on the device of `like`."""
        return number if self.size == 1 else type(number)(self.total(torch.tensor(number, device=like.device)))

    def divide(
        self, tasks: Mapping[str, Callable[[], dict[str, Tensor]]], like: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """The results of all tasks, on all ranks; each rank computes some. `like` tells the device."""
        if self.size == 1:
            found = concurrently([*tasks.values()], next(iter(like.values())).device, dict.values)
            return dict(zip(tasks, found, strict=True))
        own: dict[str, dict[str, Tensor]] = {}
        failure: RuntimeError | None = None
        for i, (name, task) in enumerate(tasks.items()):
            if i % self.size == self.rank:
                try:
                    own[name] = task()
                except RuntimeError as error:  # the other ranks are waiting: tell them first
                    failure = error
        sent = {name: self._send(i % self.size, own.get(name), like[name]) for i, name in enumerate(tasks)}
        if failure is not None:
            raise failure
        for name, state in sent.items():
            if state is None:
                raise RuntimeError(f"The decomposition of {name} failed on another rank.")
        return {name: state for name, state in sent.items() if state is not None}

    def _send(self, owner: int, state: dict[str, Tensor] | None, like: Tensor) -> dict[str, Tensor] | None:
        """The tensors of one rank on all of them; None if it has none."""
        source = dist.get_global_rank(self.group, owner)
        shapes = [None if state is None else {key: (t.shape, t.dtype) for key, t in state.items()}]
        dist.broadcast_object_list(shapes, source, group=self.group)
        if shapes[0] is None:
            return None
        sent = {}
        for key, (shape, dtype) in shapes[0].items():
            if state is not None:
                sent[key] = state[key].contiguous()
            else:
                sent[key] = torch.empty(shape, dtype=dtype, device=like.device)
            dist.broadcast(sent[key], source, group=self.group)
        return sent
