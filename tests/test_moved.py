"""Objects that compute later refuse to do it for another function than the one they were made of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt

Make = Callable[[nn.Module, Tensor, Tensor], Any]
Use = Callable[[nn.Module, Any], object]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).eval()


def ones(model: nn.Module) -> Tensor:
    return torch.ones(sum(p.numel() for p in model.parameters()))


LAZY: dict[str, tuple[Make, Use]] = {
    "J.dense": (lambda m, x, y: tt.jacobian(m, x), lambda m, J: J.dense()),
    "J.layers": (lambda m, x, y: tt.jacobian(m, x), lambda m, J: J.layers),
    "J @ v": (lambda m, x, y: tt.jacobian(m, x), lambda m, J: J @ ones(m)),
    "J.T @ u": (lambda m, x, y: tt.jacobian(m, x), lambda m, J: J.T @ torch.ones(4, 3)),
    "implicit": (lambda m, x, y: tt.fisher(m, (x, y), tt.Implicit), lambda m, F_: F_ @ ones(m)),
    "hessian": (lambda m, x, y: tt.hessian(m, (x, y), F.cross_entropy), lambda m, H: H @ ones(m)),
    "operator": (lambda m, x, y: tt.sketch.operator(m, x), lambda m, K: K @ torch.ones(12)),
}
CHANGES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "training mode": lambda m, x: m.train(),
    "buffers": lambda m, x: m[1].running_mean.add_(1),
    "parameters": lambda m, x: m[0].bias.detach().add_(1),
    "inputs": lambda m, x: x.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", LAZY)
def test_a_later_change_is_refused(name: str, change: str) -> None:
    model, x, y = network(), torch.randn(4, 1, 3, 3), torch.tensor([0, 1, 2, 0])
    make, use = LAZY[name]
    made = make(model, x, y)
    use(model, made)
    CHANGES[change](model, x)
    said = "changed since|does not repeat" if change == "inputs" else f"The model's {change} changed since"
    with pytest.raises((RuntimeError, ValueError), match=said):
        use(model, made)


def test_a_copy_is_refused_with_a_reason() -> None:
    model, x = network(), torch.randn(4, 1, 3, 3)
    with pytest.raises(RuntimeError, match="or it was copied"):
        copy.deepcopy(tt.jacobian(model, x)).dense()


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: tt.jacobian(m, x),
        lambda m, x: tt.ntk(m, x),
        lambda m, x: tt.fisher(m, (x, None), tt.EKFAC),
        lambda m, x: tt.sketch.project(m, x, 4),
        lambda m, x: tt.sketch.nystrom(m, x, 2),
    ],
)
def test_inference_mode_is_refused(call: Callable) -> None:
    model, x = network(), torch.randn(4, 1, 3, 3)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        call(model, x)
    with torch.inference_mode():
        made_inside = network()
    with pytest.raises(RuntimeError, match=r"Parameter '0\.weight' was made inside torch\.inference_mode"):
        call(made_inside, x)


def test_a_jacobian_made_outside_is_not_used_inside_inference_mode() -> None:
    J = tt.jacobian(network(), torch.randn(4, 1, 3, 3))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        J.dense()


def test_an_output_without_any_parameter_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"None of the parameters \(0\.weight, .*\) influences the output"):
        tt.ntk(network(), torch.randn(4, 1, 3, 3), output=Tensor.detach)


def test_a_loss_that_is_a_sum_is_refused() -> None:
    model, x, y = network(), torch.randn(4, 1, 3, 3), torch.tensor([0, 1, 2, 0])
    H = tt.hessian(model, (x, y), lambda f, t: F.cross_entropy(f, t, reduction="sum"))
    with pytest.raises(ValueError, match="should be the mean over the samples"):
        H @ ones(model)


def test_a_misspelt_output_is_named() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"scores": self.body(x)}

    with pytest.raises(ValueError, match=r"keys 'scores'.* has no 'logit'"):
        tt.ntk(Named().eval(), torch.randn(4, 1, 3, 3), output="logit")


@pytest.mark.parametrize("use", [lambda J: J.dense(), lambda J: J @ torch.ones(27), lambda J: J.T @ torch.ones(4, 3)])
def test_a_change_of_what_is_not_differentiated_is_refused_too(use: Callable) -> None:
    model, x = network(), torch.randn(4, 1, 3, 3)
    J = tt.jacobian(model, x, params="4.*")
    use(J)
    model[0].weight.detach().mul_(2)
    with pytest.raises(RuntimeError, match="The model's parameters changed since"):
        use(J)


@pytest.mark.parametrize(
    "make",
    [
        lambda model, data: tt.hessian(model, data, F.cross_entropy) @ ones(model),
        lambda model, data: tt.fisher(model, data, tt.Implicit, kind="empirical") @ ones(model),
    ],
)
def test_targets_must_repeat_where_they_count(make: Callable) -> None:
    class Noisy:
        def __init__(self) -> None:
            self.times = 0

        def __iter__(self) -> Any:
            self.times += 1
            yield torch.ones(4, 1, 3, 3), torch.arange(self.times, self.times + 4) % 3

    with pytest.raises(ValueError, match=r"does not repeat \(batch 0 differs\)"):
        make(network(), Noisy())
    tt.fisher(network(), Noisy(), tt.Implicit) @ ones(network())  # exact: they are not looked at
