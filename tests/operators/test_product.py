"""Products by oneDNN are those of float64, and only plain numbers go that way."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from torchtangent.operators import memory, product
from torchtangent.operators.product import _ROWS, add_product, add_products, by_onednn, everywhere

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch has no oneDNN here")

N, K, M = 260, 150, 190  # more than _WORTH multiplications


@pytest.fixture(autouse=True)
def _slow_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any processor is one for which MKL has only slow code."""
    monkeypatch.setattr(product, "_slow_mkl", lambda: True)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda t: t,
    "columns": lambda t: t.mT.contiguous().mT,
    "gaps": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "every second row": lambda t: torch.stack([t, t], -2).flatten(-3, -2)[..., ::2, :],
}


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found.double() - expected).norm() <= 1e-6 * expected.norm())


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_products_of_every_layout(left: str, right: str, batch: tuple[int, ...]) -> None:
    a, b = LAYOUTS[left](torch.randn(*batch, N, K)), LAYOUTS[right](torch.randn(*batch, K, M))
    expected = a.double() @ b.double()
    assert by_onednn(a.view(-1, N, K)[0], b.view(-1, K, M)[0]) if batch else by_onednn(a, b)
    assert close(product.product(a, b), expected)
    assert close(product.product(a, b, reused=True), expected)
    out = torch.empty(*batch, N, 2 * M)[..., :M]
    assert product.product(a, b, out).data_ptr() == out.data_ptr()
    assert close(out, expected)
    total = torch.ones(*batch, N, M)
    if batch:
        add_products(total, a, b, alpha=-0.5)
    else:
        add_product(total, a, b, alpha=-0.5)
    assert close(total, 1 - 0.5 * expected)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 40), (40, 1), (9, 9), (20, 20)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_long_sums_do_not_drift(n: int, m: int, batch: tuple[int, ...]) -> None:
    """In float32 and one after the other, 300,000 numbers of one sign lose two digits."""
    a, b = torch.rand(*batch, n, 300_000), torch.rand(*batch, 300_000, m)
    expected = a.double() @ b.double()
    assert close(product.product(a, b), expected)
    total = torch.ones(*batch, n, m)
    (add_products if batch else add_product)(total, a, b, alpha=-0.5)
    assert close(total, 1 - 0.5 * expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.zeros(0, K), torch.randn(K, M)),
        (torch.randn(N, 0), torch.zeros(0, M)),
        (torch.randn(3, 2), torch.randn(2, 4)),
        (torch.randn(N, K).double(), torch.randn(K, M).double()),
        (torch.randn(0, N, K), torch.randn(0, K, M)),
        (torch.randn(2, 2, N, K), torch.randn(2, 2, K, M)),
    ],
)
def test_others_are_torchs_own(a: Tensor, b: Tensor) -> None:
    assert not by_onednn(a, b)
    torch.testing.assert_close(product.product(a, b), a @ b, rtol=0, atol=0)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(300, 300)
    assert by_onednn(a, a)
    monkeypatch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
    assert not by_onednn(a, a)


def test_products_have_derivatives() -> None:
    a, b = torch.randn(N, K), torch.randn(K, M)
    x = a.clone().requires_grad_()
    (g,) = torch.autograd.grad(product.product(x, b).sum(), x)
    torch.testing.assert_close(g, b.sum(1).expand(N, K))
    with torch.no_grad():
        assert by_onednn(x, b)
    _, tangent = torch.func.jvp(lambda a: product.product(a, b), (a,), (torch.ones_like(a),))
    torch.testing.assert_close(tangent, b.sum(0).expand(N, M), rtol=1e-4, atol=1e-4)
    several = torch.vmap(lambda a: product.product(a, b))(torch.stack([a, 2 * a]))
    torch.testing.assert_close(several[1], 2 * (a @ b), rtol=1e-4, atol=1e-4)


def test_everywhere_below_autograd() -> None:
    layer = torch.nn.Linear(K, M)
    x = torch.randn(N, K)
    expected = torch.autograd.grad(layer(x).sin().sum(), layer.weight)[0]
    with everywhere([torch.empty(300, 300)]):
        y = layer(x)
        (found,) = torch.autograd.grad(y.sin().sum(), layer.weight)
    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_everywhere_leaves_other_tensors_alone() -> None:
    A, x, bias = torch.eye(300).to_sparse(), torch.randn(300, 300), torch.randn(1).expand(300)
    with everywhere([x]):
        torch.testing.assert_close(torch.sparse.mm(A, x), x)
        torch.testing.assert_close(torch.addmm(bias, x, x), x @ x + bias, rtol=1e-4, atol=1e-3)
    assert isinstance(everywhere([x.double(), torch.randn(9, 9)]), nullcontext)


def test_autocast_does_not_reach_sums() -> None:
    a, b = torch.randn(_ROWS + 1, K), torch.randn(K, M)  # the last row is too little for oneDNN
    total = torch.zeros(len(a), M)
    with torch.autocast("cpu"):
        add_product(total, a, b)
    assert close(total[-1:], (a.double() @ b.double())[-1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2048, 1025)])
def test_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros = memory.zeros(shape, dtype, torch.device("cpu"))
    empty = memory.empty(shape, dtype, torch.device("cpu"))
    assert zeros.shape == empty.shape == shape
    assert zeros.dtype == empty.dtype == dtype
    assert not zeros.any()
    assert empty.fill_(1).eq(1).all()


def test_memory_that_is_not_there() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="can't allocate memory"):
        memory.empty((1 << 60,), torch.float32, torch.device("cpu"))
