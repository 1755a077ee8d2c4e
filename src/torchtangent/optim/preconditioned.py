"""What KFAC and EKFAC share as optimizers: the loop of a step, from recorded factors to moved parameters."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtangent.curvature.cotangents import LIKELIHOODS, check_choice
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import TangentWarning
from torchtangent.jacobians.modes import unwrapped
from torchtangent.jacobians.select import Params
from torchtangent.optim.directions import NotFinite, Step, directions
from torchtangent.optim.groups import as_groups, check_group
from torchtangent.optim.method import Method, State
from torchtangent.optim.plan import Plan
from torchtangent.optim.ranks import Ranks
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.sampling import checked, sampled_pass
from torchtangent.optim.update import move, trust
from torchtangent.optim.witness import Witness, rounding


class Options(TypedDict, total=False):
    """What every preconditioned optimizer takes besides `model`, `lr` and `damping`; see `Preconditioned`."""

    params: Any
    basis_every: int
    sua: bool
    rest: str
    loss: str
    curvature: str
    likelihood: str | None
    momentum: float
    weight_decay: float
    decoupled: bool
    kl_clip: float | None
    scaler: Any
    seed: int


class Preconditioned(Optimizer):
    """θ ← θ − η (F + ε)⁻¹ ∇ with a block of F for each layer, in `zero_grad(); loss.backward(); step()`.

    Args:
        model: The network. Its layers carry hooks until `close()`.
        lr: Learning rate η.
        damping: ε.
        method: What is done with the layers' second moments.
        params: Which parameters: patterns or a predicate (as in `tt.jacobian`), or tensors or groups as in torch.
        basis_every: Steps between two decompositions.
        sua: Take the taps of convolutions as uncorrelated: smaller input factors, over channels only.
        rest: What is no matrix of a linear map (norm layers, embeddings): "diagonal" or "plain" gradient.
        loss: Whether the loss is a "mean" or a "sum" over samples; the step is the same for both. With gradient
            accumulation "mean" is the mean over all samples since the last step.
        curvature: "empirical" (per-sample gradients of the loss) or "sampled" (labels drawn from the model; needs
            `likelihood`, and `step` a closure).
        likelihood: "categorical", "bernoulli" or "gaussian", for sampled curvature.
        momentum: μ in m ← μ m + u, θ ← θ − η m.
        weight_decay: ω: ∇ + ωθ is preconditioned, or, if `decoupled`, θ is multiplied by 1 − ηω.
        kl_clip: κ: the step is shortened to η² uᵀ∇ ≤ κ, about twice the KL divergence that it causes.
        scaler: The `torch.amp.GradScaler` of the loop, if there is one.
        seed: Of the sampled labels.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        damping: float,
        method: Method,
        *,
        params: Params | Iterable[Any] = None,
        basis_every: int = 50,
        sua: bool = False,
        rest: str = "diagonal",
        loss: str = "mean",
        curvature: str = "empirical",
        likelihood: str | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        kl_clip: float | None = None,
        scaler: Any = None,
        seed: int = 0,
    ) -> None:
        check_choice("rest", rest, ("diagonal", "plain"))
        check_choice("loss", loss, ("mean", "sum"))
        check_choice("curvature", curvature, ("empirical", "sampled"))
        if curvature == "sampled":
            check_choice("likelihood", str(likelihood), LIKELIHOODS)
        if basis_every < 1:
            raise ValueError(f"basis_every={basis_every}: the number of steps between decompositions is at least 1.")
        if kl_clip is not None and not kl_clip > 0:
            raise ValueError(f"kl_clip={kl_clip}: it should be positive, or None for no clipping.")
        self.method, self.ranks = method, Ranks(model)
        self.model = unwrapped(model)
        self.names = {id(p): name for name, p in self.model.named_parameters()}
        self.basis_every, self.sua, self.rest = basis_every, sua, rest
        self.loss, self.curvature, self.likelihood, self.seed = loss, curvature, likelihood, seed
        self.decoupled, self.kl_clip, self.scaler = decoupled, kl_clip, scaler
        self.steps = 0  # steps taken
        self.skipped = 0  # steps not taken, because something was not finite
        self.recorder = Recorder()
        self.plan = Plan()
        self._expected: Tensor | None = None  # uᵀ∇ of the last step, scaled as it was taken
        self._ready = False
        defaults = {"lr": lr, "damping": damping, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(as_groups(self.model, params), defaults)
        self._ready = True
        self._prepare()
        # Hooks know the recorder only: an optimizer that is thrown away takes them along.
        weakref.finalize(self, self.recorder.close)

    # The face of a torch optimizer.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, with their own `lr`, `damping`, `momentum` or `weight_decay`."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group, self.names)
        except ValueError:
            self.param_groups.pop()
            raise
        if self._ready:
            self._prepare()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients and what was recorded with them."""
        super().zero_grad(set_to_none)
        self.recorder.clear()

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.recorder.close()

    def explain(self) -> str:
        """How each parameter is preconditioned, one line each."""
        return self.plan.explain(self.method.kind, self._params)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on besides parameters and data."""
        found = super().state_dict()
        found["progress"] = {"steps": self.steps, "skipped": self.skipped, "plain": dict(self.plan.plain)}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if "progress" not in state_dict:
            raise ValueError(
                f"This is no state of {self.method.kind}: it has no 'progress'. Save it with opt.state_dict()."
            )
        super().load_state_dict(state_dict)
        progress = state_dict["progress"]
        self.steps, self.skipped = progress["steps"], progress["skipped"]
        for name, why in progress["plain"].items():
            if name not in self.plan.plain:
                self.plan.demote(name, why)
        self._group = {self.names[id(p)]: group for group in self.param_groups for p in group["params"]}
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for key, p in zip(keys, params, strict=True):  # torch rounds states to the dtype of the parameter
            self.state[p].update({k: t.to(p.device, copy=True) for k, t in state_dict["state"].get(key, {}).items()})
        if self.steps:
            self.recorder.dismiss()
        self.recorder.clear()
        self._schedule()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters, all or (if anything is not finite) none.

        Args:
            closure: With empirical curvature optional, as in torch: clears gradients, calls `backward`, returns the
                loss. With sampled curvature it returns (loss, outputs) and leaves `backward` to this method.

        Returns:
            The loss that the closure gave.
        """
        if not self.recorder.attached:
            raise RuntimeError(f"This {self.method.kind} was closed: its hooks are gone. Make a new one.")
        loss = self._evaluate(closure)
        with torch.no_grad():
            self._step(loss)
            self.recorder.clear()
            self._schedule()
        return loss

    def adapt(self, before: float, after: float, omega: float = 0.95) -> float:
        """Levenberg–Marquardt: change the damping by how well the last step was predicted; returns the ratio.

        ρ = (before − after) / (η − η²/2) uᵀ∇ compares the loss on one batch before and after the step with its
        quadratic model. The damping is multiplied by ω if ρ > ¾ and divided by it if ρ < ¼ (Martens, 2010; momentum
        counts as zero).
        """
        if self._expected is None:
            raise RuntimeError("adapt() compares the loss before and after a step: call it after step().")
        ratio = float((before - after) / self._expected)
        factor = omega if ratio > 0.75 else 1 if ratio >= 0.25 else 1 / omega
        for group in self.param_groups:
            group["damping"] *= factor
        return ratio

    # A step, in the order in which things happen.

    def _prepare(self) -> None:
        """Plan, hooks and schedule for the parameters of all groups."""
        chosen = {id(p) for group in self.param_groups for p in group["params"]}
        self._group = {self.names[id(p)]: group for group in self.param_groups for p in group["params"]}
        self._params = {name: p for name, p in self.model.named_parameters() if id(p) in chosen}
        names = {key: name for key, name in self.names.items() if key in chosen}
        self.plan = Plan.of(self.model, names, sua=self.sua, rest=self.rest)
        self.recorder.attach(self.model, self.plan.modules, {name: self._params[name] for name in self.plan.homes})
        self._schedule()

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        if self.curvature == "empirical":
            if closure is None:
                return None
            with torch.enable_grad():
                found = closure()
            return found[0] if isinstance(found, tuple) else found
        with torch.enable_grad():
            loss, outputs = checked(closure)
            self.recorder.clear()
            grads = sampled_pass(
                outputs, list(self._params.values()), str(self.likelihood), self.seed + self.steps + self.skipped
            )
            if self.recorder.witness is not None:  # what the loss sends back is not what was recorded
                self.recorder.witness.close()
                self.recorder.witness.total = {k: g for k, g in zip(self._params, grads, strict=True) if g is not None}
            wanted, self.recorder.wanted = self.recorder.wanted, frozenset()
            try:
                loss.backward()
            finally:
                self.recorder.wanted = wanted
        return loss

    def _step(self, loss: Any) -> None:
        n = self.recorder.samples
        grads = {name: _readable(p.grad) for name, p in self._params.items() if p.grad is not None}
        if not grads:
            return
        bad = _not_finite([*grads.items(), *([("loss", loss)] if isinstance(loss, Tensor) else [])])
        if bad:
            return self._skip(f"the {'loss' if bad == 'loss' else f'gradient of {bad}'} has NaN or infinity")
        if n == 0 and (self.plan.modules or self.loss == "sum"):
            raise RuntimeError(
                f"{self.method.kind} saw no backward pass through the model since the last step, yet there are "
                "gradients. Call the model that it was made with (no compiled or replicated copy), and backward after "
                "zero_grad()."
            )
        n = max(n, 1)  # nothing was to be recorded
        total = self.ranks.count(n, next(iter(grads.values())))
        if self.loss == "sum":  # DistributedDataParallel has already divided by the number of ranks
            grads = {name: g * (self.ranks.size / total) for name, g in grads.items()}
        seen = self._per_sample(grads)
        full = grads
        if not self.decoupled and any(group["weight_decay"] for group in self.param_groups):
            full = {k: g.add(self._params[k], alpha=self._group[k]["weight_decay"]) for k, g in grads.items()}
        step = Step(
            grads,
            full,
            seen,
            {name: self._state_of(name) for name in self.plan.homes},
            {name: group["damping"] for name, group in self._group.items()},
            total,
            n / total,
            self._cotangent_scale(n),
            self.steps % self.basis_every == 0,
        )
        try:
            found, states = directions(self.plan, self.method, step, self.ranks)
            bad = _not_finite([*found.items(), *((k, s["values"]) for k, s in states.items() if "values" in s)])
        except NotFinite as error:
            bad = str(error)
        if bad:
            return self._skip(f"the preconditioned gradient of {bad} has NaN or infinity")
        self._move(found, states, grads)
        self.steps += 1

    def _per_sample(self, grads: Mapping[str, Tensor]) -> dict[str, list[LayerJacobian]]:
        """Factored per-sample gradients by parameter, a list over backward passes, up to one common factor."""
        seen: dict[str, list[LayerJacobian]] = {}
        before = set(self.plan.plain)
        batches = [self.plan.jacobians(batch) for batch in self.recorder.batches]
        for batch in batches:
            for name, jacobian in batch.items():
                seen.setdefault(name, []).append(jacobian)
        for name in self.plan.homes:
            missing = (
                name in grads and name not in seen and not self.plan.paths([name]).isdisjoint(self.recorder.wanted)
            )
            if missing and bool(grads[name].any()):
                path = self.plan.homes[name][0][0]
                raise RuntimeError(
                    f"{name} has a gradient, but the input of its layer '{path}' was never seen: the model uses the "
                    "weight without calling the layer. Call the layer, or leave the parameter to another optimizer "
                    "with params=."
                )
        if self.recorder.witness is not None:
            self._verify(self.recorder.witness, seen)
            self.recorder.dismiss()
        for name in self.plan.plain.keys() - before:
            warnings.warn(f"{name} keeps its plain gradient: {self.plan.plain[name]}.", TangentWarning, stacklevel=4)
        return {name: jacobians for name, jacobians in seen.items() if name not in self.plan.plain}

    def _verify(self, witness: Witness, seen: Mapping[str, list[LayerJacobian]]) -> None:
        """On the first step: do the factors add up to the gradient?"""
        uses = [use for batch in self.recorder.batches for each in batch.uses.values() for use in each]
        allowed = rounding({use.d.dtype for use in uses} | {p.dtype for p in self._params.values()})
        for name, jacobians in seen.items():
            if name in self.plan.homes and witness.denies(name, jacobians, allowed):
                self.plan.demote(name, "what its layer recorded is not its whole gradient")

    def _move(self, found: Mapping[str, Tensor], states: Mapping[str, State], raw: Mapping[str, Tensor]) -> None:
        """Write states and parameters."""
        curved = {name: u for name, u in found.items() if name not in self.plan.plain}
        rates = {name: float(self._group[name]["lr"]) for name in curved}
        shrink, self._expected = trust(curved, raw, rates, self.kl_clip)
        for name, state in states.items():
            self.state[self._params[name]].update(state)
        for name, u in found.items():
            p = self._params[name]
            u = u if shrink is None else u * shrink
            move(p, u.to(p.dtype), self._group[name], self.state[p], decoupled=self.decoupled)

    # Small things.

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self._expected = None
        warnings.warn(
            f"{self.method.kind}: step skipped, {why} (skipped so far: {self.skipped}). Parameters are as before.",
            TangentWarning,
            stacklevel=5,
        )

    def _cotangent_scale(self, n: int) -> float:
        """What makes recorded cotangents those of each sample's own loss."""
        if self.curvature == "sampled":
            return 1.0
        amp = float(self.scaler.get_scale()) if self.scaler is not None else 1.0
        return (n if self.loss == "mean" else 1) / amp

    def _state_of(self, name: str) -> State:
        state = self.state.get(self._params[name], {})
        return {key: value for key, value in state.items() if key != "momentum"}

    def _schedule(self) -> None:
        """Which layers the next backward pass has to record."""
        if self.method.fresh or self.steps % self.basis_every == 0:
            self.recorder.wanted = frozenset(self.plan.modules)
            return
        names = [layer.weight for layer in self.plan.layers] + self.plan.diagonal
        self.recorder.wanted = frozenset(self.plan.paths([name for name in names if not self._state_of(name)]))


def _not_finite(tensors: Sequence[tuple[str, Tensor]]) -> str | None:
    """The name of a tensor with NaN or infinity; one transfer from the device if there is none."""
    finite = [torch.isfinite(t).all() for _, t in tensors]
    if bool(torch.stack(finite).all()):
        return None
    return next(name for (name, _), fine in zip(tensors, finite, strict=True) if not bool(fine))


def _readable(grad: Tensor) -> Tensor:
    """Dense, and never below float32."""
    grad = grad.to_dense() if grad.is_sparse else grad
    return grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
