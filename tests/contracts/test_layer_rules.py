"""Every registered layer: the zoo has it, its rule (not the fallback) takes it, and the factors are the oracle's."""

from __future__ import annotations

import pytest
import torch
from cases import Conv1D
from torch import nn

from torchtangent.jacobians import RULES, Dense, jacobian

INPUTS = {
    nn.Linear: (lambda: nn.Linear(3, 4), (5, 3)),
    "transformers.pytorch_utils.Conv1D": (lambda: Conv1D(4, 3), (5, 3)),
    nn.Conv1d: (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), (2, 7)),
    nn.Conv2d: (lambda: nn.Conv2d(2, 4, (3, 2), dilation=2, padding="same", padding_mode="circular"), (2, 6, 5)),
    nn.Conv3d: (lambda: nn.Conv3d(2, 2, 2, padding=1, padding_mode="replicate"), (2, 3, 4, 3)),
    nn.ConvTranspose1d: (lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, groups=2), (2, 5)),
    nn.ConvTranspose2d: (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 3, 4)),
    nn.ConvTranspose3d: (lambda: nn.ConvTranspose3d(2, 2, 2, dilation=2), (2, 2, 3, 2)),
    nn.Embedding: (lambda: nn.Embedding(7, 3, padding_idx=2), (4,)),
    nn.BatchNorm1d: (lambda: nn.BatchNorm1d(3), (3, 4)),
    nn.BatchNorm2d: (lambda: nn.BatchNorm2d(3), (3, 4, 2)),
    nn.BatchNorm3d: (lambda: nn.BatchNorm3d(2), (2, 3, 2, 2)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    nn.InstanceNorm1d: (lambda: nn.InstanceNorm1d(3, affine=True), (3, 5)),
    nn.InstanceNorm2d: (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 3)),
    nn.InstanceNorm3d: (lambda: nn.InstanceNorm3d(2, affine=True), (2, 3, 2, 2)),
    nn.LayerNorm: (lambda: nn.LayerNorm((3, 2)), (4, 3, 2)),
    nn.RMSNorm: (lambda: nn.RMSNorm(3), (4, 3)),
    nn.PReLU: (lambda: nn.PReLU(3), (3, 4)),
}


@pytest.mark.parametrize("layer", RULES, ids=lambda t: t if isinstance(t, str) else t.__name__)
def test_rule(layer: type[nn.Module] | str) -> None:
    build, shape = INPUTS[layer]  # a rule without an entry here fails
    torch.manual_seed(0)
    module = build().double().eval()
    for p in module.parameters():
        nn.init.normal_(p)
    x = torch.randint(7, (4, *shape)) if layer is nn.Embedding else torch.randn(4, *shape, dtype=torch.float64)
    head = torch.randn(module(x)[0].numel(), 3, dtype=torch.float64)

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x)).flatten(1) @ head

    model = Headed()
    for name, factors in jacobian(model, x).layers.items():
        assert not isinstance(factors, Dense), f"{name} went through the fallback"
        p = dict(model.named_parameters())[name]
        for n in range(len(x)):
            for c in range(3):
                expected = torch.autograd.grad(model(x[n : n + 1])[0, c], p)[0]
                assert (factors.dense()[n, c] - expected).norm() <= 1e-10 * max(float(expected.norm()), 1e-3)
