"""The float64 oracle: every quantity from a loop of `torch.autograd.grad` over samples and outputs.

Nothing here knows torchtangent. A sample is run alone, one output entry is differentiated at a time, so
the answer is right for every module that autograd can differentiate, and slow. Matrices are written from
the textbook formulas of the likelihoods, not from square roots or cotangents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from cases import Case
from torch import Tensor, nn

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
Output = Callable[[Any], Tensor] | None


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters in `named_parameters()` order, a tied one once, under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def move(model: nn.Module, step: Tensor) -> None:
    """Add a step, as one vector, to all parameters."""
    nn.utils.vector_to_parameters(flat(model) + step, model.parameters())


def take(inputs: Inputs, index: slice | Tensor) -> Inputs:
    """The chosen samples of a tensor, a tuple or a dict of tensors."""
    if isinstance(inputs, Tensor):
        return inputs[index]
    if isinstance(inputs, tuple):
        return tuple(x[index] if isinstance(x, Tensor) else x for x in inputs)
    return {key: x[index] if isinstance(x, Tensor) else x for key, x in inputs.items()}


def count(inputs: Inputs) -> int:
    """How many samples the inputs hold."""
    if isinstance(inputs, Tensor):
        return len(inputs)
    values = inputs if isinstance(inputs, tuple) else inputs.values()
    return next(len(x) for x in values if isinstance(x, Tensor))


def forward(model: nn.Module, inputs: Inputs, output: Output = None) -> Tensor:
    """The (N, C) or (N, T, C) tensor that the model gives for these inputs."""
    if isinstance(inputs, Tensor):
        y = model(inputs)
    elif isinstance(inputs, tuple):
        y = model(*inputs)
    else:
        y = model(**inputs)
    return y if output is None else output(y)


def _row(scalar: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """∂ scalar / ∂ parameters, flattened and concatenated; zero where there is no path."""
    if not scalar.requires_grad:
        return torch.cat([torch.zeros_like(p).flatten() for p in parameters])
    grads = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    pieces = []
    for p, g in zip(parameters, grads, strict=True):
        g = torch.zeros_like(p) if g is None else g
        pieces.append((g.to_dense() if g.is_sparse else g).flatten())
    return torch.cat(pieces)


def jacobian(
    model: nn.Module,
    inputs: Inputs,
    output: Output = None,
    *,
    keep: Callable[[str, nn.Parameter], bool] = lambda name, p: True,
) -> Tensor:
    """J[n, ..., p] = ∂ f(x_n)[...] / ∂ θ_p: (N, C, P), or (N, T, C, P) for outputs (N, T, C)."""
    parameters = [p for name, p in trainable(model).items() if keep(name, p)]
    samples = []
    with torch.enable_grad():
        for n in range(count(inputs)):
            f = forward(model, take(inputs, slice(n, n + 1)), output)[0]
            rows = torch.stack([_row(entry, parameters) for entry in f.flatten()])
            samples.append(rows.reshape(*f.shape, -1))
    return torch.stack(samples).detach()


@cache
def jacobian_of(case: Case) -> Tensor:
    """J of a model of the zoo, once for all tests: a build is always the same."""
    return jacobian(*case.build())


def outputs(model: nn.Module, inputs: Inputs, output: Output = None) -> Tensor:
    """f(x_n), each sample run alone."""
    with torch.no_grad():
        rows = [forward(model, take(inputs, slice(n, n + 1)), output) for n in range(count(inputs))]
    return torch.cat(rows).detach()


def information(f: Tensor, likelihood: str) -> Tensor:
    """Λ = E_{y|f}[∇ log p ∇ log pᵀ] = −E[∇² log p] with respect to the outputs f, (..., C, C)."""
    if likelihood == "categorical":
        p = f.softmax(-1)
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    if likelihood == "bernoulli":
        p = f.sigmoid()
        return torch.diag_embed(p * (1 - p))
    if likelihood == "gaussian":
        return torch.eye(f.shape[-1], dtype=f.dtype).expand(*f.shape, f.shape[-1])
    raise ValueError(likelihood)


def score(f: Tensor, y: Tensor, likelihood: str) -> Tensor:
    """∇_f log p(y | f), the shape of f. Classes are integers; the other targets have the shape of f."""
    if likelihood == "categorical":
        return torch.nn.functional.one_hot(y, f.shape[-1]).to(f) - f.softmax(-1)
    if likelihood == "bernoulli":
        return y - f.sigmoid()
    if likelihood == "gaussian":
        return y - f
    raise ValueError(likelihood)


def terms(f: Tensor, J: Tensor) -> tuple[Tensor, Tensor]:
    """The same two with an explicit axis of likelihood terms: (N, T, C) and (N, T, C, P)."""
    return (f.unsqueeze(1), J.unsqueeze(1)) if f.ndim == 2 else (f, J)


def exact_fisher(f: Tensor, J: Tensor, likelihood: str = "categorical") -> Tensor:
    """F = 1/N Σ_n Σ_t J[n,t]ᵀ Λ[n,t] J[n,t], (P, P)."""
    f, J = terms(f, J)
    return torch.einsum("ntcp,ntce,nteq->pq", J, information(f, likelihood), J) / len(f)


def empirical_fisher(f: Tensor, J: Tensor, y: Tensor, likelihood: str = "categorical") -> Tensor:
    """F = 1/N Σ_n g_n g_nᵀ with g_n the gradient of Σ_t log p(y[n,t] | x_n), (P, P)."""
    u = score(f, y, likelihood)
    f, J = terms(f, J)
    g = torch.einsum("ntc,ntcp->np", u.reshape(f.shape), J)
    return g.T @ g / len(g)


def fisher(
    model: nn.Module,
    data: Iterable[tuple[Inputs, Tensor | None]],
    likelihood: str = "categorical",
    kind: str = "exact",
    output: Output = None,
) -> Tensor:
    """The dense Fisher matrix of a list of batches: a mean over all samples of all batches."""
    total, samples = torch.tensor(0.0), 0
    for x, y in data:
        f, J = outputs(model, x, output), jacobian(model, x, output)
        F = exact_fisher(f, J, likelihood) if kind == "exact" else empirical_fisher(f, J, y, likelihood)
        total, samples = total + len(f) * F, samples + len(f)
    return total / samples


def modules(model: nn.Module) -> dict[str, list[str]]:
    """Module name → names of its own trainable parameters: one block each.

    A parameter belongs to the first module that holds it, as in `named_parameters()`. One that another
    module holds too (tied) is a block of its own, called by its full name.
    """
    owners: Counter[int] = Counter()
    for module in model.modules():
        owners.update(id(p) for _, p in module.named_parameters(recurse=False, remove_duplicate=False))
    groups: dict[str, list[str]] = {}
    for name, p in trainable(model).items():
        tied = owners[id(p)] > 1
        groups.setdefault(name if tied else name.rpartition(".")[0], []).append(name)
    return groups


def positions(model: nn.Module) -> dict[str, Tensor]:
    """Parameter name → its indices among the P, in the parameter's shape."""
    places, start = {}, 0
    for name, p in trainable(model).items():
        places[name] = torch.arange(start, start + p.numel()).reshape(p.shape)
        start += p.numel()
    return places


