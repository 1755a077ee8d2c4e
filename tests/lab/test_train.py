"""Training learns, repeats itself, and takes torch's own steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab import data
from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.train import Descent, accuracy, batches, deterministic, epochs


def network() -> nn.Module:
    return seeded(lambda: mlp([5, 4, 3], nn.Tanh), 0).double()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_descent_is_torchs_sgd(momentum: float, weight_decay: float) -> None:
    ours, theirs = network(), network()
    ours[1].bias.requires_grad_(False)
    theirs[1].bias.requires_grad_(False)
    descent = Descent(ours, F.cross_entropy, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for step in range(6):
        if step == 3:
            descent.lr = optimizer.param_groups[0]["lr"] = 0.03
        x, y = torch.randn(7, 5, dtype=torch.float64), torch.randint(3, (7,))
        optimizer.zero_grad()
        expected = F.cross_entropy(theirs(x), y)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(descent(x, y), expected.detach(), rtol=1e-12, atol=0)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    assert descent.lr == 0.03


def test_descent_passes_the_rest_to_the_loss() -> None:
    """The scaled network of the lazy regime: its outputs at the start are subtracted."""

    def loss(f: Tensor, y: Tensor, f0: Tensor) -> Tensor:
        return F.mse_loss(10 * (f - f0), y)

    model = network()
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    f0 = model(x).detach()
    descent = Descent(model, loss, lr=1e-4)
    first = descent(x, y, f0)
    torch.testing.assert_close(first, y.square().mean())
    second = descent(x, y, f0)
    assert second < first
    assert not first.requires_grad
    assert first == y.square().mean()  # a value of its own, not the next step's


def test_descent_updates_running_statistics() -> None:
    model = mlp([5, 4, 3], norm=True)
    Descent(model, F.cross_entropy, lr=0.1)(torch.randn(8, 5), torch.randint(3, (8,)))
    assert model[2].num_batches_tracked == 1


def test_steps_of_other_shapes_are_refused() -> None:
    descent = Descent(network(), F.cross_entropy, lr=0.1)
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randint(3, (7,))
    descent(x, y)
    with pytest.raises(ValueError, match=r"shapes \(3, 5\), \(3,\) after one on \(7, 5\), \(7,\).*incomplete batch"):
        descent(x[:3], y[:3])


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Descent(nn.ReLU(), F.cross_entropy, lr=0.1)


def test_batches_of_an_epoch() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.stack(list(batches(11, 3, generator))) for _ in range(2))
    assert first.shape == (3, 3)
    assert len(set(first.flatten().tolist())) == 9
    assert set(first.flatten().tolist()) <= set(range(11))
    assert not torch.equal(first, second)
    again = torch.stack(list(batches(11, 3, torch.Generator().manual_seed(0), "cpu")))
    assert torch.equal(first, again)
    with pytest.raises(ValueError, match="3 samples do not fill a batch of 8"):
        batches(3, 8, generator)


def test_training_learns_and_repeats_itself() -> None:
    digits = data.load("digits")
    x, y = digits.x_train[:300], digits.y_train[:300]

    def train() -> tuple[nn.Module, list[float]]:
        model = seeded(lambda: mlp([784, 32, 10]), 0)
        losses = [loss for _, loss in epochs(model, x, y, count=5, lr=0.05, batch=32, seed=1)]
        return model, losses

    (model, losses), (_, again) = train(), train()
    assert losses == again
    assert losses[-1] < losses[0] / 2
    assert accuracy(model, x, y) > 0.9


def test_an_epochs_step_is_torchs_sgd() -> None:
    x, y = torch.randn(12, 5), torch.randint(3, (12,))
    ours, theirs = (seeded(lambda: mlp([5, 4, 3]), 0) for _ in range(2))
    list(epochs(ours, x, y, count=3, lr=0.1, batch=12, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_deterministic_holds_inside_and_leaves_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    @deterministic()
    def fails() -> None:
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (False, True)
