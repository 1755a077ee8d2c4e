"""What networks are trained on: images to reconstruct, images to classify."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.models import autoencoder, init_kaiming, init_unnormalized, mlp, resnet34, vgg11
from torchtangent.lab.recipes.george2018.training import Task
from torchtangent.lab.runner import Context

SIGMOID_GAIN = 4.0
"""Of Glorot and Bengio (2010) for the logistic sigmoid, whose slope at zero is a quarter."""

NETWORKS: dict[str, Callable[..., nn.Module]] = {"VGG11": vgg11, "ResNet34": resnet34}


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared error": lambda f, x: (f.sigmoid() - x).square().sum(1).mean(),
    "cross-entropy": lambda f, x: F.binary_cross_entropy_with_logits(f, x, reduction="none").sum(1).mean(),
}
"""Of the logits of pixels: sums over pixels, means over samples."""


def reconstruction(context: Context) -> Task:
    """Auto-encoders of images in [0, 1]."""
    (x, _), (x_valid, _) = _pixels(context)

    def network(seed: int, norm: bool) -> nn.Module:
        return init_sigmoid(autoencoder((x.shape[1], *context.config["widths"]), norm=norm), seed).to(context.device)

    loss = LOSSES[context.config["loss"]]
    return Task(x, x, x_valid, x_valid, network, loss, loss)


def recognition(context: Context) -> Task:
    """Networks of four sigmoid layers and a linear one that classify images."""
    (x, y), (x_valid, y_valid) = _pixels(context)

    def network(seed: int, norm: bool) -> nn.Module:
        widths = [x.shape[1], *4 * [context.config["width"]], 10]
        return init_sigmoid(mlp(widths, nn.Sigmoid, norm=norm), seed).to(context.device)

    return Task(x, y, x_valid, y_valid, network, F.cross_entropy, error)


def natural_images(context: Context) -> Task:
    """VGG11 or ResNet34 on images whose channels are standardized: with BatchNorm, or initialized to do without."""
    config = context.config
    (x, y), (x_valid, y_valid) = _images(context)
    deviation, mean = torch.std_mean(x, (0, 2, 3), keepdim=True)

    def network(seed: int, norm: bool) -> nn.Module:
        model = NETWORKS[config["network"]](x.shape[1], base=config["base"], norm=norm)
        start = init_kaiming if norm else init_unnormalized
        return start(model, torch.Generator().manual_seed(seed)).to(context.device)

    return Task((x - mean) / deviation, y, (x_valid - mean) / deviation, y_valid, network, F.cross_entropy, error)


def error(f: Tensor, y: Tensor) -> Tensor:
    """The fraction of samples whose largest output is not the right one."""
    return (f.argmax(1) != y).float().mean()


def init_sigmoid(model: nn.Module, seed: int) -> nn.Module:
    """Glorot's normal weights with the gain for sigmoids, in place; biases zero."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, SIGMOID_GAIN, generator=generator)
            nn.init.zeros_(layer.bias)
    return model


def _images(context: Context) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The first images to train and to validate on, at the configured size, with their labels, on the device."""
    config = context.config
    data = context.data(config["data"])

    def first(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return F.adaptive_avg_pool2d(x[:count].to(context.device), config["side"]), y[:count].to(context.device)

    return first(data.x_train, data.y_train, config["train"]), first(data.x_test, data.y_test, config["test"])


def _pixels(context: Context) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The same, an image a row."""
    (x, y), (x_valid, y_valid) = _images(context)
    return (x.flatten(1), y), (x_valid.flatten(1), y_valid)
