"""Plain torch.func: per-sample Jacobians by vmap over vjp for the diagonal; jvp, softmax Hessian, vjp for products."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, jvp, linearize, vjp, vmap

from benchmarks.cases import Problem
from benchmarks.peers import Builder, Built, diagonal_of, flatten, splitter

DISTRIBUTION = "torch"


def diagonal(problem: Problem) -> Callable[[], Built]:
    """Squares of the per-sample gradients along the columns of the softmax Fisher's root, vmapped over a batch."""
    params = {k: p.detach() for k, p in problem.model.named_parameters()}

    def squares(x: Tensor) -> dict[str, Tensor]:
        out, pull = vjp(lambda p: functional_call(problem.model, p, x[None])[0], params)
        p = out.detach().softmax(0)
        root = torch.diag(p.sqrt()) - p.sqrt()[:, None] * p  # rows are the columns of the root
        (rows,) = vmap(pull)(root)
        return {k: r.square().sum(0) for k, r in rows.items()}

    def build() -> Built:
        total: list[Tensor] = []
        for x, _ in problem.batches():
            sums = [t.sum(0) for t in vmap(squares)(x).values()]
            total = [a.add_(b) for a, b in zip(total, sums, strict=True)] if total else sums
        return diagonal_of(flatten(total) / len(problem.x))

    return build


def implicit(problem: Problem, trick: str) -> Callable[[], Built]:
    """Jᵀ Λ J v. `trick`: "plain", "keep" the graph for vjp, or `linearize` for jvp as well."""
    names = [k for k, _ in problem.model.named_parameters()]
    params = tuple(p.detach() for p in problem.model.parameters())

    def product(x: Tensor) -> Callable[[list[Tensor]], list[Tensor]]:
        def f(*params: Tensor) -> Tensor:
            return functional_call(problem.model, dict(zip(names, params, strict=True)), x)

        out, pull = vjp(f, *params) if trick != "plain" else (None, None)
        push = linearize(f, *params)[1] if trick == "linearize" else None

        def mv(v: list[Tensor]) -> list[Tensor]:
            f_val, Jv = (out, push(*v)) if push else jvp(f, params, tuple(v))
            p = f_val.detach().softmax(1)
            u = p * (Jv - (p * Jv).sum(1, keepdim=True)) / len(problem.x)
            return (pull or vjp(f, *params)[1])(u)

        return mv

    def build() -> Built:
        products = [product(x) for x, _ in problem.batches()]

        def mv(v: list[Tensor]) -> list[Tensor]:
            parts = [p(v) for p in products]
            return [torch.stack(t).sum(0) if len(t) > 1 else t[0] for t in zip(*parts, strict=True)]

        return Built(mv=mv, pack=splitter(problem), unpack=flatten)

    return build


BUILDERS = {
    "diagonal": Builder(diagonal, (128, 64, 32, 16, 8, 4, 2, 1)),
    "implicit": Builder(
        implicit,
        (None, 256, 128, 64, 32, 16),
        options=({"trick": "plain"}, {"trick": "keep"}, {"trick": "linearize"}),
        lazy=True,
    ),
}
