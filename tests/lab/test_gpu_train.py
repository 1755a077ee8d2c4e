"""Steps that are replayed on a GPU go where torch.optim.SGD goes on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchtangent.lab.ensemble import Ensemble, Training, copies
from torchtangent.lab.models import mlp, resnet18, seeded
from torchtangent.lab.train import Descent, batches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("norm", [False, True])
def test_descent(norm: bool) -> None:
    theirs = seeded(lambda: resnet18(base=4, outputs=3, norm=norm), 0).double()
    ours = copy.deepcopy(theirs).cuda()
    descent = Descent(ours, F.cross_entropy, lr=0.02, momentum=0.9, weight_decay=1e-3)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    x, y = torch.randn(40, 3, 16, 16, dtype=torch.float64), torch.randint(3, (40,))
    for step, index in enumerate(batches(40, 8, torch.Generator().manual_seed(0))):
        if step == 3:
            descent.lr = optimizer.param_groups[0]["lr"] = 0.01
        found = descent(x[index].cuda(), y[index].cuda())
        assert found.is_cuda
        optimizer.zero_grad()
        loss = F.cross_entropy(theirs(x[index]), y[index])
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(found.cpu(), loss.detach(), rtol=1e-8, atol=1e-10)
    for (name, p), q in zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-7, atol=1e-9, msg=name)


def test_the_model_may_be_evaluated_between_steps() -> None:
    model = nn.Linear(4, 2).cuda()
    descent = Descent(model, F.cross_entropy, lr=0.5)
    x, y = torch.randn(16, 4).cuda(), torch.randint(2, (16,)).cuda()
    for _ in range(4):
        with torch.no_grad():
            before = F.cross_entropy(model(x), y)
        torch.testing.assert_close(descent(x, y), before)


def test_an_ensemble() -> None:
    """Every copy on the GPU as on the CPU, over more than one epoch of replayed steps."""
    models = [seeded(lambda: mlp([6, 5, 1]), s).double() for s in range(3)]
    x, y = torch.randn(20, 6, dtype=torch.float64), torch.randint(2, (3, 20)).double()
    outputs = []
    for device in ("cpu", "cuda"):
        weights = {name: w.to(device) for name, w in copies(models).items()}
        ensemble = Ensemble(mlp([6, 5, 1]).double().to(device), weights)
        ensemble.train(x.to(device), y.to(device), Training(epochs=3, batch=6, lr=0.1))
        outputs.append(ensemble.outputs(x.to(device)).cpu())
    torch.testing.assert_close(*outputs, rtol=1e-8, atol=1e-10)
