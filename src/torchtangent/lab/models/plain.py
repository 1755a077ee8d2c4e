"""Networks without shortcuts: linear layers, and a few convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

Activation = Callable[[], nn.Module]


def convnet_1001(outputs: int = 10) -> nn.Sequential:
    """The 1,001-parameter convolutional network for 28×28 images of the NNGeometry timing notebook.

    Convolutions 1→5 (3×3), 5→6 (4×4), 6→7 (3×3), each with ReLU and 2×2 max-pooling, then 7→10.

    >>> sum(p.numel() for p in convnet_1001().parameters())
    1001
    """
    return nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 6, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 7, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7, outputs),
    )


def mlp(widths: Sequence[int], activation: Activation = nn.ReLU, *, norm: bool = False) -> nn.Sequential:
    """Linear layers of these widths, an activation between them; inputs are flattened.

    Args:
        widths: Of the input, the hidden layers and the output.
        activation: Makes the activations.
        norm: Whether a BatchNorm comes between every hidden layer and its activation.

    >>> [tuple(p.shape) for p in mlp([4, 3, 2]).parameters()]
    [(3, 4), (3,), (2, 3), (2,)]
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (wide, narrow) in enumerate(pairwise(widths)):
        if i:
            layers += [nn.BatchNorm1d(wide), activation()] if norm else [activation()]
        layers.append(nn.Linear(wide, narrow))
    return nn.Sequential(*layers)


def autoencoder(
    widths: Sequence[int] = (784, 1000, 500, 250, 30), activation: Activation = nn.Sigmoid, *, norm: bool = False
) -> nn.Sequential:
    """An encoder of these widths and its mirror image, untied; the outputs are the logits of the pixels.

    The eight-layer network on MNIST that second-order optimizers are compared on (Hinton and Salakhutdinov, 2006;
    George et al., 2018).

    Args:
        widths: From the pixels to the code, which is activated as every hidden layer is.
        activation: Makes the activations.
        norm: Whether a BatchNorm comes between every hidden layer and its activation.

    >>> [layer.out_features for layer in autoencoder() if isinstance(layer, nn.Linear)]
    [1000, 500, 250, 30, 250, 500, 1000, 784]
    """
    return mlp([*widths, *reversed(widths[:-1])], activation, norm=norm)


def lenet(
    shape: tuple[int, int, int] = (3, 32, 32), activation: Activation = nn.ReLU, outputs: int = 1
) -> nn.Sequential:
    """LeNet with padded 5×5 convolutions (6 and 16 channels), average pooling and layers of 120 and 84.

    Args:
        shape: Of an input: channels, height, width, the latter divisible by 4.
        activation: Makes the activations.
        outputs: Of the network.

    >>> sum(p.numel() for p in lenet().parameters())
    136121
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 120),
        activation(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, outputs),
    )
