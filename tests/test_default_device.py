"""Where new tensors go by default is the user's choice: nothing here may depend on it.

"meta", where there are no numbers, stands for every device that is not the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt


class Setting:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4))
        self.one = nn.Sequential(nn.Flatten(), nn.Linear(25, 8), nn.Tanh(), nn.Linear(8, 1))
        self.x, self.y = torch.randn(12, 1, 5, 5), torch.arange(12) % 4
        self.v = torch.randn(sum(p.numel() for p in self.net.parameters()))
        self.K, self.K4 = tt.ntk(self.one, self.x, reduce="trace"), tt.ntk(self.net, self.x)
        self.values, self.rows = torch.randn(12), torch.ones(48, 1)

    def step(self) -> Tensor:
        opt = tt.optim.EKFAC(self.net, 0.1, 0.1)
        F.cross_entropy(self.net(self.x), self.y).backward()
        opt.step()
        return self.net[0].weight.detach()


FISHER = (tt.Dense, tt.Diagonal, tt.BlockDiagonal, tt.QuasiDiagonal, tt.KFAC, tt.EKFAC, tt.LowRank, tt.Implicit)
CALLS: dict[str, Callable[[Setting], Any]] = {
    **{kind.__name__: lambda s, kind=kind: tt.fisher(s.net, (s.x, s.y), kind) @ s.v for kind in FISHER},
    "sampled": lambda s: tt.fisher(s.net, (s.x, s.y), tt.KFAC, kind="sampled") @ s.v,
    "solve": lambda s: tt.fisher(s.net, (s.x, s.y), tt.Implicit).solve(s.v, damping=0.1),
    "estimate": lambda s: tt.fisher(s.net, (s.x, s.y), tt.Implicit).estimate_trace(3, 0).value,
    "eigh": lambda s: tt.fisher(s.net, (s.x, s.y), tt.Implicit).eigh(2).values,
    "hessian": lambda s: tt.hessian(s.net, (s.x, s.y), F.cross_entropy) @ s.v,
    "J": lambda s: tt.jacobian(s.net, s.x).dense(),
    "J v": lambda s: tt.jacobian(s.net, s.x) @ s.v,
    "ntk": lambda s: tt.ntk(s.net, s.x),
    "linearize": lambda s: tt.linearize(s.one)(s.x).detach(),
    "lazy": lambda s: tt.lazy(s.one, 10.0)(s.x).detach(),
    "cka": lambda s: tt.alignment.cka(s.K4, s.y),
    "rank_tasks": lambda s: tt.alignment.rank_tasks(s.net, s.x, {"a": s.y})["a"].score,
    "top": lambda s: tt.spectrum.top(s.K, 3).values,
    "effective_rank": lambda s: tt.spectrum.effective_rank(s.K),
    "center": lambda s: tt.spectrum.center(s.K4),
    "flow": lambda s: tt.predict.flow(s.K, s.values, [1.0, 2.0]),
    "leave_one_out": lambda s: tt.predict.leave_one_out(s.K, s.values),
    "classify": lambda s: tt.predict.classify(s.K4, s.y, s.K4),
    "SGD": lambda s: tt.dual.SGD(s.K, s.values, loss="mse", lr=0.1).run(epochs=2, batch_size=4).train_loss,
    "nystrom": lambda s: tt.sketch.nystrom(s.net, s.x, 4).matrix,
    "project": lambda s: tt.sketch.project(s.net, s.x, 8).matrix,
    "operator": lambda s: tt.sketch.operator(s.net, s.x) @ s.rows,
    "EKFAC step": Setting.step,
}


@pytest.fixture
def elsewhere() -> Iterator[Callable[[], None]]:
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)


@pytest.mark.parametrize("name", CALLS)
def test_it_does_not_matter(name: str, elsewhere: Callable[[], None]) -> None:
    wanted = CALLS[name](Setting())
    setting = Setting()
    elsewhere()
    found = CALLS[name](setting)
    torch.set_default_device(None)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
