"""The oracle of a step: per-sample autograd, patches by `Tensor.unfold`, and dense P × P matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def records(
    model: nn.Module, layer: nn.Module, x: Tensor, y: Tensor, loss: Callable
) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
    """For every sample alone: the layer's input, the gradient at its output, and the gradients of all parameters."""
    seen: dict[str, Tensor] = {}

    def hook(_: nn.Module, args: tuple, out: Tensor) -> None:
        seen["x"], seen["y"] = args[0].detach(), out

    handle = layer.register_forward_hook(hook)
    found = []
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1])
        d, *grads = torch.autograd.grad(value, [seen["y"], *layer.parameters()])
        found.append((seen["x"], d, grads))
    handle.remove()
    return found


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """(G, S, I): what the layer multiplies by its weight, location by location."""
    if isinstance(layer, nn.Linear):
        return x.reshape(1, -1, x.shape[-1])
    if isinstance(layer, nn.ConvTranspose2d):  # an input reaches a location if a weight of one there says so
        units = torch.eye(layer.weight[:, 0].numel(), dtype=x.dtype).view(-1, layer.in_channels, 1, *layer.kernel_size)
        seen = [F.conv_transpose2d(x, unit, stride=layer.stride, padding=layer.padding) for unit in units]
        return torch.stack([a.flatten() for a in seen], 1).unsqueeze(0)
    x = F.pad(x, [p for pad in reversed(layer.padding) for p in (pad, pad)])
    dims = len(layer.kernel_size)
    for i, (k, s) in enumerate(zip(layer.kernel_size, layer.stride, strict=True)):
        x = x.unfold(2 + i, k, s)
    channels = x.shape[1]
    x = x[0].movedim(0, dims).reshape(-1, layer.groups, channels // layer.groups * math.prod(layer.kernel_size))
    return x.transpose(0, 1)


def cotangents(layer: nn.Module, d: Tensor) -> Tensor:
    """(G, S, O)."""
    if isinstance(layer, nn.Linear):
        return d.reshape(1, -1, d.shape[-1])
    return d[0].reshape(layer.groups, d.shape[1] // layer.groups, -1).transpose(1, 2)


def per_sample(layer: nn.Module, grads: list[Tensor]) -> Tensor:
    """[W b] of per-sample gradients, (G, O, J)."""
    groups = getattr(layer, "groups", 1)
    if isinstance(layer, nn.ConvTranspose2d):
        grads = [grads[0].transpose(0, 1), *grads[1:]]
    W = grads[0].reshape(groups, grads[0].shape[0] // groups, -1)
    return torch.cat([W, grads[1].reshape(groups, -1, 1)], 2) if len(grads) > 1 else W


def moments(layer: nn.Module, found: list, *, sua: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """A (G, J, J), B (G, O, O) and per-sample gradients (N, G, O, J)."""
    bias = layer.bias is not None
    d = torch.stack([cotangents(layer, d) for _, d, _ in found])
    B = torch.einsum("ngso,ngsp->gop", d, d) / len(found)
    if sua:
        taps = math.prod(layer.kernel_size)
        x = torch.cat([x for x, _, _ in found]).flatten(2).unflatten(1, (layer.groups, -1))
        pixels = torch.einsum("ngcs,ngds->gcd", x, x) / (x.shape[0] * x.shape[3])
        blocks = [torch.kron(p, torch.eye(taps, dtype=p.dtype)) for p in pixels]
        A = torch.stack([torch.block_diag(p, torch.ones(1, 1, dtype=p.dtype)) if bias else p for p in blocks])
    else:
        a = torch.stack([patches(layer, x) for x, _, _ in found])
        a = torch.cat([a, torch.ones_like(a[..., :1])], 3) if bias else a
        A = torch.einsum("ngsi,ngsj->gij", a, a) / (a.shape[0] * a.shape[2])
    return A, B, torch.stack([per_sample(layer, grads) for _, _, grads in found])


def damped(rule: str, eps: float, A: Tensor, B: Tensor) -> Tensor:
    """What is added to B ⊗ A, dense."""
    one_a, one_b = torch.eye(len(A), dtype=A.dtype), torch.eye(len(B), dtype=A.dtype)
    if rule == "single":
        return eps * torch.kron(one_b, one_a)
    pi = 1.0
    if rule == "factored":
        pi = math.sqrt(float(A.trace() / len(A)) / float(B.trace() / len(B)))
    alpha, beta = pi * math.sqrt(eps), math.sqrt(eps) / pi
    return torch.kron(B + beta * one_b, A + alpha * one_a) - torch.kron(B, A)


def direction(method: str, rule: str, eps: float, A: Tensor, B: Tensor, J: Tensor, *, taps: int = 1) -> Tensor:
    """(F + damping)⁻¹ mean(J), one group: A (J, J), B (O, O), J (N, O, J).

    With uncorrelated taps every eigenvalue of A comes `taps` times; the basis is the one that leaves the taps alone.
    """
    g = J.mean(0).flatten()
    if method == "kfac":
        curvature = torch.kron(B, A)
    else:
        channels = len(A) // taps * taps
        S_A, U_A = torch.linalg.eigh(A[:channels:taps, :channels:taps].contiguous())
        U_A = U_A.contiguous()
        S_A = torch.cat([S_A.repeat_interleave(taps), A.diagonal()[channels:]])
        U_A = torch.block_diag(torch.kron(U_A, torch.eye(taps, dtype=A.dtype)), *A[channels:, channels:])
        U = torch.kron(torch.linalg.eigh(B)[1].contiguous(), U_A)
        if method == "ekfac":
            s = (J.flatten(1) @ U).square().mean(0)
        else:
            before = torch.kron(torch.linalg.eigvalsh(B), S_A)
            s = 0.75 * before + 0.25 * len(J) * (g @ U).square()
        curvature = U @ torch.diag(s) @ U.T
    return torch.linalg.solve(curvature + damped(rule, eps, A, B), g).view(J.shape[1:])
