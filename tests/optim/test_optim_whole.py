"""What KFAC and EKFAC notice: gradients that no layer recorded, frozen parameters, states of other options."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import flat
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC, Adaptive

N, EPS, LR = 24, 0.03, 0.1  # enough samples: eigenvectors of eigenvalue zero would be anyone's choice
METHODS: dict[str, Callable[..., Any]] = {
    "ekfac": partial(EKFAC, kl_clip=None),
    "average": partial(EKFAC, scalings="average", kl_clip=None),
    "kfac": partial(KFAC, kl_clip=None),
}
MORE = "have a part that no layer recorded: a penalty in the loss"


def mlp() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
    nn.init.normal_(model[1].bias)  # zeros have no penalty
    return model


def data(n: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4).double(), torch.randint(0, 3, (n,))


def penalty(model: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in model.parameters()]).sum()


def step(model: nn.Module, opt: Any, x: Tensor, y: Tensor, weight: float = 0.0) -> None:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    (loss + weight * penalty(model) if weight else loss).backward()
    opt.step()


def said(opt: Any, model: nn.Module, x: Tensor, y: Tensor, weights: list[float]) -> list[int]:
    """The steps that warn of a part that was not recorded."""
    found = []
    for i, weight in enumerate(weights):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(model, opt, x, y, weight)
        found += [i for w in caught if MORE in str(w.message)]
    return found


@pytest.mark.parametrize("method", ["ekfac", "kfac"])
def test_a_penalty_in_the_loss_is_weight_decay_and_said(method: str) -> None:
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    opt, decayed = METHODS[method](model, LR, EPS), METHODS[method](other, LR, EPS, weight_decay=0.1)
    with pytest.warns(tt.TangentWarning, match=r"0.bias, .* \(6 of 6 parameters\) .*give weight_decay=2λ"):
        step(model, opt, x, y, 0.05)
    step(other, decayed, x, y)
    for _ in range(3):
        step(model, opt, x, y, 0.05)
        step(other, decayed, x, y)
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("weights", "steps"),
    [
        ([0.0] * 3 + [0.05] * 9, [5]),  # from step 3 on: the next renewal tells
        ([0.0] * 5 + [0.05] + [0.0] * 5, [5]),  # at a renewal only
        ([0.0] * 6 + [0.05] * 2 + [0.0] * 4, []),  # between two renewals
        ([0.05] * 12, [0]),  # once
        ([0.0] * 12, []),
    ],
)
def test_every_renewal_looks_for_parts_that_were_not_recorded(
    method: str, weights: list[float], steps: list[int]
) -> None:
    model, (x, y) = mlp(), data()
    opt = METHODS[method](model, LR, EPS, basis_every=5)
    assert said(opt, model, x, y, weights) == steps
    assert ("more than the recorded part" in opt.explain()) == bool(weights[10])


@pytest.mark.parametrize("sua", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2),
        lambda: nn.Linear(5, 6, bias=False),
    ],
    ids=["conv", "transposed", "linear"],
)
def test_a_penalty_on_a_weight_of_any_order_is_noticed(layer: Callable[[], nn.Module], sua: bool) -> None:
    first, x = layer().double(), torch.randn(N, 4, 5, 5).double()
    model = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(first(x).flatten(1).shape[1], 3).double())
    opt = EKFAC(model, LR, EPS, basis_every=1, sua=sua)
    y = torch.randint(0, 3, (N,))
    step(model, opt, x, y)  # a warning would be an error
    opt.zero_grad()
    (F.cross_entropy(model(x), y) + 0.01 * first.weight.square().sum()).backward()
    with pytest.warns(tt.TangentWarning, match=r"The gradients of 0.weight \(1 of \d parameters\) have a part"):
        opt.step()


def test_one_step_with_a_penalty_changes_nothing_later() -> None:
    """It was preconditioned, so the parameters are where those of weight decay are, and the block is there again."""
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    opt, decayed = EKFAC(model, LR, EPS, basis_every=3), EKFAC(other, LR, EPS, basis_every=3)
    decayed.param_groups[0]["weight_decay"] = 0.1
    assert said(opt, model, x, y, [0.05] + [0.0] * 4) == [0]
    step(other, decayed, x, y)
    decayed.param_groups[0]["weight_decay"] = 0.0
    assert said(decayed, other, x, y, [0.0] * 4) == []
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-9, atol=1e-11)
    assert opt.explain() == decayed.explain()


def test_gradient_penalties_leave_the_block() -> None:
    """Cotangents of the inner gradient are recorded, but are no part of the outer one."""
    model, (x, y) = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), data()
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS, kl_clip=None)
    x.requires_grad_()
    f = model(x)
    (slope,) = torch.autograd.grad(f.logsumexp(1).sum(), x, create_graph=True)
    (F.cross_entropy(f, y) + slope.square().sum()).backward()
    with pytest.warns(tt.TangentWarning) as caught:
        opt.step()
    assert all("from now on: the loss is made of gradients" in str(w.message) for w in caught)
    g = model[0].weight.grad
    torch.testing.assert_close(before[0].weight - model[0].weight, LR * g / (N * g.square() + EPS))


def test_views_are_counted_by_the_backward_pass() -> None:
    """A call that the loss does not use is no view."""
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, LR, EPS)
    model(x)
    step(model, opt, x, y)
    for expected in (1, 0):
        opt.zero_grad()
        (F.cross_entropy(model(x), y) + F.cross_entropy(model(x + 1), y)).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt.step()
        assert len(caught) == expected


def given(model: nn.Module) -> list[Any]:
    half = len(list(model.parameters())) // 2
    return [
        model.parameters(),
        [{"params": list(model.parameters())[:half]}, {"params": list(model.parameters())[half:]}],
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("frozen", [["0.weight", "0.bias"], ["0.bias"], ["3.weight"], ["1.weight"]])
def test_frozen_parameters_stand_still(method: str, which: int, frozen: list[str]) -> None:
    """As if the others alone had been given."""
    model, (x, y) = mlp(), data()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    other = copy.deepcopy(model)
    opt = METHODS[method](model, LR, EPS, params=given(model)[which], momentum=0.5)
    free = METHODS[method](other, LR, EPS, momentum=0.5)
    for _ in range(3):
        step(model, opt, x, y)
        step(other, free, x, y)
    assert torch.equal(flat(model), flat(other))
    assert f"{frozen[0]:8}  frozen" in opt.explain()


@pytest.mark.parametrize("method", METHODS)
def test_parameters_may_be_frozen_and_unfrozen(method: str) -> None:
    model, (x, y) = mlp(), data()
    opt = METHODS[method](model, LR, EPS, params=model.parameters(), basis_every=50)
    step(model, opt, x, y)
    before = copy.deepcopy(model)
    model[0].requires_grad_(False)
    step(model, opt, x, y)
    assert torch.equal(model[0].weight, before[0].weight)
    model[0].weight.requires_grad_(True)  # its block was one of weight and bias
    step(model, opt, x, y)
    assert not torch.equal(model[0].weight, before[0].weight)
    assert torch.equal(model[0].bias, before[0].bias)
    assert "0.bias    frozen" in opt.explain()
    model[0].requires_grad_(True)
    other = copy.deepcopy(model)
    step(model, opt, x, y)
    step(other, METHODS[method](other, LR, EPS), x, y)
    torch.testing.assert_close(model[0].weight, other[0].weight, rtol=1e-9, atol=1e-11)


def test_a_block_survives_being_frozen_for_a_while() -> None:
    model, (x, y) = mlp(), data()
    opt = KFAC(model, LR, EPS)
    step(model, opt, x, y)
    left = opt.state[model[3].weight]["left"]
    model[3].requires_grad_(False)
    step(model, opt, x, y)
    model[3].requires_grad_(True)
    step(model, opt, x, y)
    assert opt.state[model[3].weight]["left"] is left


def test_all_may_be_frozen() -> None:
    model, (x, _) = mlp(), data()
    opt = EKFAC(model, LR, EPS, params=model.parameters())
    model.requires_grad_(False)
    opt.zero_grad()
    model(x)
    before = flat(model)
    opt.step()
    assert torch.equal(flat(model), before)
    assert opt.explain().count("frozen") == 6


@pytest.mark.parametrize(
    ("saved", "now", "message"),
    [
        ({"damping_rule": "root"}, {}, "saved with damping_rule='root'; this EKFAC has damping_rule='single'"),
        ({}, {"scalings": "average"}, "saved with scalings='batch'; this EKFAC has scalings='average'"),
        ({"decay": 0.5, "rest": "plain"}, {}, "rest='plain', decay=0.5; this EKFAC has rest='block', decay=0.75"),
        ({}, {"basis_every": 7}, "basis_every=50; this EKFAC has basis_every=7"),
        ({}, {"sua": True}, "sua=False; this EKFAC has sua=True"),
        ({"decoupled": True}, {}, "decoupled=True; this EKFAC has decoupled=False"),
        ({"kl_clip": 0.1}, {}, "kl_clip=0.1; this EKFAC has kl_clip=0.001"),
        ({"damping": Adaptive(0.1)}, {}, r"adaptive damping=\{'factor': 0.95, 'every': 5\}; this EKFAC has .*=None"),
    ],
)
def test_a_state_of_other_options_is_refused(saved: dict[str, Any], now: dict[str, Any], message: str) -> None:
    model = mlp()
    state = EKFAC(model, **{"lr": LR, "damping": EPS, **saved}).state_dict()
    with pytest.raises(ValueError, match=message):
        EKFAC(model, **{"lr": LR, "damping": EPS, **now}).load_state_dict(state)


def test_a_state_of_other_blocks_is_refused() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, LR, EPS, params=model.parameters())
    step(model, opt, x, y)
    other = mlp()
    other[0].bias.requires_grad_(False)
    again = EKFAC(other, LR, EPS, params=other.parameters())
    with pytest.raises(ValueError, match=r"saved with a block of 0.weight, 0.bias; here it is one of 0.weight\."):
        again.load_state_dict(opt.state_dict())
    other[0].bias.requires_grad_(True)
    again.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("make", [EKFAC, KFAC])
def test_options_are_named(make: Any) -> None:
    options = ["params", "momentum", "weight_decay", "basis_every", "sua", "rest", "loss", "curvature", "likelihood"]
    for name in [*options, "decoupled", "kl_clip", "scaler", "seed", "damping_rule", "damping", "lr", "model"]:
        assert f"\n        {name}: " in make.__doc__
    with pytest.raises(TypeError, match=rf"{make.__name__} has no option 'foo'. .*params, momentum, .*seed"):
        make(mlp(), LR, EPS, foo=3)


def test_options_of_all_are_none_of_a_group() -> None:
    model = mlp()
    opt = EKFAC(model, LR, EPS, params="0.*")
    for name in ("basis_every", "damping_rule"):
        with pytest.raises(ValueError, match=f"{name} holds for all parameters"):
            opt.add_param_group({"params": [model[1].weight], name: 3})
    assert len(opt.param_groups) == 1


def test_parameters_without_rules_are_said_once() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.first(x)[0].mean(1))

    model, x, y = Recurrent().double(), torch.randn(N, 5, 4).double(), torch.randint(0, 3, (N,))
    with pytest.warns(tt.TangentWarning) as caught:
        opt = EKFAC(model, LR, EPS)
    assert len(caught) == 1
    assert "first.bias_hh_l0 (GRU): 4 of 6 parameters get the diagonal" in str(caught[0].message)
    model.head.requires_grad_(False)
    step(model, opt, x, y)
    step(model, opt, x, y)
    assert "first.weight_ih_l0  diagonal from mean gradients (no rule for GRU)" in opt.explain()


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(4, 3), (4,)), (nn.Linear(4, 4), (4,)), (nn.LayerNorm(4), (4,))]
)
def test_inputs_without_samples_are_said(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer = copy.deepcopy(layer).double()
    before = flat(layer)
    opt = EKFAC(layer, LR, EPS, kl_clip=None)
    layer(torch.randn(*shape).double()).square().sum().backward()
    with pytest.warns(tt.TangentWarning) as caught:
        opt.step()
    for w in caught:
        assert "from now on: its layer: " in str(w.message)
        assert "sample axis" in str(w.message)
    g = torch.cat([p.grad.flatten() for p in layer.parameters()])
    torch.testing.assert_close(before - flat(layer), LR * g / (4 * g.square() + EPS))


def test_a_state_knows_the_blocks_of_frozen_layers() -> None:
    """Saved while a layer is frozen, and unfrozen in part later."""
    model, (x, y) = mlp(), data()
    opt = KFAC(model, LR, EPS, params=model.parameters())
    step(model, opt, x, y)
    model[0].requires_grad_(False)
    step(model, opt, x, y)
    other = copy.deepcopy(model)
    again = KFAC(other, LR, EPS, params=other.parameters())
    again.load_state_dict(opt.state_dict())
    for net, resumed in ((model, opt), (other, again)):
        net[0].weight.requires_grad_(True)
        step(net, resumed, x, y)
    assert torch.equal(flat(model), flat(other))


def test_a_closed_optimizer_puts_no_hooks_back() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    opt = EKFAC(model, 0.1, 0.1, params=model[0].parameters())
    opt.close()
    opt.add_param_group({"params": list(model[1].parameters())})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
