"""Autocast around the use of an operator changes nothing: every public method, of every kind of operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contracts.operators import OperatorContract
from test_structured_operators import orthonormal
from torch import Tensor

from torchtangent.operators import Basis, BatchBasis, BlockBasis, Columns, KroneckerBasis, Operator, PickedBasis, Place

CONTRACTS = {cls.__name__: cls for cls in OperatorContract.__subclasses__() if "Indefinite" not in cls.__name__}
METHODS: dict[str, Callable[[Operator, Tensor], Any]] = {
    "product": lambda M, v: M @ v,
    "columns": lambda M, v: M @ torch.stack([v, -v, 2 * v], 1),
    "solve": lambda M, v: M.solve(v, damping=0.3),
    "quad": lambda M, v: M.quad(v),
    "sqrt_mv": lambda M, v: M.sqrt_mv(M.sqrt_mv(v)),
    "trace": lambda M, v: M.trace(),
    "diag": lambda M, v: M.diag(),
    "frobenius": lambda M, v: M.frobenius(),
    "logdet": lambda M, v: M.logdet(damping=0.3),
    "eigh": lambda M, v: M.eigh().values,
    "eigenvectors": lambda M, v: M.eigh(2).vectors.dense(),
    "eigenbasis": lambda M, v: M.eigenbasis().project(v[:, None]),
    "dense": lambda M, v: M.dense(),
    "estimate_trace": lambda M, v: M.estimate_trace(5, 0).value,
    "estimate_diag": lambda M, v: M.estimate_diag(5, 0).value,
    "sum": lambda M, v: (M + M).solve(v, damping=0.3),
    "damped": lambda M, v: M.damped(0.3).frobenius(),
    "inverse": lambda M, v: M.inverse(0.3) @ v,
    "diag of the inverse": lambda M, v: M.inverse(0.3).diag(),
    "scipy": lambda M, v: torch.from_numpy(M.to_scipy() @ v.numpy()),
    "derivative": lambda M, v: derivative(M.quad(v.requires_grad_()), v),
}


def derivative(f: Tensor, v: Tensor) -> Tensor:
    """A backward pass as it should be, outside of autocast."""
    with torch.autocast("cpu", enabled=False):
        return torch.autograd.grad(f, v)[0]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_operators(contract: str) -> None:
    def found(method: str) -> Tensor:
        M = CONTRACTS[contract]().build(torch.float32)
        return METHODS[method](M, torch.randn(M.size, generator=torch.Generator().manual_seed(0)))

    methods = set(METHODS) - ({"sqrt_mv", "logdet"} if contract == "TestScaledNegative" else set())
    wanted = {method: found(method) for method in methods}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        changed = [method for method in methods if not torch.equal(found(method), wanted[method])]
        assert torch.is_autocast_enabled("cpu")
    assert not changed


def bases() -> list[Basis]:
    Q = orthonormal(4, 3).float()
    columns = Columns(Q)
    return [
        columns,
        KroneckerBasis(columns, columns),
        BatchBasis(torch.stack([Q, Q])),
        BlockBasis(((Place.flat(1, 4), columns),), 6),
        PickedBasis(columns, torch.tensor([2, 0])),
    ]


@pytest.mark.parametrize("basis", bases(), ids=lambda basis: type(basis).__name__)
def test_bases(basis: Basis) -> None:
    V, C = torch.randn(basis.size, 2), torch.randn(basis.rank, 2)
    wanted = basis.project(V), basis.lift(C), basis.lift_squared(C), basis.dense()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = basis.project(V), basis.lift(C), basis.lift_squared(C), basis.dense()
    assert all(map(torch.equal, found, wanted))


def test_backward_passes_of_functions() -> None:
    M, v = CONTRACTS["TestImplicit"]().build(torch.float32), torch.randn(40, requires_grad=True)
    wanted = torch.autograd.grad((M @ v).sum(), v)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.autograd.grad((M @ v).sum(), v)[0], wanted)
