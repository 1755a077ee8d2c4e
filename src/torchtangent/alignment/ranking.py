"""`rank_tasks`: which of several tasks a network will learn best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.alignment.labels import Targets, as_targets
from torchtangent.alignment.rkhs import pulled_squares
from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.select import Params
from torchtangent.kernel.columns import batches, square_sum
from torchtangent.kernel.samples import Samples
from torchtangent.kernel.targets import numbers
from torchtangent.notice import warn
from torchtangent.operators.symmetric import eigh


class Task(NamedTuple):
    """One line of a ranking.

    Attributes:
        name: The name of the task.
        score: (gᵀKg / gᵀg) / tr K, between 0 and 1: α(g) / (‖g‖₂² E‖∇f‖²).
        alignment: α(g) = gᵀKg / N².
        bound: ‖g‖₂⁴ / α(g), a lower bound on the squared RKHS norm of g (Lemma 1).
    """

    name: str | int
    score: float
    alignment: float
    bound: float


@final
@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Tasks in the order of their scores, the highest first. Made by `rank_tasks`; `ranking["name"]` is one of them.

    Attributes:
        tasks: The tasks and their numbers.
        random: The mean score of the same tasks over all shuffles of their labels among the samples. A score that is
            not well above it is no better than that of random labels. NaN if it is lost in rounding.
    """

    tasks: tuple[Task, ...]
    random: float

    @property
    def names(self) -> list[str | int]:
        """The names of the tasks, the best first."""
        return [task.name for task in self.tasks]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, name: str | int) -> Task:
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(f"There is no task {name!r}; the tasks are {', '.join(map(repr, self.names))}.")

    def __repr__(self) -> str:
        width = max(len("random"), *(len(str(name)) for name in self.names))
        lines = [f"{'':>4} {'task':{width}} {'score':>9} {'alignment':>10} {'norm² ≥':>10}"]
        for place, (name, score, alignment, bound) in enumerate(self.tasks, 1):
            lines.append(f"{place:>4} {name!s:{width}} {score:>9.3g} {alignment:>10.3g} {bound:>10.3g}")
        return "\n".join([*lines, f"{'':>4} {'random':{width}} {self.random:>9.3g}"])


def rank_tasks(
    model: nn.Module,
    x: Any,
    targets: Mapping[str, Any] | Sequence[Any] | Targets,
    *,
    params: Params = None,
    output: Output = None,
) -> Ranking:
    """Rank tasks by how well a network should learn them, before it is trained on any.

    The score of a task is the fraction of the kernel in its direction, (gᵀKg / gᵀg) / tr K, for labels g with their
    mean removed: α(g) relative to ‖g‖₂² and to E‖∇f‖². By Lemma 1, a high alignment allows a low RKHS norm, so the task
    is easier for the linearized network; in the study below, networks themselves learned such tasks faster and to a
    higher test accuracy, too. No kernel is formed (see `target`), and hundreds of tasks are ranked at once.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        targets: A dict from names to labels (N,). With one output: two classes in any coding, read as −1 and 1, or
            floating-point numbers. With C outputs: integer classes 0 … C − 1, or numbers (N, C). With outputs
            (N, T, C): the same for each of T positions, (N, T) or (N, T, C). Instead of a dict, a list of labels, or a
            tensor with the tasks along its last axis: they are then named 0, 1, ….
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result to use.

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, What can linearized neural networks actually say about
        generalization?, 2021, Lemma 1 and section 3.

    >>> x = torch.tensor([[3.0, 0.0], [-3.0, 1.0], [3.0, 1.0], [-3.0, 0.0]])
    >>> print(rank_tasks(nn.Linear(2, 1), x, {"second": x[:, 1] > 0, "first": x[:, 0] > 0}))
           task       score  alignment    norm² ≥
         1 first      0.857          9      0.111
         2 second    0.0238       0.25          4
           random     0.294
    """
    capture = Capture(model, params, output)
    samples = Samples(x, capture.device)
    with samples.explaining():
        capture.check(samples.few())
    N, labels = len(samples), _named(targets)
    shape = (N, *capture.output_shape)
    g = torch.stack([_centred(name, y.to(capture.device), shape) for name, y in labels.items()], -1)  # (N, C, tasks)
    squares = g.square().sum((0, 1))
    mix = _root_of_covariance(g / squares.sqrt())
    dtype = capture.wide_dtype
    forms = pulled_squares(capture, samples, g.to(dtype)).double()
    means = pulled_squares(capture, samples, mix.to(dtype).expand(N, -1, -1)).double()
    trace, mixed = _square_sums(capture, samples, mix)
    if trace == 0:
        raise ValueError("The network's gradient is zero at every sample: no task is aligned with it.")
    if not math.isfinite(trace + float(forms.sum())):
        raise ValueError(f"Squares of the network's gradients leave the range of {dtype}. Pass model.double().")
    numbers = torch.stack([forms / squares / trace, forms / N**2, squares.square() / forms], 1).tolist()
    found = [Task(name, *row) for name, row in zip(labels, numbers, strict=True)]
    # E[g_n g_mᵀ] over all shuffles is GᵀG (δ_nm − 1/N) / (N − 1).
    random = (mixed - float(means.sum()) / N) / (N - 1) / trace
    if random * (N - 1) * trace <= 100 * torch.finfo(dtype).eps * mixed:
        random = math.nan
        warn("The gradients of all samples are the same but for rounding, and `random` is NaN. Pass model.double().")
    return Ranking(tuple(sorted(found, key=lambda task: -task.score)), random)


