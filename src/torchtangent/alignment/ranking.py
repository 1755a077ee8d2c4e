"""Which of these tasks will be learned best: `rank_tasks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.alignment.columns import Targets, one_hot
from torchtangent.alignment.rkhs import pulled_squares
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.select import Params
from torchtangent.kernel.columns import batches, layers_of, square_sum
from torchtangent.kernel.samples import Samples


class Task(NamedTuple):
    """One line of a ranking.

    Attributes:
        name: As it was given.
        score: (gᵀKg / gᵀg) / tr K, between 0 and 1: α(g) / (‖g‖₂² E‖∇f‖²).
        alignment: α(g) = gᵀKg / N².
        bound: ‖g‖₂⁴ / α(g), which the squared RKHS norm of g is not below (Lemma 1).
    """

    name: str | int
    score: float
    alignment: float
    bound: float


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Tasks, the one with the highest score first. Made by `rank_tasks`; `ranking["name"]` is one of them.

    Attributes:
        tasks: The tasks with their numbers.
        random: The score of a random target, on average: what is not well above it is no better than random labels.
    """

    tasks: tuple[Task, ...]
    random: float

    @property
    def names(self) -> list[str | int]:
        """Best first."""
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

    def __str__(self) -> str:
        width = max(len("random"), *(len(str(name)) for name in self.names))
        lines = [f"{'':>4} {'task':{width}} {'score':>9} {'alignment':>10} {'norm² ≥':>10}"]
        for place, (name, score, alignment, bound) in enumerate(self.tasks, 1):
            lines.append(f"{place:>4} {name!s:{width}} {score:>9.3g} {alignment:>10.3g} {bound:>10.3g}")
        return "\n".join([*lines, f"{'':>4} {'random':{width}} {self.random:>9.3g}"])


def rank_tasks(
    model: nn.Module,
    x: Any,
    targets: Mapping[str, Targets] | Targets,
    *,
    params: Params = None,
    output: Output = None,
) -> Ranking:
    """Tasks in the order in which the network should learn them best, before it is trained on any.

    A task's score is how much of the kernel lies in its direction, (gᵀKg / gᵀg) / tr K, for labels g with their mean
    removed: α(g) relative to ‖g‖₂² and to E‖∇f‖². By Lemma 1 a high alignment is a low bound on the RKHS norm: for the
    linearized network the task is easier, and in the study networks, too, learned such tasks faster and to a higher
    test accuracy. No kernel is formed (see `target`), and hundreds of tasks are ranked at once.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        targets: Labels (N,) by name. For a network with one output: two classes in any coding, read as −1 and 1, or
            floating-point numbers. With C outputs: integer classes 0 … C − 1, or numbers (N, C). Or a tensor whose
            last axis counts the tasks, which are then named 0, 1, ….
        params: Which parameters, by name pattern or predicate; all trainable ones by default.
        output: Which tensor of the model's result.

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
    p = next(iter(capture.params.values()))
    samples = Samples(x, p.device)
    capture.check(samples.batch(0, min(2, len(samples))))
    N, C = len(samples), capture.output_shape.numel()
    tasks = {name: _centred(name, y.to(p.device), N, C) for name, y in _named(targets).items()}
    ones = torch.eye(C, device=p.device).repeat(N, 1)  # for the part of the kernel that no centred target sees
    U = torch.cat([torch.stack([g.flatten() for g in tasks.values()], 1), ones], 1)
    U = U.to(torch.promote_types(p.dtype, torch.float32))
    forms = pulled_squares(capture, samples, U).double()
    squares = U.double().square().sum(0)
    trace = sum(square_sum(layers_of(capture, part)) for _, part in batches(capture, samples))
    if trace == 0:
        raise ValueError("The network's gradient is zero at every sample: no task is aligned with it.")
    scores = forms / squares / trace
    random = float(1 - scores[-C:].sum()) / (C * (N - 1))
    numbers = torch.stack([scores, forms / N**2, squares.square() / forms], 1)[:-C].tolist()
    found = [Task(name, *row) for name, row in zip(tasks, numbers, strict=True)]
    return Ranking(tuple(sorted(found, key=lambda task: -task.score)), random)


def _named(targets: Mapping[str, Targets] | Targets) -> dict[str | int, Tensor]:
    """Labels by name, or by number."""
    if isinstance(targets, Mapping):
        labels: dict[str | int, Tensor] = {name: torch.as_tensor(y).detach() for name, y in targets.items()}
    else:
        table = torch.as_tensor(targets).detach()
        if table.dim() < 2:
            raise ValueError(
                f"targets has shape {tuple(table.shape)}; a tensor of targets is (N, K) or (N, C, K). "
                "Pass a dict, {'name': labels}, to name them."
            )
        labels = dict(enumerate(table.unbind(-1)))
    if not labels:
        raise ValueError("There are no targets to rank.")
    return labels


def _centred(name: str | int, y: Tensor, samples: int, outputs: int) -> Float[Tensor, "N C"]:
    """Labels as a target, each output's mean removed; labels that make no task are refused by name."""
    who = f"Task {name!r}"
    if tuple(y.shape) not in ((samples,), (samples, outputs)):
        raise ValueError(f"{who} has labels of shape {tuple(y.shape)}; expected {(samples,)} or {(samples, outputs)}.")
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"{who} has labels with NaN or infinity.")
    if bool((y == y[0]).all()):
        raise ValueError(f"{who} has constant labels: there is nothing to learn.")
    if outputs == 1:
        y = _two_or_real(who, y.reshape(-1, 1))
    elif y.dim() == 1:
        y = one_hot(y, outputs, who)
    g = y.double()
    return g - g.mean(0)


def _two_or_real(who: str, y: Tensor) -> Tensor:
    """Labels for one output: two values as −1 and 1, or real numbers."""
    values = y.unique()
    if len(values) == 2:
        return torch.where(y == values[1], 1.0, -1.0)
    if not y.is_floating_point():
        raise ValueError(
            f"{who} has {len(values)} classes, but the network has one output: pass labels of two classes (one class "
            "against the rest, say), or floating-point numbers for a regression."
        )
    return y
