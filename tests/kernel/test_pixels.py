"""Convolutions without forming patches."""

from __future__ import annotations

import copy
import math

import oracle
import pytest
import torch
from forced import expected_kernel
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.jacobians.factors import Outer
from torchtangent.jacobians.patches import Patches
from torchtangent.kernel.pixels import Pixels
from torchtangent.kernel.way import Outputs

CONVOLUTIONS = [
    (nn.Conv2d(3, 2, 3, padding=1), (4, 5)),
    (nn.Conv2d(3, 2, 3, padding=1, stride=2), (5, 4)),
    (nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (5, 6)),
    (nn.Conv2d(2, 2, 3, stride=2, padding=1, padding_mode="circular"), (4, 6)),
    (nn.Conv2d(3, 4, 1, stride=3), (7, 5)),
    (nn.Conv1d(2, 3, 4, stride=3, padding=2), (9,)),
    (nn.Conv3d(2, 2, 2, stride=2, padding=1), (3, 2, 3)),
]


def as_a_gpu_sums(way: Pixels, x: Tensor, d: Tensor) -> Tensor:
    """What the fused kernel does with its table, entry by entry."""
    n, cells = len(x), way._by_cell(way._input(x))
    X = torch.einsum("rpnc,rqmc->rpnqm", cells, cells).flatten(0, 1)
    D = torch.einsum("nso,mto->sntm", d, d)
    K = x.new_zeros(n, n)
    for (s, t), *pixels in way.meetings.tolist():
        A = sum((X[p, :, q] for p, q in pixels if p >= 0), torch.zeros_like(K))
        K += A * D[s, :, t]
    return K


@pytest.mark.parametrize(("module", "size"), CONVOLUTIONS)
def test_the_table_of_the_fused_sums_says_which_pixels_meet(module: nn.Module, size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = module.double()
    x = torch.randn(3, module.weight.shape[1], *size, dtype=torch.float64)
    d = torch.randn_like(module(x)).flatten(2).mT
    layer = Outer(x, Patches.of(module), d[:, None, None], module.weight.shape, (0, 1, 2, 3))
    J = torch.einsum("nso,nsi->noi", d, layer.a[:, 0]).flatten(1)
    K = as_a_gpu_sums(Pixels(Outputs("trace", 1), layer), x, d)
    torch.testing.assert_close(K, J @ J.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("module", "size"), CONVOLUTIONS)
def test_patches_with_channels_last_are_the_same_in_another_order(module: nn.Module, size: tuple[int, ...]) -> None:
    patches = Patches.of(module)
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.randn(3, module.weight.shape[1], *size).to(dtype)
        a, b = patches(x)[:, 0], patches.channels_last(x.movedim(1, -1))
        channels = x.shape[1]
        assert torch.equal(b.unflatten(2, (-1, channels)).transpose(2, 3).flatten(2), a)
    wide = torch.randn(3, *size, 8).half()
    a, b = patches(wide.movedim(-1, 1))[:, 0], patches.channels_last(wide)
    assert torch.equal(b.unflatten(2, (-1, 8)).transpose(2, 3).flatten(2), a)


def test_a_stride_multiplies_only_pixels_that_meet() -> None:
    x, d = torch.zeros(1, 256, 8, 8), torch.zeros(1, 1, 1, 16, 512)
    module = nn.Conv2d(256, 512, 3, stride=2, padding=1)
    way = Pixels(Outputs("trace", 1), Outer(x, Patches.of(module), d, module.weight.shape, (0, 1, 2, 3)))
    assert way.cost().pair == 4 * 16 * 16 * 256 + 16 * 16 * 512


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_patches_with_channels_last_of_any_width_and_place(dtype: torch.dtype, channels: int) -> None:
    """Several channels are read as one number, where they are a whole number of them and begin at one."""
    for module, size in (
        (nn.Conv1d(channels, 1, 3, dilation=2), (9,)),
        (nn.Conv1d(channels, 1, 2, stride=3), (9,)),
        (nn.Conv2d(channels, 1, (2, 1), dilation=2, stride=2), (5, 4)),
    ):
        patches = Patches.of(module)
        for offset in (0, 1):
            x = torch.randn(offset + 3 * channels * math.prod(size)).to(dtype)[offset:].view(3, *size, channels)
            a, b = patches(x.movedim(-1, 1))[:, 0], patches.channels_last(x)
            assert torch.equal(b.unflatten(2, (-1, channels)).transpose(2, 3).flatten(2), a)


@pytest.mark.parametrize("reduce", ["full", "trace", "sum", "diag"])
def test_a_dilated_convolution_of_few_channels(reduce: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 8, 3, dilation=2), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10))
    x = torch.randn(64, 2, 40)
    J = oracle.jacobian(copy.deepcopy(model).double(), x.double())
    K = tt.ntk(model, x, reduce=reduce)
    expected = expected_kernel(J, J, reduce)
    assert (K - expected).norm() < 1e-5 * expected.norm()
