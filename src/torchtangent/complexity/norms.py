"""Capacity by norms of the final weights, and margins."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.complexity.paths import path_norms
from torchtangent.curvature import Implicit, fisher
from torchtangent.jacobians.call import Network, alone, undisturbed
from torchtangent.jacobians.capture import BUDGET, Capture
from torchtangent.jacobians.inputs import Inputs, Output, split
from torchtangent.jacobians.modes import unwrapped
from torchtangent.jacobians.select import Params, among, select
from torchtangent.jacobians.uses import LayerUse
from torchtangent.kernel.targets import numbers

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def margins(outputs: Float[Tensor, "N *C"] | np.ndarray | list, y: Any) -> Float[Tensor, " N"]:
    """f[y] − max_{c≠y} f[c] for C outputs and classes y (N,), or f·y for one output and labels ±1.

    >>> margins(torch.tensor([[1.0, 3.0, 0.0], [2.0, 1.0, 4.0]]), torch.tensor([1, 0]))
    tensor([ 2., -2.])
    """
    outputs, y = (t if isinstance(t, Tensor) else numbers(t, name) for t, name in ((outputs, "outputs"), (y, "y")))
    if not 1 <= outputs.dim() <= 2:
        raise ValueError(f"Margins are those of outputs (N,) or (N, C), got {tuple(outputs.shape)}.")
    f = outputs if outputs.is_floating_point() else outputs.float()
    f = f[:, None] if f.dim() == 1 else f
    if f.shape[1] == 1:
        if y.numel() != len(f) or not bool((y.double().abs() == 1).all()):
            raise ValueError(
                f"A network with one output needs {len(f)} labels ±1, got shape {tuple(y.shape)} with values "
                f"{y.unique()[:5].tolist()}. Labels 0 and 1 become ±1 by 2 * y - 1."
            )
        return f[:, 0] * y.reshape(-1).to(f.dtype)
    classes = y.shape == (len(f),) and not y.is_floating_point()
    if not classes or not bool(((y >= 0) & (y < f.shape[1])).all()):
        raise ValueError(
            f"A network with {f.shape[1]} outputs needs {len(f)} integer classes from 0 to {f.shape[1] - 1}, got "
            f"shape {tuple(y.shape)} of {y.dtype} with values {y.unique()[:5].tolist()}."
        )
    y = y.long()
    others = f.scatter(1, y[:, None], -math.inf)
    return f.gather(1, y[:, None])[:, 0] - others.amax(1)


def fisher_rao(
    model: nn.Module,
    x: Inputs,
    y: Tensor | None = None,
    *,
    likelihood: str = "categorical",
    kind: str = "empirical",
    params: Params = None,
    output: Output = None,
) -> float:
    """The Fisher–Rao norm ⟨θ, F θ⟩^½.

    For a ReLU network with L layers and without biases Jθ = L f, so the norm is L E[⟨∂ℓ/∂f, f⟩²]^½.

    Args:
        model: Any module whose samples do not interact.
        x: Inputs.
        y: Targets; needed only for `kind="empirical"`.
        likelihood: "categorical", "bernoulli" or "gaussian" (see `tt.fisher`).
        kind: "empirical", with the labels y, as in the paper; "exact", in expectation over the model's own labels.
        params: Which parameters.
        output: Which tensor of the model's result to use.

    Reference:
        Liang et al., Fisher–Rao metric, geometry, and complexity of neural networks, 2019.
    """
    if y is None and kind == "empirical":
        raise ValueError("fisher_rao(model, x, y): kind='empirical' needs the targets y, beside the inputs x.")
    chosen = select(unwrapped(model), params)
    F = fisher(model, (x, y), Implicit, likelihood=likelihood, kind=kind, params=among(chosen), output=output)
    theta = {name: p.detach().to(F.dtype) for name, p in chosen.items()}
    return math.sqrt(max(0.0, float(F.quad(theta))))


@dataclass(frozen=True)
class Measures:
    """The result of `measures`.

    Attributes:
        norms: The norms by name (see `measures`), not divided by anything.
        margin: γ, the margin that all but a few percent of the samples exceed.
        fisher_rao: ⟨θ, F θ⟩^½ with the labels of the data.
        parameters: P.
    """

    norms: dict[str, float]
    margin: float
    fisher_rao: float
    parameters: int

    def over_margin(self) -> dict[str, float]:
        """The norms divided by the margin, as in bounds on the generalization gap."""
        if not self.margin > 0:
            raise ValueError(
                f"The margin is {self.margin:.3g}: too many samples are misclassified, so the bounds say nothing. "
                "Train further, or use `norms` as they are."
            )
        return {name: value / self.margin for name, value in self.norms.items()}


def measures(
    model: nn.Module,
    init: nn.Module | Mapping[str, Tensor],
    x: Tensor,
    y: Any,
    *,
    output: Output = None,
    percentile: float | int = 5,
) -> Measures:
    r"""Norm-based capacity measures of a feed-forward network of linear and convolutional layers with ReLU.

    W is the weight of a layer as a matrix, with one row per unit (channel) and one column per input (channel and tap);
    W⁰ is its initial value, and h its number of rows. ‖·‖ is the spectral norm of that matrix, ‖W‖_{p,q} the q-norm of
    the p-norms of the rows. Biases count only in the path norms and the Fisher–Rao norm.

    Operations between layers keep their coefficients for every p: a mean over k values has 1/k, and a maximum takes the
    largest of its sums over paths. A network that subtracts is refused, because paths would cancel.

    | name | measure | from |
    |---|---|---|
    | `l1_inf` | ∏ ‖W‖_{1,∞} | Bartlett and Mendelson 2002 |
    | `frobenius` | ∏ ‖W‖_F | Neyshabur et al. 2015 |
    | `l3_1.5` | ∏ ‖W‖_{3,1.5} | Neyshabur et al. 2015 |
    | `spectral` | ∏ ‖W‖ | |
    | `spectral_l21` | ∏ ‖W‖ (Σ (‖W − W⁰‖_{2,1} / ‖W‖)^⅔)^{3/2} | Bartlett et al. 2017 |
    | `spectral_frobenius` | ∏ ‖W‖ (Σ h ‖W − W⁰‖_F² / ‖W‖²)^½ | Neyshabur et al. 2018 |
    | `path_1`, `path_2` | (Σ over paths of ∏ \|w\|^p)^{1/p}: the network with \|w\|^p at ones | Neyshabur et al. 2015 |
    | `neyshabur` | ‖V‖_F (‖U − U⁰‖_F + ‖U⁰‖), for two layers U, V only | Neyshabur et al. 2019 |

    Args:
        model: The trained network.
        init: The network as it was at initialization, or its state dict.
        x: The training inputs, (N, ...), for the margin and the Fisher–Rao norm.
        y: Their labels: classes (N,), or ±1 for one output.
        output: Which tensor of the model's result to use.
        percentile: The percentile of the margins that γ is: all but this many percent of the samples exceed it.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[3.0, -4.0]]))
    >>> found = measures(net, net, x=torch.eye(2), y=torch.tensor([1, -1]))
    >>> found.norms["frobenius"], found.norms["path_1"]
    (5.0, 7.0)
    """
    if not 0 <= percentile <= 100:
        raise ValueError(f"percentile={percentile} should be between 0 and 100.")
    if not isinstance(x, Tensor):
        raise TypeError(
            f"measures(model, init, x, y): x should be a tensor (N, ...), got a {type(x).__name__}. Put the inputs of "
            "a data set together, torch.stack([x for x, _ in data]), and its labels."
        )
    y = numbers(y, "y").to(x.device)
    with alone():  # in another thread the parameters may be replaced for a while
        model = copy.deepcopy(unwrapped(model)).requires_grad_(True)  # frozen layers count like the others
    capture = Capture(model, output=output)
    names = _weights(capture, x[:1])
    _check_homogeneous(capture.network, x[:16])
    norms = _norms(*_matrices(names, dict(model.named_parameters()), init))
    norms |= path_norms(capture.network, x[:1])

    capture.look(x)
    f = torch.cat([capture.outputs(part) for _, part in split(x, capture.samples_within(BUDGET, 1))])
    margin = torch.quantile(margins(f, y).double(), percentile / 100)
    binary = f[0].numel() == 1
    rao = fisher_rao(
        model,
        x,
        (y.reshape(f.shape).to(f.dtype) + 1) / 2 if binary else y,
        likelihood="bernoulli" if binary else "categorical",
        output=output,
    )
    return Measures(norms, float(margin), rao, capture.space.size)


def _weights(capture: Capture, x: Tensor) -> list[str]:
    """The names of the layers' weights in the order of use; parameters outside such layers are refused."""
    trace = capture.record(x)
    paths = {module: path for path, module in capture.model.named_modules()}
    layers = [use for use in trace.uses if isinstance(use, LayerUse)]
    for use in layers:
        if type(use.module) not in _LAYERS:
            raise ValueError(
                f"{type(use.module).__name__} '{paths[use.module]}' has parameters, but these measures are defined for "
                "networks of linear and convolutional layers. Fold it into the layer before it, or leave it out."
            )
    outside = trace.uncovered.union(*(use.params for use in trace.uses if not isinstance(use, LayerUse)))
    if outside:
        raise ValueError(
            f"Parameters outside of linear and convolutional layers: {', '.join(sorted(outside))}. These measures are "
            "not defined for them."
        )
    return [use.names["weight"] for use in layers]


