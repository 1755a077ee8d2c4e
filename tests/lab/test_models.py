"""Networks have the published sizes; training learns and repeats itself."""

from __future__ import annotations

import torch
from torch import nn

from torchtangent.lab import data
from torchtangent.lab.models import (
    ResidualBlock,
    convnet_1001,
    init_kaiming,
    init_lecun,
    lenet,
    mlp,
    resnet18,
    seeded,
    vgg11,
)
from torchtangent.lab.train import accuracy, epochs


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_published_sizes() -> None:
    assert size(convnet_1001()) == 1001
    assert size(vgg11()) == 9_225_610  # torchvision's VGG11 features and one layer 512 → 10
    assert size(mlp([3072, 100, 100, 1])) == 317_501
    assert size(lenet()) == 136_121
    assert size(resnet18()) == 11_169_345  # about 11.17 million
    assert size(mlp([1, 256, 256, 256, 256, 256, 1])) == 512 + 4 * (256 * 257) + 257


def test_seeded_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    first, second = (seeded(convnet_1001, 3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_kaiming_init_has_the_right_scale() -> None:
    model = mlp([400, 400, 1])
    init_kaiming(model, torch.Generator().manual_seed(0))
    weight, bias = next(iter(model.parameters())), model[1].bias
    assert abs(weight.std() * (400 / 2) ** 0.5 - 1) < 0.02
    assert bias.abs().max() == 0
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


def test_training_learns_and_repeats_itself() -> None:
    digits = data.load("digits")
    x, y = digits.x_train[:300], digits.y_train[:300]

    def train() -> tuple[nn.Module, list[float]]:
        model = seeded(lambda: mlp([784, 32, 10]), 0)
        losses = [loss for _, loss in epochs(model, x, y, count=5, lr=0.05, batch=32, seed=1)]
        return model, losses

    (model, losses), (_, again) = train(), train()
    assert losses == again
    assert losses[-1] < losses[0] / 2
    assert accuracy(model, x, y) > 0.9


def test_the_step_is_torchs_sgd() -> None:
    x, y = torch.randn(12, 5), torch.randint(3, (12,))
    ours, theirs = (seeded(lambda: mlp([5, 4, 3]), 0) for _ in range(2))
    list(epochs(ours, x, y, count=3, lr=0.1, batch=12, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)
