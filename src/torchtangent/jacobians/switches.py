"""Temporary changes to torch settings that apply to the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

Switch = tuple[Callable[[], Any], Callable[[Any], None]]  # reads a value, writes one


class Setting:
    """Switches that several threads, or nested calls, may want to set at the same time.

    The values of whoever entered last apply, and when the last one leaves, those from before the first are restored.
    """

    def __init__(self, *switches: Switch) -> None:
        self._switches, self._lock = switches, threading.RLock()
        self._wanted: dict[object, tuple[Any, ...]] = {}  # first the original values, then those of each one inside
        self._made: tuple[Any, ...] = ()

    @contextmanager
    def at(self, *values: Any) -> Iterator[None]:
        """Inside, the switches have these values (unless someone enters later)."""
        own = object()
        try:
            with self._lock:
                if not self._wanted:
                    self._made = self._wanted[self] = tuple(read() for read, _ in self._switches)
                self._wanted[own] = values
                self._turn()
            yield
        finally:
            with self._lock:
                if self._wanted.pop(own, None) is not None:
                    self._turn()
                if len(self._wanted) == 1:
                    self._wanted.clear()

    def _turn(self) -> None:
        """Set the switches to the values of whoever entered last."""
        wanted = next(reversed(self._wanted.values()))
        if wanted != self._made:
            self._made = wanted
            for (_, write), value in zip(self._switches, wanted, strict=True):
                write(value)


def _attribute(holder: Any, name: str) -> Switch:
    return partial(getattr, holder, name), partial(setattr, holder, name)


_fused_layers = Setting((torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled))
_fused_attention = Setting(
    (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable),
)
_fused_steps = Setting(
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
)
_precision = Setting(
    _attribute(torch.backends.cuda.matmul, "fp32_precision"),
    _attribute(torch.backends.cudnn.conv, "fp32_precision"),  # type: ignore[attr-defined]
    _attribute(torch.backends.cudnn.rnn, "fp32_precision"),
)
_cpu_precision = Setting(
    _attribute(torch.backends.mkldnn.matmul, "fp32_precision"),  # type: ignore[attr-defined]
    _attribute(torch.backends.mkldnn.conv, "fp32_precision"),  # type: ignore[attr-defined]
    _attribute(torch.backends.mkldnn.rnn, "fp32_precision"),  # type: ignore[attr-defined]
)


def plain_attention() -> AbstractContextManager[None]:
    """Inside, attention is computed by operations that have all derivatives."""
    return _fused_attention.at(True, False, False, False, False)


def plain_layers() -> AbstractContextManager[None]:
    """Inside, transformer layers and `nn.MultiheadAttention` do not use a single fused operation."""
    return _fused_layers.at(False)


def step_by_step() -> AbstractContextManager[None]:
    """Inside, recurrent layers compute step by step, with operations that the graph shows, not with one for all."""
    return _fused_steps.at(False, False)


@contextmanager
def precision(matmul: str, convolution: str) -> Iterator[None]:
    """Inside, float32 products on a GPU are in full precision ("ieee") or in "tf32"; on a CPU always in full."""
    with _precision.at(matmul, convolution, convolution), _cpu_precision.at("ieee", "ieee", "ieee"):
        yield
