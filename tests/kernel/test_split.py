"""Convolutions as sums of products of numbers with few bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchtangent.kernel.split import convolve, pull_back

aten = torch.ops.aten
GEOMETRIES: list[list[Any]] = [
    [[1, 1], [1, 1], [1, 1], False, [0, 0], 1],
    [[2, 2], [1, 1], [1, 1], False, [0, 0], 1],
    [[2, 1], [0, 1], [1, 2], False, [0, 0], 1],
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_parts_add_up(geometry: list[Any]) -> None:
    """On a CPU, where parts are not rounded to TF32, nothing but float32's own rounding is lost."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 130, 9, 8), torch.randn(70, 130, 3, 3)
    y = convolve(x, weight, geometry)
    exact = aten.convolution(x.double(), weight.double(), None, *geometry)
    assert (y - exact).norm() < 1e-6 * exact.norm()
    g = torch.randn_like(y)
    found = pull_back(g, x, weight, geometry)
    only_input = [True, False, False]
    exact = aten.convolution_backward(g.double(), x.double(), weight.double(), None, *geometry, only_input)[0]
    assert (found - exact).norm() < 1e-6 * exact.norm()
