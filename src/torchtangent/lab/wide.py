"""Many copies of a stack of layers as one wide network, with one product or convolution for each layer."""

from __future__ import annotations

from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Weights = dict[str, Tensor]
"""The parameters of all copies: (E, ...) each."""

_DENSE = 8  # copies of a convolution that run sooner as one with zeros between them than in groups, on an H200
_IMAGES = (nn.Conv2d, nn.AvgPool2d, nn.MaxPool2d)  # layers of (n, channels, height, width)
_NUMBERS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)  # layers that act on every number alone


def is_plain(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether the network is a stack of layers that `outputs` knows."""
    if type(model) is not nn.Sequential:
        return False
    for layer in model:
        if type(layer) is nn.Conv2d:
            known = layer.groups == 1 and layer.padding_mode == "zeros" and layer.bias is not None
        elif type(layer) is nn.Linear:
            known = layer.bias is not None
        else:
            known = type(layer) in (*_IMAGES, *_NUMBERS) or repr(layer) == repr(nn.Flatten())
        if not known:
            return False
    return True


def outputs(
    layers: nn.Sequential, weights: Weights, x: Float[Tensor, "*E n ..."], shared: bool
) -> Float[Tensor, "E n outputs"]:
    """The outputs of all copies of a stack of layers, their channels side by side in one network.

    What all copies have in common, such as the input of the first layer, is there once: (n, ...), else (E, n, ...).
    """
    E = len(next(iter(weights.values())))
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Linear):
            w, b = weights[f"{name}.weight"], weights[f"{name}.bias"]
            if shared:
                x = F.linear(x, w.flatten(0, 1), b.flatten()).unflatten(1, (E, -1)).transpose(0, 1)
            else:
                x = torch.baddbmm(b.unsqueeze(1), x, w.mT)
            shared = False
        elif isinstance(layer, _IMAGES):
            x = x if shared else x.transpose(0, 1).flatten(1, 2)
            if isinstance(layer, nn.Conv2d):
                x = _convolution(layer, weights[f"{name}.weight"], weights[f"{name}.bias"], x, shared)
                shared = False
            else:
                x = layer(x)
            x = x if shared else x.unflatten(1, (E, -1)).transpose(0, 1)
        elif isinstance(layer, nn.Flatten):
            x = x.flatten(1 if shared else 2)
        else:
            x = layer(x)
    return x


def _convolution(
    layer: nn.Conv2d, w: Float[Tensor, "E o c *k"], b: Float[Tensor, "E o"], x: Tensor, shared: bool
) -> Float[Tensor, "n Eo h w"]:
    """All copies of a convolution, their channels side by side."""
    groups = 1
    if not shared and len(w) <= _DENSE:
        w = torch.einsum("eo...,ef->eof...", w, torch.eye(len(w), dtype=w.dtype, device=w.device)).flatten(2, 3)
    elif not shared:
        groups = len(w)
    return F.conv2d(x, w.flatten(0, 1), b.flatten(), layer.stride, layer.padding, layer.dilation, groups)
