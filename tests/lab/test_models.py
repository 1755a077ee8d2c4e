"""Networks have the published sizes and shapes; their weights begin with the published variances."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchtangent.lab.models import (
    ResidualBlock,
    autoencoder,
    convnet_1001,
    init_kaiming,
    init_lecun,
    init_unnormalized,
    lenet,
    mlp,
    resnet18,
    resnet18_plain,
    resnet34,
    seeded,
    vgg11,
    vgg19,
)

SIZES: list[tuple[str, Callable[[], nn.Module], int]] = [
    ("convnet", convnet_1001, 1001),
    ("mlp", lambda: mlp([3072, 100, 100, 1]), 317_501),
    ("deep mlp", lambda: mlp([1, 256, 256, 256, 256, 256, 1]), 512 + 4 * (256 * 257) + 257),
    ("lenet", lenet, 136_121),
    ("autoencoder", autoencoder, 2_837_314),
    ("autoencoder, norm", lambda: autoencoder(norm=True), 2_837_314 + 2 * (2 * 1750 + 30)),
    ("vgg11", vgg11, 9_225_610),  # torchvision's features and one layer 512 → 10
    ("vgg11, norm", lambda: vgg11(norm=True), 9_231_114),
    ("vgg19", vgg19, 20_024_384 + 5_130),  # likewise
    ("resnet18", resnet18, 11_169_345),
    ("resnet18, 10", lambda: resnet18(outputs=10), 11_173_962),
    ("resnet34", resnet34, 21_282_122),
]


def variance(layer: nn.Linear | nn.Conv2d) -> float:
    """Of the weights, over 1/fan-in."""
    return float(layer.weight.detach().square().mean()) * layer.weight[0].numel()


@pytest.mark.parametrize(("build", "size"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES])
def test_published_sizes(build: Callable[[], nn.Module], size: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == size


def test_the_autoencoder_is_activated_but_at_its_ends() -> None:
    kinds = [type(layer) for layer in autoencoder((12, 5, 2))]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.Sigmoid] * 3, nn.Linear]
    kinds = [type(layer) for layer in autoencoder((12, 5, 2), nn.ReLU, norm=True)]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.BatchNorm1d, nn.ReLU] * 3, nn.Linear]
    assert autoencoder((12, 5, 2))(torch.rand(3, 1, 3, 4)).shape == (3, 12)


@pytest.mark.parametrize("norm", [False, True])
def test_vgg_of_any_width(norm: bool) -> None:
    model = vgg19(channels=1, base=2, outputs=3, norm=norm)
    convolutions = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [2, 2, 4, 4, *[8] * 4, *[16] * 8]
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in model) == (16 if norm else 0)
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 3)


def test_a_block_without_norm() -> None:
    block = ResidualBlock(2, 4, 2, nn.ReLU, norm=False)
    first, _, last = block.branch
    [projection] = block.shortcut
    x = torch.randn(3, 2, 6, 6)
    branch = F.conv2d(F.conv2d(x, first.weight, first.bias, 2, 1).relu(), last.weight, last.bias, 1, 1)
    expected = (F.conv2d(x, projection.weight, projection.bias, 2) + branch).relu()
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("build", [resnet18, resnet34])
def test_no_norm_means_biases(build: Callable[..., nn.Module]) -> None:
    model = build(base=2, outputs=5, norm=False)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == {resnet18: 20, resnet34: 36}[build]
    assert all(layer.bias is not None for layer in convolutions)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 5)


def test_the_plain_resnet_halves_as_torchvisions() -> None:
    model = resnet18_plain(base=2)
    sides = []
    x = torch.rand(1, 3, 224, 224)
    for layer in model:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | ResidualBlock):
            sides.append(x.shape[-1])
    assert sides == [112, 56, 56, 56, 28, 28, 14, 14, 7, 7]
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_the_plain_resnet_begins_as_torchvisions() -> None:
    model = seeded(lambda: resnet18_plain(outputs=1000), 0)
    # torchvision's, less BatchNorm's 9,600 parameters, and a bias for each of 4,800 channels
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 - 9_600 + 4_800
    stem = model[0]
    assert float(stem.weight.detach().var()) == pytest.approx(2 / (49 * 64), rel=0.05)  # fan-out
    assert 0 < stem.bias.abs().max() <= (49 * 3) ** -0.5  # PyTorch's default


def test_seeded_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    first, second = (seeded(convnet_1001, 3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_seeded_wants_a_constructor() -> None:
    with pytest.raises(TypeError, match="does not build a model"):
        seeded(nn.Linear(1, 1).weight, 0)


def test_kaiming_init_has_the_right_scale() -> None:
    model = mlp([400, 400, 1])
    init_kaiming(model, torch.Generator().manual_seed(0))
    assert variance(model[1]) == pytest.approx(2, rel=0.02)
    assert model[1].bias.abs().max() == 0
    init_kaiming(model, torch.Generator().manual_seed(0), biases=True)
    assert 0.04 < model[1].bias.abs().max() <= 0.05


def test_lecun_init_has_the_right_scale() -> None:
    model = init_lecun(lenet(activation=nn.GELU), torch.Generator().manual_seed(0))
    dense = model[7].weight
    assert abs(dense.std() * 1024**0.5 - 1) < 0.01
    assert dense.abs().max() <= 2 * 1024**-0.5 / 0.8796
    assert model[7].bias.abs().max() == 0


def test_residual_branches_begin_at_zero() -> None:
    model = resnet18(base=4)
    nn.init.normal_(model[1].running_mean)
    init_lecun(model, torch.Generator().manual_seed(0)).eval()
    block = next(m for m in model if isinstance(m, ResidualBlock))
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(x), x)
    assert model[1].running_mean.abs().max() == 0
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 1)


def test_lecun_init_without_norm_leaves_the_branches() -> None:
    model = init_lecun(resnet18(base=8, norm=False), torch.Generator().manual_seed(0))
    block = next(m for m in model if isinstance(m, ResidualBlock))
    assert variance(block.branch[-1]) == pytest.approx(1, rel=0.1)


def test_unnormalized_init_of_a_residual_network() -> None:
    """2/n, 1/n and 0.2/n by a layer's place, over all layers of a kind, so that the estimate is sharp."""
    model = resnet34(base=16, norm=False)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    init_unnormalized(model, torch.Generator().manual_seed(0))
    blocks = [m for m in model if isinstance(m, ResidualBlock)]
    places = {
        "image": ([model[0]], 1.0),
        "first in a branch": ([block.branch[0] for block in blocks], 2.0),
        "last in a branch": ([block.branch[-1] for block in blocks], 0.2),
        "shortcut": ([block.shortcut[0] for block in blocks if isinstance(block.shortcut, nn.Sequential)], 1.0),
        "head": ([model[-1]], 2.0),
    }
    assert sum(len(layers) for layers, _ in places.values()) == 1 + 2 * 16 + 3 + 1
    for layers, expected in places.values():
        z = torch.cat(
            [layer.weight.detach().flatten() * (layer.weight[0].numel() / expected) ** 0.5 for layer in layers]
        )
        assert float(z.square().mean()) == pytest.approx(1, abs=5 * (2 / len(z)) ** 0.5)
        assert float(z.mean()) == pytest.approx(0, abs=5 * len(z) ** -0.5)
        assert all(layer.bias.abs().max() == 0 for layer in layers)


def test_unnormalized_init_of_a_plain_stack() -> None:
    model = init_unnormalized(mlp([500, 400, 300]), torch.Generator().manual_seed(0))
    assert variance(model[1]) == pytest.approx(1, rel=0.02)
    assert variance(model[3]) == pytest.approx(2, rel=0.02)


def test_unnormalized_init_refuses_norms() -> None:
    with pytest.raises(ValueError, match=r"'1' is a BatchNorm.*norm=False"):
        init_unnormalized(resnet18(base=2), torch.Generator())