def _named(targets: Mapping[str, Any] | Sequence[Any] | Targets) -> dict[str | int, Tensor]:
    """The labels of each task, by its name or number."""
    labels: dict[str | int, Tensor]
    if isinstance(targets, Mapping):
        labels = {name: numbers(y, f"Task {name!r}") for name, y in targets.items()}
    elif isinstance(targets, Sequence):
        labels = {name: numbers(y, f"Task {name}") for name, y in enumerate(targets)}
    else:
        table = numbers(targets, "targets")
        if table.dim() < 2:
            raise ValueError(
                f"targets has shape {tuple(table.shape)}; a tensor of targets has an axis of tasks, as (N, K). "
                "Pass a dict, {'name': labels}, to name them."
            )
        labels = dict(enumerate(table.unbind(-1)))
    if not labels:
        raise ValueError("There are no targets to rank.")
    return labels


def _centred(name: str | int, y: Tensor, shape: tuple[int, ...]) -> Float[Tensor, "N C"]:
    """Labels as targets, with the mean of each output removed; two classes for one output become −1 and 1."""
    if shape[-1] > 2 and tuple(y.shape) == shape[:-1] and not y.is_floating_point() and y.max() <= 1:
        warn(
            f"Task {name!r} has two classes and the model {shape[-1]} outputs: they are read as the outputs of these "
            "numbers. For a binary task take one output, output=lambda f: f[:, 0].",
        )
    g = as_targets(y, shape, f"Task {name!r}").double()
    values = g.unique()
    if shape[-1] == 1 and len(values) == 2:
        g = torch.where(g == values[1], 1.0, -1.0).double()
    return g - g.mean(0)


def _root_of_covariance(g: Float[Tensor, "N C K"]) -> Float[Tensor, "C C"]:
    """L with LLᵀ = GᵀG, averaged over targets."""
    values, vectors = eigh(torch.einsum("nck,nek->ce", g, g) / g.shape[2])
    return vectors * values.clamp(min=0).sqrt()


def _square_sums(capture: Capture, samples: Samples, mix: Float[Tensor, "C R"]) -> tuple[float, float]:
    """tr K = Σ_nc ‖J_nc‖², and the same for mixtures of outputs, Σ_nr ‖Σ_c mix[c,r] J_nc‖²."""
    total = mixed = 0.0
    with float32_products():
        for _, x in batches(capture, samples):
            trace = capture.trace(x)
            units = trace.units()
            total += square_sum(trace.pull(units))
            mixed += square_sum(trace.pull(torch.tensordot(mix.T.to(units), units, 1)))
    return total, mixed
