"""On the page for those who come from other libraries, blocks and right-hand columns run, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchtangent as tt

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
SECTIONS = ["torch.func", "nngeometry", "neural-tangents", "curvlinops", "PyHessian", "BackPACK", "laplace-torch"]
ROW = re.compile(r"^\|.*\|(.*)\|$")


def parts() -> Iterator[str]:
    """Blocks, and the code in the last cell of each row, from top to bottom."""
    block: list[str] | None = None
    for line in PAGE.splitlines():
        if block is None and line == "```python":
            block = []
        elif block is not None and line == "```":
            yield "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)
        elif row := ROW.match(line):
            yield from re.findall(r"`([^`]+)`", row[1])


@pytest.fixture(autouse=True)
def _same_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_every_library_has_its_part() -> None:
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == SECTIONS


def test_the_page_runs() -> None:
    names: dict[str, object] = {}
    for part in parts():
        try:
            exec(part, names)
        except Exception as error:
            raise AssertionError(f"{part}\n{error}") from error


def test_the_scales_are_what_the_page_says() -> None:
    """The Gauss-Newton matrix of the mean squared error, and sums of squared gradients of shares of the mean loss."""
    torch.manual_seed(0)
    x, y, targets = torch.randn(6, 4).double(), torch.randint(3, (6,)), torch.randn(6, 3).double()
    model = nn.Linear(4, 3).double()  # linear, so that the Gauss-Newton matrix is the Hessian
    ggn = 2 / 3 * tt.fisher(model, (x, targets), tt.Dense, likelihood="gaussian")
    assert_close(tt.hessian(model, (x, targets), nn.MSELoss()).dense(), ggn.dense())

    shares = []
    for n in range(6):
        loss = nn.functional.cross_entropy(model(x[n : n + 1]), y[n : n + 1]) / 6
        shares.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    squared = torch.stack(shares).square().sum(0)
    assert_close(tt.fisher(model, (x, y), tt.Diagonal, kind="empirical").diag() / 6, squared)


def test_half_the_time_is_that_of_half_the_loss() -> None:
    """neural-tangents' loss has a factor ½: df/dt = −K (f − y) / (N·C)."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 4).double(), torch.randn(5, 3).double()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    K, f0 = tt.ntk(model, x), model(x).detach()
    theirs = y + (torch.linalg.matrix_exp(-tt.flatten(K) * 7.0 / 15) @ (f0 - y).flatten()).view(5, 3)
    assert_close(tt.predict.flow(K, y, 7.0 / 2, f0=f0), theirs)
    mean = tt.ntk(model, x, reduce="trace") / 3
    theirs = y + torch.linalg.matrix_exp(-mean * 7.0 / 15) @ (f0 - y)
    assert_close(tt.predict.flow(mean, y, 7.0 / (2 * 3), f0=f0), theirs)
