"""Eigenpairs of matrices at which LAPACK's float32 fails: of rank one, with many zeros."""

import pytest
import torch
from torch import nn

import torchtangent as tt
from torchtangent.operators.symmetric import add_gram, eigh, reflect


def sparse(seed: int, n: int) -> torch.Tensor:
    """A vector with a few entries that are not zero, as behind dead ReLUs."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.zeros(n)
    h[torch.randperm(n, generator=generator)[:7]] = torch.rand(7, generator=generator) * 0.3
    return h


def test_rank_one() -> None:
    """Of these, torch.linalg.eigh refuses some and gives NaN for others, on some machines."""
    for seed in range(80):
        h = sparse(seed, 20 + seed % 100)
        M = torch.outer(h, h)
        values, vectors = eigh(M)
        assert values.dtype == vectors.dtype == torch.float32
        torch.testing.assert_close((vectors * values) @ vectors.T, M, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(vectors.T @ vectors, torch.eye(len(M)), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_decomposed_is_said() -> None:
    with pytest.raises(torch.linalg.LinAlgError, match=r"\(3 × 3\) could not be decomposed: it has NaN or infinity"):
        eigh(torch.full((3, 3), torch.nan))


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.BlockDiagonal])
def test_a_layer_that_sees_the_same_in_every_sample(representation: object) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        layer, x = nn.Linear(64, 4), sparse(seed, 64).expand(10, 64).clone()
        F = tt.fisher(layer, (x, None), representation, likelihood="gaussian")
        v = torch.randn(4 * 65)
        dense = F.dense().double()
        wanted = torch.linalg.solve(dense + 1e-2 * torch.eye(260).double(), v.double())
        torch.testing.assert_close(F.solve(v, damping=1e-2).double(), wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("make", [tt.optim.EKFAC, tt.optim.KFAC])
def test_optimizers_go_on(make: object) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        layer, x = nn.Linear(64, 4), sparse(seed, 64).expand(10, 64).clone()
        opt = make(layer, lr=0.1, damping=1e-2, basis_every=1)
        (layer(x) - 1).square().sum(1).mean().backward()
        before = layer.weight.detach().clone()
        opt.step()
        assert opt.skipped == 0
        assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize(
    "shape", [(300_000, 1), (300_000, 3), (300_000, 10), (2, 150_000, 9), (9000, 15), (500, 300), (3, 50, 20)]
)
def test_sums_of_many_rows_do_not_drift(shape: tuple[int, ...]) -> None:
    rows = torch.rand(shape)
    total = torch.ones(*shape[:-2], shape[-1], shape[-1])
    exact = total.double() + rows.double().mT @ rows.double()
    add_gram(total, rows)
    found = torch.stack([reflect(t) for t in total]) if total.dim() == 3 else reflect(total)
    assert float((found.double() - exact).norm() / exact.norm()) < 3e-6