def _check_homogeneous(network: Network, x: Tensor) -> None:
    """Refuse a network in which twice the input and twice the biases do not give twice the output, as with ReLU."""
    biases = {id(b): 2 * b for name, b in network.model.named_parameters() if name.split(".")[-1] == "bias"}
    with undisturbed(), torch.no_grad():
        once, twice = network(x), network(2 * x, biases)
    if not bool((twice - 2 * once).abs().max() <= torch.finfo(once.dtype).eps ** 0.5 * once.abs().max()):
        raise ValueError(
            "These measures are defined for networks with ReLU (or no activation): twice the input and twice the "
            "biases should give twice the output, but here they do not. Is there another activation, or a softmax?"
        )


def _matrices(
    names: list[str], params: dict[str, nn.Parameter], init: nn.Module | Mapping[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The layers' weights and their initial values as matrices, in float64."""
    initial = unwrapped(init).state_dict() if isinstance(init, nn.Module) else init
    for name in names:
        if name not in initial or initial[name].shape != params[name].shape:
            found = f"has shape {tuple(initial[name].shape)}" if name in initial else "is missing"
            raise ValueError(
                f"The initial weight '{name}' {found}; the model's has shape {tuple(params[name].shape)}. "
                "init should be the same network before training, or its state dict."
            )
    trained = [params[name].detach().flatten(1).double() for name in names]
    return trained, [initial[name].to(w).reshape(w.shape) for name, w in zip(names, trained, strict=True)]


def _norms(W: list[Tensor], W0: list[Tensor]) -> dict[str, float]:
    """The measures that need only the layers' weights (see `measures`)."""
    D = [w - w0 for w, w0 in zip(W, W0, strict=True)]
    spectral = [_spectral(w) for w in W]
    others = [math.prod(spectral[:i] + spectral[i + 1 :]) for i in range(len(W))]  # ∏ ‖W‖ / ‖W_i‖
    moved = list(zip(others, D, strict=True))
    found = {
        "l1_inf": math.prod(_entrywise(w, 1, math.inf) for w in W),
        "frobenius": math.prod(_entrywise(w, 2, 2) for w in W),
        "l3_1.5": math.prod(_entrywise(w, 3, 1.5) for w in W),
        "spectral": math.prod(spectral),
        "spectral_l21": sum((s * _entrywise(d, 2, 1)) ** (2 / 3) for s, d in moved) ** 1.5,
        "spectral_frobenius": math.sqrt(sum(len(d) * (s * _entrywise(d, 2, 2)) ** 2 for s, d in moved)),
    }
    if len(W) == 2:
        found["neyshabur"] = _entrywise(W[1], 2, 2) * (_entrywise(D[0], 2, 2) + _spectral(W0[0]))
    return found


def _entrywise(w: Float[Tensor, "O I"], p: float | int, q: float | int) -> float:
    """‖w‖_{p,q}."""
    return float(torch.linalg.vector_norm(torch.linalg.vector_norm(w, p, dim=1), q))


def _spectral(w: Float[Tensor, "O I"]) -> float:
    return float(torch.linalg.matrix_norm(w, 2))
