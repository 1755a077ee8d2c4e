"""gradients(): the gradient of each sample's loss, against autograd sample by sample."""

from __future__ import annotations

import os
from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import ZOO
from oracle import assert_close, take
from torch import Tensor, nn

import torchtangent as tt


def cross_entropy(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f.movedim(-1, 1), y, reduction="none").flatten(1).sum(1) if f.dim() > 2 else per_class(f, y)


def per_class(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="none")


def setting(name: str) -> tuple[nn.Module, Any, Any, Tensor]:
    model, x, output = ZOO[name].build()
    f = oracle.outputs(model, x, output)
    torch.manual_seed(0)
    return model, x, output, torch.randint(f.shape[-1], f.shape[:-1])


def by_autograd(model: nn.Module, x: Any, output: Any, y: Tensor) -> Tensor:
    """One backward pass for each sample."""
    params, rows = list(oracle.trainable(model).values()), []
    for n in range(len(y)):
        loss = cross_entropy(oracle.forward(model, take(x, slice(n, n + 1)), output), y[n : n + 1])
        grads = torch.autograd.grad(loss.sum(), params, materialize_grads=True, allow_unused=True)
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "name",
    ["mlp", "lenet", "sequence-outputs", "residual-gelu", "one-sample-one-output", "dict-output", "language-model"],
)
def test_gradients(name: str) -> None:
    model, x, output, y = setting(name)
    expected = by_autograd(model, x, output, y)
    G = tt.gradients(model, (x, y), cross_entropy, output=output)
    assert G.shape == expected.shape
    assert G.space.names == tuple(name for name, p in model.named_parameters() if p.requires_grad)
    torch.manual_seed(1)
    v, u = torch.randn(G.shape[1], 2).double(), torch.randn(len(y), 2).double()
    assert_close(G.dense(), expected)
    assert_close(G @ v, expected @ v)
    assert_close(G @ v[:, 0], expected @ v[:, 0])
    assert_close(G.T @ u, expected.T @ u)
    assert_close(G.T @ u[:, 0], expected.T @ u[:, 0])


def test_their_second_moment_is_the_empirical_fisher_matrix() -> None:
    model, x, _, y = setting("mlp")
    G = tt.gradients(model, (x, y), per_class).dense()
    assert_close(G.T @ G / len(y), tt.fisher(model, (x, y), tt.Dense, kind="empirical").dense())


def test_names_choose_parameters() -> None:
    model, x, _, y = setting("mlp")
    G = tt.gradients(model, (x, y), per_class, params="*bias")
    every = tt.gradients(model, (x, y), per_class)
    chosen = [every.space.split(g)[name].flatten() for g in every.dense() for name in G.space.names]
    assert_close(G.dense().flatten(), torch.cat(chosen))


def test_real_targets_and_targets_that_look_like_inputs() -> None:
    model, x = nn.Linear(3, 2).double(), torch.randn(5, 3).double()
    G = tt.gradients(model, ({"input": x}, x[:, :2]), lambda f, y: (f - y).square().sum(1) / 2)
    r = (model(x) - x[:, :2]).detach()
    assert_close(G.dense(), torch.cat([(r[:, :, None] * x[:, None]).flatten(1), r], 1))


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
@pytest.mark.parametrize(
    ("data", "loss", "message"),
    [
        (torch.randn(4, 3), per_class, r"needs one batch of inputs and targets"),
        ((torch.randn(4, 3), None), per_class, r"needs one batch of inputs and targets"),
        ((torch.randn(4, 3), torch.zeros(3, dtype=torch.long)), per_class, r"4 samples, and targets of shape \(3,\)"),
        (
            (torch.randn(4, 3), torch.zeros(4, dtype=torch.long)),
            F.cross_entropy,
            r"one value for each of the .*reduction='none'",
        ),
        ((torch.randn(4, 3), torch.zeros(4, dtype=torch.long)), nn.CrossEntropyLoss, r"loss should be a function"),
    ],
)
def test_errors(data: Any, loss: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tt.gradients(nn.Linear(3, 2), data, loss)


def test_targets_that_changed_are_noticed() -> None:
    x, y = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    G = tt.gradients(nn.Linear(3, 2), (x, y), per_class)
    y += 1
    with pytest.raises(RuntimeError, match="The inputs changed"):
        G.dense()
