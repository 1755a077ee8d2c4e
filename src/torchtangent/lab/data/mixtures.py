"""Sets made of others: with random labels, with difficult samples, with an attribute that agrees with the label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from torchtangent.lab.data.official import Dataset


@dataclass(frozen=True)
class Mixture:
    """Easy samples, then difficult ones."""

    x: Float[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    difficult: Bool[Tensor, " n"]


@dataclass(frozen=True)
class Groups:
    """Images with binary labels and a binary attribute."""

    x: Float[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    spurious: Int[Tensor, " n"]

    @property
    def group(self) -> Int[Tensor, " n"]:
        """2·label + attribute: 0 to 3."""
        return 2 * self.y + self.spurious


def noisy_labels(
    y: Int[Tensor, " n"], fraction: float, *, classes: int, generator: torch.Generator, different: bool = True
) -> tuple[Int[Tensor, " n"], Bool[Tensor, " n"]]:
    """Labels of which a fraction is drawn anew.

    Args:
        y: The true ones.
        fraction: Of the samples; rounded to a whole number of them.
        classes: How many there are.
        generator: Draws the samples and their labels.
        different: Whether a label is drawn among the other classes, or among all, so that it may be the true one.

    Returns:
        The labels, and which samples had theirs drawn.

    >>> y, drawn = noisy_labels(torch.zeros(8, dtype=int), 0.25, classes=2, generator=torch.Generator().manual_seed(0))
    >>> y.sum().item(), drawn.sum().item()
    (2, 2)
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction} is not between 0 and 1.")
    count, device = round(fraction * len(y)), generator.device
    chosen = torch.randperm(len(y), generator=generator, device=device)[:count].to(y.device)
    shift = torch.randint(int(different), classes, (count,), generator=generator, device=device).to(y.device)
    labels, drawn = y.clone(), torch.zeros_like(y, dtype=torch.bool)
    labels[chosen] = (y[chosen] + shift) % classes
    drawn[chosen] = True
    return labels, drawn


def difficult(
    easy: Dataset, other: Dataset | None, *, easy_count: int, difficult_count: int, generator: torch.Generator
) -> Mixture:
    """Training samples of one set, and difficult ones: of another set, or of the same with random labels.

    Args:
        easy: The first set.
        other: The set of the difficult samples, with their own labels; if None, they are further samples of the first
            set, with labels drawn uniformly from its classes.
        easy_count: So many easy samples.
        difficult_count: So many difficult ones.
        generator: Draws the samples, without replacement, and the labels.
    """
    chosen = _draw("easy", easy, easy_count + (0 if other else difficult_count), generator)
    x, y = easy.x_train[chosen], easy.y_train[chosen]
    if other is None:
        classes = int(easy.y_train.max()) + 1
        y[easy_count:] = noisy_labels(y[easy_count:], 1.0, classes=classes, generator=generator, different=False)[0]
    else:
        if easy.x_train.shape[1:] != other.x_train.shape[1:]:
            shapes = " and ".join(str(tuple(part.x_train.shape[1:])) for part in (easy, other))
            raise ValueError(f"Images of shapes {shapes} cannot be mixed.")
        chosen = _draw("other", other, difficult_count, generator)
        x, y = torch.cat([x, other.x_train[chosen]]), torch.cat([y, other.y_train[chosen]])
    return Mixture(x, y, torch.arange(len(y), device=y.device) >= easy_count)


def spurious(
    x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], *, agree: float = 0.95, generator: torch.Generator
) -> Groups:
    """Images with a bright patch in the upper left corner (attribute 1) or the upper right one (attribute 0).

    Args:
        x: Images; the patch is as bright as their brightest pixel, its side an eighth of theirs.
        y: Labels 0 and 1.
        agree: The fraction of each label's samples, rounded to a whole number of them, whose attribute is the label.
        generator: Draws which.

    >>> x, y = torch.zeros(40, 1, 8, 8), torch.arange(40) % 2
    >>> spurious(x, y, generator=torch.Generator().manual_seed(0)).group.bincount()
    tensor([19,  1,  1, 19])
    """
    if not ((y == 0) | (y == 1)).all():
        raise ValueError("A label is neither 0 nor 1: make them binary first, as in (y >= 5).long().")
    if not 0 <= agree <= 1:
        raise ValueError(f"agree={agree} is not between 0 and 1.")
    attribute = y.clone()
    for label in (0, 1):
        samples = (y == label).nonzero().squeeze(1)
        order = torch.randperm(len(samples), generator=generator, device=generator.device).to(y.device)
        attribute[samples[order[round(agree * len(samples)) :]]] = 1 - label
    side = max(1, x.shape[-1] // 8)
    marked = x.clone()
    marked[attribute == 1, :, :side, :side] = x.max()
    marked[attribute == 0, :, :side, -side:] = x.max()
    return Groups(marked, y, attribute)


def _draw(name: str, source: Dataset, count: int, generator: torch.Generator) -> Int[Tensor, " count"]:
    if count > len(source.y_train):
        raise ValueError(f"{count} samples are wanted of `{name}`, which has {len(source.y_train)} to train on.")
    order = torch.randperm(len(source.y_train), generator=generator, device=generator.device)
    return order[:count].to(source.y_train.device)
