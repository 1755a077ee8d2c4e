"""Where the weights begin."""

from __future__ import annotations

import torch
from torch import nn

from torchtangent.lab.models.resnet import ResidualBlock

_CUT_DEVIATION = 0.87962566103423978  # of a standard normal variable cut at ±2


def init_lecun(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """flax's defaults, in place: weights of variance 1/fan-in, normal and cut at two deviations; biases zero.

    Running statistics of BatchNorm start at 0 and 1, its scale at 1, but at 0 in the last one of a residual branch.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            deviation = _fan_in(module) ** -0.5 / _CUT_DEVIATION
            nn.init.trunc_normal_(module.weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, ResidualBlock) and isinstance(last := module.branch[-1], nn.BatchNorm2d):
            nn.init.zeros_(last.weight)
    return model


def init_kaiming(model: nn.Module, generator: torch.Generator, biases: bool = False) -> nn.Module:
    """Kaiming-normal (fan-in) weights, in place; biases zero, or PyTorch's uniform default if `biases`."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None and biases:
                edge = _fan_in(module) ** -0.5
                nn.init.uniform_(module.bias, -edge, edge, generator=generator)
            elif module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def init_unnormalized(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Weights that let a deep network without normalization train, in place (appendix A.3 of George, 2023).

    Normal with mean 0 and, for a fan-in of n, the variance

        2/n      behind an activation
        1/n      not behind one: the convolutions of shortcuts, and the first layer, whose input is the data
        0.2/n    the last convolution of a residual branch: a tenth of the variance, as the thesis' formula has it
                 (its words could be read as a tenth of the deviation)

    and biases zero.

    Raises:
        ValueError: The model has BatchNorm layers, which make the scale of the weights before them irrelevant.
    """
    layers: list[nn.Linear | nn.Conv2d] = []
    variances: dict[nn.Module, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{name!r} is a BatchNorm: this initialization is for networks without. Build with norm=False."
            )
        if isinstance(module, nn.Linear | nn.Conv2d):
            layers.append(module)
        elif isinstance(module, ResidualBlock):
            variances |= dict.fromkeys(module.shortcut.modules(), 1.0)
            variances[module.branch[-1]] = 0.2
    variances.setdefault(layers[0], 1.0)
    for layer in layers:
        variance = variances.get(layer, 2.0) / _fan_in(layer)
        nn.init.normal_(layer.weight, 0.0, variance**0.5, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model


def _fan_in(layer: nn.Linear | nn.Conv2d) -> int:
    return layer.weight[0].numel()


def seeded(build: object, seed: int) -> nn.Module:
    """Call a constructor under a seed, leaving the global random state as it was."""
    if not callable(build):
        raise TypeError(f"{build!r} does not build a model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
