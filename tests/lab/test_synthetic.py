"""Drawn data follow their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchtangent.lab.data import synthetic


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def yin_yang_label(a: float, b: float) -> int:
    below = b <= 0
    for centre in ((0.5, -0.5), (-0.5, 0.5)):
        if np.hypot(a - centre[0], b - centre[1]) <= 0.3:
            below = not below
    return 1 if below else -1


def test_yin_yang() -> None:
    x, y = synthetic.yin_yang(2000, generator())
    assert y.tolist() == [yin_yang_label(a, b) for a, b in x.double().tolist()]
    assert float(x.abs().max()) <= 1
    assert float(x.var(0).mean()) == pytest.approx(1 / 3, rel=0.05)  # uniform on [−1, 1]
    disks = synthetic.in_disks(x)
    assert disks.tolist() == [
        min(np.hypot(a - 0.5, b + 0.5), np.hypot(a + 0.5, b - 0.5)) <= 0.3 for a, b in x.double().tolist()
    ]
    assert torch.equal(x, synthetic.yin_yang(2000, generator())[0])


def test_yin_yang_on_a_grid() -> None:
    x, y = synthetic.yin_yang_grid(20)
    assert y.tolist() == [yin_yang_label(a, b) for a, b in x.tolist()]
    axis = torch.linspace(-1, 1, 20)
    across, up = x.view(20, 20, 2).unbind(2)
    assert torch.equal(across, axis.expand(20, 20))
    assert torch.equal(up, axis[:, None].expand(20, 20))


def test_disk() -> None:
    x, y = synthetic.disk(500, generator())
    assert y.tolist() == [1 if np.hypot(a, b) <= (2 / np.pi) ** 0.5 else -1 for a, b in x.tolist()]
    x, y = synthetic.disk_grid(201)
    assert x.shape == (201**2, 2)
    assert abs(float(y.mean())) < 0.02  # balanced


def test_random_features_approximate_their_kernel() -> None:
    x, features = synthetic.rbf_features(30, 20_000, extent=2.0, gamma=0.7, seed=0)
    assert features.dtype == torch.float64
    torch.testing.assert_close(x, torch.linspace(-2, 2, 30, dtype=torch.float64))
    kernel = (-0.7 * (x[:, None] - x).square()).exp()
    torch.testing.assert_close(features @ features.T, kernel, rtol=0, atol=0.04)
    again = synthetic.rbf_features(30, 20_000, extent=2.0, gamma=0.7, seed=0)[1]
    assert torch.equal(features, again)


def test_noise_that_can_be_fitted() -> None:
    """Both readings from one ε: ΨΨᵀ(Pε) = ΨΨᵀε."""
    n, d = 50, 10
    features, y, test, clean = synthetic.noisy_regression(n, d, 0.1, generator())
    assert features.shape == test.shape == (n, 1 + d)
    psi = features[:, 1:]
    noise = y - features[:, 0]
    assert float(noise.norm()) > 0
    weights = torch.linalg.lstsq(psi, noise[:, None]).solution
    torch.testing.assert_close(psi @ weights, noise[:, None])  # within the span of Ψ
    same, printed, *_ = synthetic.noisy_regression(n, d, 0.1, generator(), projector="printed")
    assert torch.equal(same, features)
    torch.testing.assert_close(printed - features[:, 0], psi @ (psi.T @ noise))
    assert torch.equal(clean, test[:, 0])
    assert not torch.equal(test, features)


def test_the_sizes_of_features_and_noise() -> None:
    """φ has variance 1, Ψ 1/d, and E‖Pε‖² = dσ²."""
    draws = [synthetic.noisy_regression(50, 10, 0.1, generator(seed)) for seed in range(300)]
    features = torch.stack([draw[0] for draw in draws])
    assert float(features[..., 0].var()) == pytest.approx(1, rel=0.05)
    assert float(features[..., 1:].var()) == pytest.approx(0.1, rel=0.05)
    noise = torch.stack([draw[1] for draw in draws]) - features[..., 0]
    assert float(noise.square().sum(1).mean()) == pytest.approx(10 * 0.1, rel=0.1)


def test_an_unknown_projector() -> None:
    with pytest.raises(ValueError, match="'gram' is none of 'orthogonal', 'printed'"):
        synthetic.noisy_regression(5, 2, 0.1, generator(), projector="gram")  # type: ignore[arg-type]
