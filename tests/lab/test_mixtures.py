"""Labels are drawn, samples mixed and patches placed as asked, in exact numbers."""

from __future__ import annotations

import pytest
import torch

from torchtangent.lab import data
from torchtangent.lab.data import Dataset


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def counted(n: int, start: int, side: int = 2) -> Dataset:
    """Images that are their own numbers, counted from `start`."""
    x = (start + torch.arange(n)).float().view(n, 1, 1, 1).expand(n, 1, side, side)
    return Dataset(x, torch.arange(n) % 10, x[:0], torch.arange(0), {})


def test_different_labels() -> None:
    y = torch.arange(3000) % 10
    labels, drawn = data.noisy_labels(y, 0.15, classes=10, generator=generator())
    assert int(drawn.sum()) == 450
    assert torch.equal(labels != y, drawn)
    shifts = ((labels - y) % 10)[drawn].bincount(minlength=10)
    assert shifts[0] == 0
    assert int(shifts[1:].min()) > 25  # 50 of each are expected, with a deviation of 7
    again, _ = data.noisy_labels(y, 0.15, classes=10, generator=generator())
    assert torch.equal(labels, again)


def test_labels_among_all_classes() -> None:
    y = torch.full((3000,), 7)
    labels, drawn = data.noisy_labels(y, 0.5, classes=10, generator=generator(), different=False)
    assert int(drawn.sum()) == 1500
    assert torch.equal(labels[~drawn], y[~drawn])
    counts = labels[drawn].bincount(minlength=10)
    assert int(counts.min()) > 100  # 150 of each are expected, the true one among them, with a deviation of 12


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_no_such_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"fraction={fraction} is not between 0 and 1"):
        data.noisy_labels(torch.zeros(3).long(), fraction, classes=2, generator=generator())


def test_difficult_samples_with_random_labels() -> None:
    easy = counted(1500, 0)
    mixture = data.difficult(easy, None, easy_count=500, difficult_count=900, generator=generator())
    assert mixture.difficult.tolist() == [False] * 500 + [True] * 900
    number = mixture.x[:, 0, 0, 0].long()
    assert len(set(number.tolist())) == 1400  # none twice
    right = mixture.y == number % 10
    assert right[:500].all()
    assert 50 < int(right[500:].sum()) < 130  # a tenth is expected, with a deviation of 9
    assert int(mixture.y[500:].bincount(minlength=10).min()) > 50


def test_difficult_samples_of_another_set() -> None:
    easy, other = counted(30, 0), counted(20, 100)
    mixture = data.difficult(easy, other, easy_count=12, difficult_count=20, generator=generator())
    number = mixture.x[:, 0, 0, 0].long()
    assert torch.equal(number >= 100, mixture.difficult)
    assert sorted(number[12:].tolist()) == list(range(100, 120))
    assert torch.equal(mixture.y, number % 10)
    assert len(set(number.tolist())) == 32
    assert torch.equal(easy.y_train, torch.arange(30) % 10)  # left as it was


def test_mixtures_that_cannot_be() -> None:
    easy, other = counted(30, 0), counted(20, 100, side=3)
    with pytest.raises(ValueError, match="31 samples are wanted of `easy`, which has 30"):
        data.difficult(easy, None, easy_count=11, difficult_count=20, generator=generator())
    with pytest.raises(ValueError, match="21 samples are wanted of `other`, which has 20"):
        data.difficult(easy, counted(20, 0), easy_count=11, difficult_count=21, generator=generator())
    with pytest.raises(ValueError, match=r"\(1, 2, 2\) and \(1, 3, 3\) cannot be mixed"):
        data.difficult(easy, other, easy_count=1, difficult_count=1, generator=generator())


def test_a_patch_that_agrees_with_the_label() -> None:
    x = torch.rand(400, 3, 16, 16) / 2
    x[0, 0, 8, 8] = 0.75  # the brightest
    y = (torch.arange(400) % 4 == 0).long()
    groups = data.spurious(x, y, generator=generator())
    assert groups.group.bincount().tolist() == [285, 15, 5, 95]  # 95 % of 300, and of 100
    assert torch.equal(groups.group, 2 * y + groups.spurious)
    assert torch.equal(groups.y, y)
    left, right = groups.x[..., :2, :2], groups.x[..., :2, -2:]
    assert torch.equal((left == 0.75).flatten(1).all(1), groups.spurious == 1)
    assert torch.equal((right == 0.75).flatten(1).all(1), groups.spurious == 0)
    changed = (groups.x != x).any(1)
    assert int(changed.flatten(1).sum(1).max()) <= 4  # nothing but a patch of 2×2
    assert float(x[:, :, :2, :2].max()) <= 0.5  # the images given are left alone


def test_a_patch_that_says_nothing() -> None:
    groups = data.spurious(torch.rand(40, 1, 28, 28), torch.arange(40) % 2, agree=0.5, generator=generator())
    assert groups.group.bincount().tolist() == [10, 10, 10, 10]


def test_no_such_patch() -> None:
    x = torch.rand(3, 1, 8, 8)
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        data.spurious(x, torch.arange(3), generator=generator())
    with pytest.raises(ValueError, match="agree=95 is not between 0 and 1"):
        data.spurious(x, torch.zeros(3).long(), agree=95, generator=generator())