def block_diagonal(F: Tensor, model: nn.Module) -> Tensor:
    """F with everything between different modules set to zero."""
    mask, places = torch.zeros_like(F, dtype=torch.bool), positions(model)
    for names in modules(model).values():
        index = torch.cat([places[name].flatten() for name in names])
        mask[index[:, None], index] = True
    return F * mask


def quasi_diagonal(F: Tensor, model: nn.Module) -> Tensor:
    """The diagonal of F and what couples each bias with the weights of its own output unit.

    The rows of a weight are its output units, except in a transposed convolution, whose weight is
    (in, out / groups, ...): there unit o = g · out/groups + j owns weight[in channels of g, j]. Modules that are
    not just a weight and a bias, and weights whose rows are not the units of the bias, have a diagonal only.
    """
    mask, places = torch.eye(len(F), dtype=torch.bool), positions(model)
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if set(modules(model).get(name, [])) != {prefix + "weight", prefix + "bias"}:
            continue
        W, b = places[prefix + "weight"], places[prefix + "bias"]
        if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            grouped = W.reshape(module.groups, W.shape[0] // module.groups, *W.shape[1:])
            rows = grouped.transpose(1, 2).reshape(len(b), -1)
        elif getattr(module, "units", 0) == 1:  # x W
            rows = W.T
        elif W.shape[: b.ndim] == b.shape:
            rows = W.reshape(b.numel(), -1)
        else:
            continue
        for unit, row in zip(b.flatten(), rows, strict=True):
            mask[unit, row] = mask[row, unit] = True
    return F * mask


def factors(model: nn.Module, inputs: Inputs, output: Output = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every Linear and Conv2d: its inputs a (N, S, I) and cotangents D (N, C, S, O), S all its locations.

    The homogeneous 1 is the last entry of a where the layer has a bias; a is the patch for a convolution
    (zero padding, one group). Several calls of a module follow each other along S; outputs (N, T, C) give
    T·C cotangents.
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    samples: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    for n in range(count(inputs)):
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

        handles = [layer.register_forward_hook(_recorder(calls[name])) for name, layer in layers.items()]
        f = forward(model, take(inputs, slice(n, n + 1)), output).flatten()
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            a = torch.cat([_locations(layer, x) for x, _ in calls[name]])
            ys = [y for _, y in calls[name]]
            rows = [torch.autograd.grad(entry, ys, retain_graph=True) for entry in f]
            channels = -1 if isinstance(layer, nn.Linear) else 1
            D = [torch.cat([d.movedim(channels, -1).flatten(0, -2) for d in row]) for row in rows]
            samples[name].append((a, torch.stack(D)))
    return {
        name: (torch.stack([a for a, _ in pairs]), torch.stack([D for _, D in pairs]))
        for name, pairs in samples.items()
    }


def _recorder(calls: list[tuple[Tensor, Tensor]]) -> Callable:
    """A hook that notes input and output; what follows works on a copy and may write into it."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
        calls.append((args[0].detach(), y))
        return y.clone()

    return hook


def _locations(layer: nn.Module, x: Tensor) -> Tensor:
    """The inputs of a layer at its locations, (S, I), with the homogeneous 1."""
    if isinstance(layer, nn.Linear):
        a = x.flatten(0, -2)
    else:
        assert layer.groups == 1
        assert layer.padding_mode == "zeros"
        patches = nn.functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        a = patches.transpose(1, 2).flatten(0, 1)
    return a if layer.bias is None else torch.cat([a, a.new_ones(len(a), 1)], 1)


def cotangents(D: Tensor, f: Tensor, likelihood: str, y: Tensor | None = None) -> Tensor:
    """The directions pulled back through D (N, C, S, O): columns of Λ^½ (exact) or the score (empirical)."""
    if y is None:
        values, vectors = torch.linalg.eigh(information(f, likelihood))
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    else:
        root = score(f, y, likelihood).unsqueeze(-1)
    if f.ndim == 2:
        return torch.einsum("ncso,nck->nkso", D, root)
    D = D.unflatten(1, f.shape[1:])
    if y is None:
        return torch.einsum("ntcso,ntck->ntkso", D, root).flatten(1, 2)
    return torch.einsum("ntcso,ntck->nkso", D, root)


def kfac_factors(a: Tensor, d: Tensor, sharing: str = "expand") -> tuple[Tensor, Tensor]:
    """A and B of one layer from a (N, S, I) and the weighted cotangents d (N, K, S, O)."""
    if sharing == "reduce":
        a, d = a.mean(1, keepdim=True), d.sum(2, keepdim=True)
    A = torch.einsum("nsi,nsj->ij", a, a) / (a.shape[0] * a.shape[1])
    B = torch.einsum("nkso,nksq->oq", d, d) / len(d)
    return A, B


def layer_index(model: nn.Module, name: str) -> Tensor:
    """Where the entries of [W b], row by row, are among the P parameters."""
    places = positions(model)
    prefix = f"{name}." if name else ""
    W = places[prefix + "weight"].flatten(1)
    b = places.get(prefix + "bias")
    return (W if b is None else torch.cat([W, b[:, None]], 1)).flatten()


def kfac(
    model: nn.Module,
    inputs: Inputs,
    output: Output = None,
    *,
    likelihood: str = "categorical",
    sharing: str = "expand",
    y: Tensor | None = None,
) -> Tensor:
    """The dense (P, P) matrix of B ⊗ A, layer by layer, of a model made of Linear and Conv2d."""
    f = outputs(model, inputs, output)
    size = sum(p.numel() for p in trainable(model).values())
    F = torch.zeros(size, size, dtype=f.dtype)
    for name, (a, D) in factors(model, inputs, output).items():
        A, B = kfac_factors(a, cotangents(D, f, likelihood, y), sharing)
        index = layer_index(model, name)
        F[index[:, None], index] = torch.kron(B, A)
    return F


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖ in Frobenius norm; absolute where the expected is exactly zero."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)} is not {tuple(expected.shape)}"
    difference = (actual.detach().double() - expected.double()).norm().item()
    size = expected.double().norm().item()
    return difference / size if size > 0 else difference


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Fail unless the relative Frobenius error is below the tolerance; NaN fails too."""
    error = relative_error(actual, expected)
    assert error <= tolerance, f"relative error {error:.2e} is above {tolerance:.0e}"
