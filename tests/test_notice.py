"""Warnings are about the user's own line."""

import warnings

import pytest
import torch
from torch import nn

import torchtangent as tt
from torchtangent import notice


class Decides(nn.Module):
    """vmap cannot take it: it looks at values."""

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.randn(3, 2) for _ in range(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((x[:, :, None] / w).sum(1) for w in self.w) if bool(x.isfinite().all()) else x[:, :2]


@pytest.mark.parametrize(
    "call", [tt.ntk, lambda m, x: tt.jacobian(m, x).dense(), lambda m, x: tt.fisher(m, (x, None), tt.Diagonal)]
)
def test_a_warning_points_at_the_caller(call: object) -> None:
    with pytest.warns(tt.TangentWarning, match="sample by sample") as found:
        call(Decides(1), torch.randn(4, 3))
    assert {w.filename for w in found} == {__file__}


def test_many_names_are_not_all_listed() -> None:
    with pytest.warns(tt.TangentWarning, match=r"w\.0, w\.1, w\.10, w\.11, w\.2, w\.3 and 6 more") as found:
        tt.jacobian(Decides(12), torch.randn(4, 3)).dense()
    assert len(str(found[0].message)) < 400


def test_products_do_not_need_the_slow_way() -> None:
    """Warnings are errors here."""
    J = tt.jacobian(Decides(1), torch.randn(4, 3))
    J.T @ torch.ones(4, 2)


def test_an_optimizer_points_at_the_line_that_calls_it() -> None:
    model = Decides(1)
    with pytest.warns(tt.TangentWarning, match="no rule") as found:
        tt.optim.EKFAC(model, lr=0.1, damping=0.1)
    assert {w.filename for w in found} == {__file__}


@pytest.mark.parametrize(("action", "times"), [("default", 2), ("once", 2), ("always", 6)])
def test_a_line_is_warned_of_once(action: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would forget what it said, since warnings are caught inside."""
    monkeypatch.setattr(notice, "_said", set())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        for _ in range(3):
            tt.jacobian(Decides(1), torch.randn(4, 3)).dense()
            tt.jacobian(Decides(1), torch.randn(4, 3)).dense()
    assert len([w for w in found if w.category is tt.TangentWarning]) == times


def test_what_was_ignored_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_said", set())
    with warnings.catch_warnings(record=True) as found:
        for action in ("ignore", "default", "default"):
            warnings.simplefilter(action)
            tt.jacobian(Decides(1), torch.randn(4, 3)).dense()
    assert len([w for w in found if w.category is tt.TangentWarning]) == 1
