"""The state a model must be in: without wrappers, and in a mode in which per-sample derivatives are defined."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from torchtangent.notice import listed, warn
from torchtangent.operators.autocast import no_autocast


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of `torch.compile`, `DataParallel` and `DistributedDataParallel`.

    Compiled code has no second derivatives and hides its layers from hooks; the others split or synchronize batches.
    The parameters stay the same, and their names lose the prefixes "_orig_mod." and "module.".

    >>> list(dict(unwrapped(nn.DataParallel(nn.Linear(2, 1))).named_parameters()))
    ['weight', 'bias']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"The model should be an nn.Module, got a {type(model).__name__}. The model comes first.")
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


@contextmanager
def in_eval(model: nn.Module, names: Set[str]) -> Iterator[None]:
    """Inside, every module is in eval mode, the named parameters require gradients and autocast is off.

    Afterwards all is as before. Flags are set one by one, because modules may override `eval()`, which has no inverse.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(p, p.requires_grad) for name, p in model.named_parameters() if name in names]
    try:
        for module, _ in modes:
            module.training = False
        for p, _ in flags:
            p.requires_grad_(True)  # even if it was frozen in the meantime
        with no_autocast():
            yield
    finally:
        for module, training in modes:
            module.training = training
        for p, flag in flags:
            p.requires_grad_(flag)


def check_inference_mode() -> None:
    """Raise where autograd would record nothing."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inside torch.inference_mode() nothing can be differentiated. Leave it for this call "
            "(torch.no_grad() is fine)."
        )


def check_autograd(model: nn.Module) -> None:
    """Raise where autograd would record nothing, or if a parameter cannot be differentiated."""
    check_inference_mode()
    for name, p in model.named_parameters():
        if p.is_inference():
            raise RuntimeError(
                f"Parameter '{name}' was made inside torch.inference_mode() and cannot be differentiated. "
                "Make the model outside of it."
            )


def _saw_nothing(module: nn.Module) -> bool:
    """Whether this is a BatchNorm in eval mode that still has its initial running statistics."""
    if not isinstance(module, _BatchNorm) or module.training or module.running_mean is None:
        return False
    mean, variance = module.running_mean, module.running_var
    assert variance is not None
    return not module.num_batches_tracked and not bool(mean.any()) and bool((variance == 1).all())


def check_modes(model: nn.Module) -> None:
    """Raise on layers that mix samples, draw random numbers or change their weights in forward."""
    fresh = [path or type(module).__name__ for path, module in model.named_modules() if _saw_nothing(module)]
    if fresh:
        warn(
            f"BatchNorm saw no batch yet and normalizes by a mean of 0 and a variance of 1 ({listed(fresh)}), which is "
            "hardly the network that will be trained. Run some batches through the model in training mode first."
        )
    for path, module in model.named_modules():
        where = f"{type(module).__name__} '{path}'" if path else type(module).__name__
        if isinstance(module, _BatchNorm):
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
