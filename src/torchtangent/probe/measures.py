"""What is measured: a registry with one small function per measure.

A measure takes the state of the network on a probe set and returns a number, or a dict of numbers by name, which are
recorded as `measure/name` (and as `measure` if the name is empty). To add one, decorate a function with `@measure()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent import alignment
from torchtangent import spectrum as spectra
from torchtangent.complexity.fixed import norm
from torchtangent.notice import check_choice
from torchtangent.probe.state import State, Undefined

_LEADING = (2, 5, 10, 20, 50, 100)  # eigenvalues to record, besides the largest
_SHARES = (1, 10, 40, 80, 160)  # the k of trace ratios T_k

Value = Tensor | float
Values = Value | Mapping[str, Value]


@dataclass(frozen=True)
class Measure:
    """A function of a state.

    Attributes:
        of: The function.
        held_out: Whether it is taken on the held-out set, too.
        default: Whether it is taken if the user does not choose measures.
    """

    of: Callable[[State], Values]
    held_out: bool = True
    default: bool = True


class Missing(LookupError):
    """The model lacks what a measure is about, such as a ReLU."""


MEASURES: dict[str, Measure] = {}


def measure(*, held_out: bool = True, default: bool = True) -> Callable[[Callable[[State], Values]], Callable]:
    """A decorator that adds a function to MEASURES under its name.

    The function is given a `State`, whose quantities are computed on first use:

    | attribute | |
    |---|---|
    | `params` | θ by name, a copy |
    | `kernel`, `kernels` | K, (N, N, C, C), and that of each layer |
    | `eigenvalues` | all eigenvalues of K centred per class, the largest first |
    | `feature_norm`, `complexity`, `increment` | √(Tr K / N), the complexity so far, and its last term |
    | `activity` | `outputs`, the last `representation` (or None), and which ReLUs are `on` |
    | `targets` | the targets of the outputs, (N, C), according to the labels |
    | `start` | the state before training, with `params`, `kernel`, `activity`, `feature_norm` and `complexity` |
    | `before` | the state at the last record, with `params`, `feature_norm` and `complexity` |
    | `view` | the `model` and its probe set, `x` and `y` |

    It returns a number, a tensor, or a dict of them. All measures are taken once when a probe is created, where `start`
    and `before` are the state itself. Only what they use then is available later, so they should always use the same.

    Args:
        held_out: Whether to take it on the held-out set, too.
        default: Whether to take it if the user does not choose measures.

    >>> import torchtangent as tt
    >>> @measure(default=False)
    ... def subspace(state):  # the overlap of the three leading eigenvectors with those at the start
    ...     now, start = (torch.linalg.eigh(tt.flatten(K))[1][:, -3:] for K in (state.kernel, state.start.kernel))
    ...     return (now.T @ start).square().sum() / 3
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> probe = tt.TangentProbe(net, torch.randn(6, 2), measures=["subspace"])
    >>> print(f"{probe.log(0)['subspace']:.3f}")
    1.000
    >>> torch.nn.init.normal_(net[0].weight).shape
    torch.Size([8, 2])
    >>> 0 < probe.log(5)["subspace"] < 0.999
    True
    >>> del MEASURES["subspace"]
    """

    def add(function: Callable[[State], Values]) -> Callable[[State], Values]:
        MEASURES[function.__name__] = Measure(function, held_out, default)
        return function

    return add


def choose(names: Iterable[str] | None) -> list[str]:
    """The names of the measures to take; the default ones if none are given."""
    if names is None:
        return [name for name, one in MEASURES.items() if one.default]
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        check_choice("measure", name, MEASURES)
    if not chosen:
        raise ValueError(f"measures is empty: nothing would be recorded. There are {', '.join(map(repr, MEASURES))}.")
    return chosen


@measure()
def spectrum(state: State) -> Values:
    """The largest eigenvalue of the kernel centred per class, the mean, and some of the next largest."""
    values = state.eigenvalues
    return {"max": values[0], "mean": values.mean()} | {str(k): values[k - 1] for k in _LEADING if k <= len(values)}


@measure(default=False)
def eigenvalues(state: State) -> Values:
    """All eigenvalues of the kernel centred per class, the largest first."""
    return state.eigenvalues


@measure()
def effective_rank(state: State) -> Values:
    """The effective rank of the kernel centred per class."""
    return spectra.effective_rank(state.eigenvalues)


@measure()
def trace_ratio(state: State) -> Values:
    """The trace ratios T_k of the kernel centred per class."""
    shares = [k for k in _SHARES if k <= len(state.eigenvalues)]
    return dict(zip(map(str, shares), spectra.trace_ratio(state.eigenvalues.double(), shares), strict=True))


@measure()
def cka(state: State) -> Values:
    """Centred alignment with the labels, of the kernel and of the kernel of each layer."""
    kernels = {"": state.kernel} | (state.kernels if state.view.by_layer else {})
    return alignment.cka(kernels, state.targets)


@measure()
def kernel_alignment(state: State) -> Values:
    """Uncentred alignment of the kernel with the kernel at the start."""
    return alignment.kernels(state.kernel, state.start.kernel)


@measure()
def representation_alignment(state: State) -> Values:
    """Alignment of the last layer's input with that at the start, by Gram matrices and by second moments.

    With R (N, D) now and R₀ at the start: ⟨RRᵀ, R₀R₀ᵀ⟩ and, as `features`, ⟨RᵀR, R₀ᵀR₀⟩ = ‖RR₀ᵀ‖², both divided by
    ‖RRᵀ‖ ‖R₀R₀ᵀ‖.
    """
    R, R0 = state.activity.representation, state.start.activity.representation
    if R is None or R0 is None:
        raise Missing("No linear layer is applied last to inputs of shape (N, ...), which would be the representation.")
    R, R0 = R.flatten(1).double(), R0.flatten(1).to(R.device, torch.float64)
    G, G0 = R @ R.T, R0 @ R0.T
    sizes = G.norm() * G0.norm()
    features = torch.where(sizes > 0, (R @ R0.T).square().sum() / sizes, 0.0)
    return {"": alignment.kernels(G, G0), "features": features}


@measure()
def sign_similarity(state: State) -> Values:
    """The fraction of ReLU outputs that are on or off as they were at the start."""
    on, before = state.activity.on, state.start.activity.on
    if not len(on):
        raise Missing("No ReLU is applied.")
    if on.shape != before.shape:
        raise Undefined  # the network now uses other units than at the start
    return (on == before.to(on.device)).double().mean()


@measure(held_out=False)
def distance(state: State) -> Values:
    """‖θ − θ₀‖, and the cosine distance 1 − ⟨θ, θ₀⟩ / ‖θ‖ ‖θ₀‖ = ½ ‖θ / ‖θ‖ − θ₀ / ‖θ₀‖‖²."""
    theta, start = state.params, state.start.params
    a, b = norm(theta), norm(start)
    apart = norm({name: p / a - start[name].to(p) / b for name, p in theta.items()})
    return {"l2": state.distance(state.start), "cosine": apart.square() / 2}


@measure(held_out=False)
def complexity(state: State) -> Values:
    """Σ_t ‖θ_{t+1} − θ_t‖ ‖Φ_t‖ / √N over the records (see `tt.complexity.Trajectory`), its last term, and ‖Φ‖ / √N."""
    return {"": state.complexity, "increment": state.increment, "feature_norm": state.feature_norm}
