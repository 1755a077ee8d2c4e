"""The Jacobian of a convolution with many locations, without patches."""

from itertools import product

import oracle
import pytest
import torch
from torch import nn

import torchtangent as tt
from torchtangent.jacobians import factors

GEOMETRIES = [
    (kind, shape, {"kernel_size": k, "stride": s, "padding": p, "dilation": g, "padding_mode": mode})
    for kind, shape in ((nn.Conv1d, (3, 40)), (nn.Conv2d, (3, 12, 11)), (nn.Conv3d, (2, 7, 6, 8)))
    for k, s, p, g, mode in product((2, 3), (1, 2), (0, 1, "same"), (1, 2), ("zeros", "circular"))
    if p != "same" or s == 1
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("kind", "shape", "options"), GEOMETRIES)
@pytest.mark.parametrize("outputs", [1, 2])
def test_weight_gradients_sample_by_sample(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "_LARGE_CONVOLUTION", 0)
    torch.manual_seed(0)
    layer = kind(shape[0], 2, **options)
    x = torch.randn(3, *shape)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(layer(x)[0].numel(), outputs)).eval()
    J = tt.jacobian(model, x)
    weight = J.layers["0.weight"]
    if layer(x)[0, 0].numel() >= 4 * 2 * outputs:
        assert weight._many_locations()
    expected = oracle.jacobian(model.double(), x.double())[..., : weight.shape.numel()]
    assert (weight.flat().double() - expected).norm() <= 1e-5 * expected.norm()
