"""Modes in which per-sample derivatives are not defined: refused by name, before anything runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm


def check_autograd(model: nn.Module) -> None:
    """Raise where autograd records nothing."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inside torch.inference_mode() nothing can be differentiated. Leave it for this call "
            "(torch.no_grad() is fine)."
        )
    for name, p in model.named_parameters():
        if p.is_inference():
            raise RuntimeError(
                f"Parameter '{name}' was made inside torch.inference_mode() and cannot be differentiated. "
                "Make the model outside of it."
            )


def check_modes(model: nn.Module) -> None:
    """Raise on layers that mix samples, draw random numbers or change their weights in forward."""
    for path, module in model.named_modules():
        where = f"{type(module).__name__} '{path}'" if path else type(module).__name__
        if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
            if module.training:
                raise ValueError(
                    f"{where} is in training mode: its output depends on the whole batch, so per-sample "
                    "Jacobians are not defined. Call model.eval() first."
                )
            if module.running_mean is None:
                raise ValueError(
                    f"{where} keeps no running statistics: its output depends on the whole batch also in eval mode, "
                    "so per-sample Jacobians are not defined. Use track_running_stats=True."
                )
        if module.training and is_random(module):
            raise ValueError(
                f"{where} is active (training mode): the output is random, so its Jacobian is not defined. "
                "Call model.eval() first."
            )
        if module.training and isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ValueError(
                f"{where} is in training mode and would change its running statistics. Call model.eval() first."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            if module.max_norm is not None:
                raise ValueError(
                    f"{where} has max_norm={module.max_norm}: it changes its weight in forward. "
                    "Renormalize the weight once and set max_norm=None."
                )
            if module.scale_grad_by_freq:
                raise ValueError(
                    f"{where} has scale_grad_by_freq=True: its 'gradient' is not a derivative. Set it to False."
                )


def is_random(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, nn.RReLU)
