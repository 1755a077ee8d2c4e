"""SuperNat: gradient descent on a linear model whose features are rescaled at every step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtangent.notice import check_choice, warn
from torchtangent.optim.notices import Notices, round_number

SCALES = ("max", "trace")


@final
class SuperNat(Optimizer):
    """Gradient descent in features Φ_t, followed by Φ_{t+1} = Ã_t⁻¹ Φ_t with the Ã_t that suits the step best.

    With Φ = Σ_j √λ_j u_j v_jᵀ and Ã = Σ_j √ν_j v_j v_jᵀ, the bound ‖δw‖_Ã ‖Ã⁻¹Φᵀ‖_F on the complexity of the step is
    smallest for ν_j ∝ 1 / |u_jᵀ∇_f L|, so that directions without gradient fade:

        λ_j ← κ |u_jᵀ∇_f L| λ_j.

    In terms of the original weights this is natural gradient descent, δw = −η Σ_j (λ_jt / λ_j0) v_j v_jᵀ∇, with the
    metric A_t A_tᵀ, A_t = Ã_0 … Ã_t (Baratin et al., 2021, *Implicit regularization via neural feature alignment*).
    Each output of the model has its own eigenvalues.

    Args:
        model: An `nn.Linear`.
        x: Its training inputs, all of which are used at every step. With a bias, the features are [x 1].
        lr: The learning rate η.
        scale: κ. "max": max_j ν_j⁻¹ = 1, so that no direction grows; "trace": Σλ does not change; or a number. The
            theory leaves it open ("up to isotropic rescaling"), but it matters: "trace" undoes the fading.

    Attributes:
        skipped: Number of steps not taken because something was not finite.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> x = torch.diag(torch.tensor([1.0, 2.0]))
        >>> net = nn.Linear(2, 1, bias=False)
        >>> opt = SuperNat(net, x, lr=0.1)
        >>> ((net(x) - torch.tensor([[1.0], [0.0]])).square().sum() / 2).backward()
        >>> _ = opt.step()
        >>> bool((opt.eigenvalues <= torch.tensor([[4.0], [1.0]])).all())
        True
    """

    def __init__(self, model: nn.Linear, x: Float[Tensor, "N I"], lr: float, *, scale: str | float = "max") -> None:
        if type(model) is not nn.Linear:
            raise TypeError(f"SuperNat is for linear models: expected an nn.Linear, got a {type(model).__name__}.")
        if not lr > 0:
            raise ValueError(f"lr={lr}: it should be positive.")
        if isinstance(scale, str):
            check_choice("scale", scale, SCALES)
        elif not scale > 0:
            raise ValueError(f"scale={scale}: it should be positive, or one of {', '.join(map(repr, SCALES))}.")
        _check_inputs(x, model.in_features)
        self.model, self.scale, self.skipped, self._notices = model, scale, 0, Notices("SuperNat")
        super().__init__(list(model.parameters()), {"lr": lr})
        self.bias = model.bias if model.bias is not None and model.bias.requires_grad else None
        features = x.detach().to(model.weight)
        if self.bias is not None:
            features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        _, roots, basis = torch.linalg.svd(features, full_matrices=False)
        kept = roots > roots.max() * max(features.shape) * torch.finfo(roots.dtype).eps
        start = roots[kept].square().unsqueeze(1)
        self.state[model.weight] = {
            "basis": basis[kept],  # v_jᵀ
            "start": start,  # λ_j0
            "eigenvalues": start.expand(-1, model.out_features).clone(),  # λ_jt
        }
        # How many rows the model is called with between two steps reveals batches that are not all of x.
        self._rows: list[int] = []
        self._n = len(x)
        hook = model.register_forward_pre_hook(partial(_count, self._rows))
        weakref.finalize(self, hook.remove)

    @property
    def eigenvalues(self) -> Float[Tensor, "R C"]:
        """λ_jt, the eigenvalues of the current kernel Φ_t Φ_tᵀ, one column per output."""
        return self.state[self.model.weight]["eigenvalues"]

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "SuperNat cannot be copied or pickled: it lives with the hooks on its model. Make a new one for the copied "
            "model, and load_state_dict(opt.state_dict())."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of a torch optimizer, and the scaling constant."""
        return {**super().state_dict(), "scale": self.scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of a SuperNat with the same inputs and scaling constant."""
        known = state_dict.get("scale", self.scale)
        if known != self.scale:
            raise ValueError(f"The state was saved with scale={known!r}; this SuperNat has scale={self.scale!r}.")
        own = self.state[self.model.weight]
        saved = next((state for state in state_dict["state"].values() if "start" in state), own)
        if saved["basis"].shape != own["basis"].shape or not _same_moments(saved, own):
            raise ValueError("The state was saved for other inputs x: their features have other second moments.")
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of gradient descent in the current features, then rescale them; nothing if not finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        weight, bias = self.model.weight, self.bias
        parts = [weight.grad] if bias is None else [weight.grad, bias.grad]
        rows = self._rows.copy()
        self._rows.clear()
        if any(part is None for part in parts):
            if self._notices.first("gradients"):
                missing = "weight" if weight.grad is None else "bias"
                warn(f"SuperNat: the {missing} has no gradient, and nothing moves. Call backward, and freeze nothing.")
            return loss
        self._check_rows(rows)
        g = torch.cat([part.view(len(weight), -1) for part in parts if part is not None], 1)
        state = self.state[weight]
        basis, start, values = (state[key].to(weight) for key in ("basis", "start", "eigenvalues"))
        along = basis @ g.T  # v_jᵀ∇_w = √λ_j0 u_jᵀ∇_f
        delta = (basis.T @ (values / start * along)).T * -self.param_groups[0]["lr"]
        faded = values * self._fading((along / start.sqrt()).abs(), values)
        sums = [delta.sum(), faded.sum()] + ([loss.detach().sum()] if isinstance(loss, Tensor) else [])
        if not bool(torch.isfinite(torch.stack([total.double() for total in sums])).all()):
            self.skipped += 1
            if round_number(self.skipped):
                what = "the loss or its gradient has NaN or infinity, or the step is too large for its dtype"
                warn(f"SuperNat: step skipped, {what} (skipped so far: {self.skipped}).")
            return loss
        weight.add_(delta[:, : weight.shape[1]])
        if bias is not None:
            bias.add_(delta[:, -1])
        state["eigenvalues"] = faded
        return loss

    def _check_rows(self, rows: list[int]) -> None:
        """Warn if the gradient cannot be that of all rows of x."""
        if rows and self._n not in rows and sum(rows) != self._n and self._notices.first("rows"):
            warn(
                f"SuperNat was made for all {self._n} rows of x, but the model was called with {rows[-1]}: its "
                "features are rescaled by the gradient of the loss on all of them. Train on all of x at every step.",
            )

    def _fading(self, slopes: Float[Tensor, "R C"], values: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        """ν_j⁻¹ = κ |u_jᵀ∇_f L|; 1 at a stationary point."""
        if not bool(slopes.any()):
            return torch.ones_like(slopes)
        if self.scale == "max":
            return slopes / slopes.max()
        if self.scale == "trace":
            return slopes * (values.sum() / (slopes * values).sum())
        return slopes * float(self.scale)


def _check_inputs(x: Any, features: int) -> None:
    """Refuse x unless it is a finite matrix with one column per feature."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x: expected a tensor, got a {type(x).__name__}. For an array, pass torch.as_tensor(x).")
    if x.dim() != 2 or not len(x):
        raise ValueError(f"x has the shape {tuple(x.shape)}: it should be a matrix with a row for each sample.")
    if x.shape[1] != features:
        raise ValueError(f"x has {x.shape[1]} features, the model takes {features}.")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("x has NaN or infinity: no features can be made of it.")


def _count(rows: list[int], _: nn.Module, args: tuple[Any, ...]) -> None:
    """A forward pre-hook that notes how many rows the model is called with."""
    if torch.is_grad_enabled() and args and isinstance(args[0], Tensor) and args[0].dim():
        rows.append(len(args[0]))


def _same_moments(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states have the same ΦᵀΦ up to rounding, judged by products: eigenvectors may differ in sign."""
    basis, start = other["basis"], other["start"]
    z = torch.randn(basis.shape[1], 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    z = z.to(basis)
    first, second = (s["basis"].to(basis).T @ (s["start"].to(start) * (s["basis"].to(basis) @ z)) for s in (one, other))
    return bool(torch.linalg.vector_norm(first - second) <= 1e-3 * float(start.max()) * torch.linalg.vector_norm(z))
