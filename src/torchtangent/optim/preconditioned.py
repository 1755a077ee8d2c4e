"""What KFAC and EKFAC share: the interface of a torch optimizer, and the order of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtangent.jacobians.modes import unwrapped
from torchtangent.jacobians.select import Params
from torchtangent.notice import warn
from torchtangent.operators.autocast import no_autocast
from torchtangent.optim.amp import Scales, scales
from torchtangent.optim.attempt import Update, attempt
from torchtangent.optim.checkpoint import Checkpoint, options_of
from torchtangent.optim.closure import as_number, evaluate, evaluate_again
from torchtangent.optim.damping import Adaptive
from torchtangent.optim.directions import Step
from torchtangent.optim.gather import gather
from torchtangent.optim.groups import as_groups, as_tensors, by_name, check_group
from torchtangent.optim.method import BlockState, Method
from torchtangent.optim.notices import Notices
from torchtangent.optim.options import Settings
from torchtangent.optim.partition import Partition
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.renewals import Renewals
from torchtangent.optim.replay import Replay
from torchtangent.optim.replicas import Replicas
from torchtangent.optim.update import Promise, move, slow_momentum

_RANKS_APART = 1_000_003  # between the seeds of two ranks, so that they draw different labels


class Preconditioned(Optimizer):
    """θ ← θ − η (F + ε)⁻¹ ∇ with one block of F per layer, used as `zero_grad(); loss.backward(); step()`.

    Gradients are used as `step` finds them, clipped or not. Frozen parameters do not move. All arguments but `method`
    are explained in `EKFAC`.

    Args:
        method: What to do with the second moments of each layer: the difference between KFAC and EKFAC.

    Attributes:
        steps: Number of steps taken.
        skipped: Number of steps not taken because something was not finite.
        clipped: Number of steps that `kl_clip` shortened.
    """

    # Asks GradScaler to leave its scale in the gradients: it is in the recorded cotangents, too.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        damping: float | Adaptive,
        method: Method,
        *,
        params: Params | Iterable[Any] = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **settings: Any,
    ) -> None:
        self.settings = Settings.of(method.kind, settings)
        self.method, self.replicas = method, Replicas(model)
        self.model = unwrapped(model)
        self.adaptive = damping if isinstance(damping, Adaptive) else None
        self.steps = self.skipped = 0
        self._clipped: int | Tensor = 0  # counted on the device, which nobody then waits for
        self.recorder, self.partition, self.notices = Recorder(), Partition(), Notices(method.kind)
        self._replay = Replay()
        self._blocks: dict[str, tuple[str, ...]] = {}  # the parameters of every block there has been
        self._rates: list[float] = []  # learning rates of the groups at the last step
        self._renewals = Renewals(self.settings.basis_every)
        start = damping.start if isinstance(damping, Adaptive) else damping
        defaults = {"lr": lr, "damping": start, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(as_groups(params), defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("params is empty: there is nothing to optimize. Leave it out for all that is trainable.")
        self._prepare()
        # The hooks refer to the recorder only, so the optimizer can be garbage-collected, and removes them then.
        weakref.finalize(self, self.recorder.close)
        self.recorder.follow = weakref.WeakMethod(self._follow)

    # The interface of a torch optimizer.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, with an `lr`, `damping`, `momentum` or `weight_decay` of their own."""
        super().add_param_group({**param_group, "params": as_tensors(self.model, param_group["params"])})
        try:
            check_group(self.param_groups[-1], self._names(), [*vars(self.settings), *self.method.options()])
        except ValueError:
            self.param_groups.pop()
            raise
        if self.recorder.attached:
            self._prepare()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and what was recorded along with them."""
        super().zero_grad(set_to_none)
        self.recorder.clear()
        self._follow()

    @property
    def clipped(self) -> int:
        return int(self._clipped)

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.recorder.close()

    def explain(self) -> str:
        """Say how each parameter is preconditioned, a line each, and how many steps `kl_clip` shortened."""
        lines = self.partition.explain(self.method.kind, self._chosen)
        if self.settings.kl_clip is None or not self.clipped:
            return lines
        held = "" if self.clipped < self.steps else ", so that their length is set by it and not by lr"
        return f"{lines}\nkl_clip={self.settings.kl_clip:g} shortened {self.clipped} of {self.steps} steps{held}"

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{self.method.kind} cannot be copied or pickled: it lives with the hooks on its model. Make a new one for "
            "the copied model, and load_state_dict(opt.state_dict())."
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything besides parameters and data that later steps depend on, including the optimizer's options."""
        saved = Checkpoint(
            kind=self.method.kind,
            options=options_of(self.settings, self.method, self.adaptive),
            steps=self.steps,
            skipped=self.skipped,
            clipped=self.clipped,
            unseen=dict(self.partition.unseen),
            thin=sorted(self._renewals.thin),
            due=sorted(self._renewals.due),
            rates=list(self._rates),
            blocks={key: list(names) for key, names in self._blocks.items() if self._state_of(key)},
        )
        return {**super().state_dict(), "progress": vars(saved)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of an optimizer that was created with the same options."""
        self._follow()
        options = options_of(self.settings, self.method, self.adaptive)
        saved = Checkpoint.of(state_dict, self.method.kind, options)
        saved.check_blocks(self._blocks)
        super().load_state_dict(state_dict)
        self._blocks.update({key: tuple(names) for key, names in saved.blocks.items()})
        self.steps, self.skipped, self._clipped = saved.steps, saved.skipped, saved.clipped
        self._renewals.thin, self._renewals.due = frozenset(saved.thin), frozenset(saved.due)
        self._rates = list(saved.rates)
        self.partition.keep_unseen(saved.unseen)
        self._group = by_name(self.param_groups, self._names())
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for key, p in zip(keys, params, strict=True):  # torch has rounded them to the parameter's dtype
            self.state[p].update({k: t.to(p.device, copy=True) for k, t in state_dict["state"].get(key, {}).items()})
        if self.recorder.samples and any(p.grad is not None for p in params):
            warn(
                f"{self.method.kind}: a state was loaded between a backward pass and step(). What was recorded of that "
                "pass is gone, but its gradients are there: call zero_grad() before the next."
            )
        self.recorder.clear()
        self._prepare_recorder()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters, or none if anything is not finite.

        Args:
            closure: With empirical curvature, optional, as in torch: it clears the gradients, calls `backward` and
                returns the loss. With sampled curvature it returns (loss, outputs) and does not call `backward`.

        Returns:
            The loss that the closure returned, if there is one.
        """
        if not self.recorder.attached:
            raise RuntimeError(f"This {self.method.kind} was closed: its hooks are gone. Make a new one.")
        if self.adaptive is not None and closure is None:
            raise ValueError("damping=Adaptive(...) compares the loss before and after a step: call step(closure).")
        if self.adaptive is not None and any(group["momentum"] for group in self.param_groups):
            raise ValueError(
                "damping=Adaptive(...) compares the fall of the loss with what the model of this step promised, and "
                "momentum adds that of earlier steps: the damping would shrink without end. Pass momentum=0, or a "
                "number for the damping."
            )
        with scales(self, self.settings.scaler) as amp:
            seed = self.settings.seed + self.steps + self.skipped + self.replicas.rank * _RANKS_APART
            loss = evaluate(closure, self.recorder, self._params, self.settings, seed)
            with torch.no_grad(), no_autocast():
                promise = self._step(loss, amp)
                self.recorder.clear(done=True)
                self._follow()
                self._prepare_recorder()
            if promise is not None and self.adaptive is not None and self.steps % self.adaptive.every == 0:
                assert closure is not None
                after = evaluate_again(closure, self.recorder, self.model, self.settings)
                ratio = promise.ratio(as_number(loss), after, self.replicas, next(iter(self._params.values())))
                for group in self.param_groups:
                    group["damping"] *= self.adaptive.change(ratio, clipped=promise.clipped)
        return loss

    # One step, in the order in which things happen.

    def _prepare(self) -> None:
        """Make partition, hooks and schedule for the parameters of all groups, as far as they are not frozen."""
        chosen = {id(p) for group in self.param_groups for p in group["params"]}
        self._chosen = {name: p for name, p in self.model.named_parameters() if id(p) in chosen}
        self._group = by_name(self.param_groups, self._names())
        self._params = {name: p for name, p in self._chosen.items() if p.requires_grad}
        names, unseen = {id(p): name for name, p in self._params.items()}, self.partition.unseen
        self.partition = Partition.of(self.model, names, sua=self.settings.sua, rest=self.settings.rest)
        self.partition.keep_unseen(unseen)
        self.notices.ruleless(self.partition.ruleless, len(self._params), self.partition.fallback)
        for layer in self.partition.layers:
            if self._blocks.setdefault(layer.key, layer.names) != layer.names:  # a parameter joined or left it
                self._blocks[layer.key] = layer.names
                self._forget_state(layer.key)
            if "left" not in self._state_of(layer.key):  # left over from a partition without this block
                self._forget_state(layer.key)
            if len({self._group[name]["damping"] for name in layer.names}) > 1:
                self.notices.one_damping(layer.names)
        homes = {name: self._params[name] for name in self.partition.homes}
        self.recorder.attach(self.model, self.partition.modules, homes, self.settings.batch_axis)
        self._prepare_recorder()

    def _follow(self) -> None:
        """Divide the parameters again if parameters were frozen or unfrozen."""
        if self.recorder.attached and [n for n, p in self._chosen.items() if p.requires_grad] != list(self._params):
            self._prepare()

    def _follow_moves(self) -> None:
        """Keep states in the dtype and on the device of their parameters: `model.double()` moves only these."""
        for p, state in self.state.items():
            dtype = torch.promote_types(p.dtype, torch.float32)
            if any(t.dtype != dtype or t.device != p.device for t in state.values()):
                state.update({key: t.to(p.device, dtype) for key, t in state.items()})

    def _step(self, loss: Any, amp: Scales) -> Promise | None:
        """Compute and apply an update; returns what it promised, None if the parameters did not move."""
        self.recorder.settle()
        self._follow_moves()
        grads = self._gradients(amp)
        if not grads:
            return None
        n = self._samples()
        total = self.replicas.sum(n, next(iter(grads.values())))
        if self.settings.loss == "sum":  # DistributedDataParallel has already divided by the number of ranks
            grads = {name: g * (self.replicas.size / total) for name, g in grads.items()}
        full = grads
        if not self.settings.decoupled and any(group["weight_decay"] for group in self.param_groups):
            full = {k: g.add(self._params[k], alpha=self._group[k]["weight_decay"]) for k, g in grads.items()}
        own = n if self.settings.loss == "mean" else 1  # from a sample's part of the loss to its own
        unit = 1 / (self.replicas.size if self.settings.loss == "mean" else total)
        unseen, blocks = set(self.partition.unseen), self.partition.blocks
        known = {name for names in blocks if self._state_of(names[0]) for name in names}
        per_sample = gather(self.partition, self.recorder, grads, known, self.notices, self.replicas)  # may demote some
        for name in self.partition.unseen.keys() - unseen:
            self._forget_state(name)
        step = Step(
            raw=grads,
            full=full,
            per_sample=per_sample,
            whole=self.settings.curvature == "empirical" and self.replicas.size == 1,
            states={name: self._state_of(name) for name in (*self.partition.homes, *self.partition.unseen)},
            groups=self._group,
            replicas=self.replicas,
            n=total,
            share=n / total,
            scale=1.0 if self.settings.curvature == "sampled" else own / amp.cotangents,
            renew=self._renewals.due,
        )
        self._renewals.find_thin(self.steps, self.partition, step)
        update = attempt(self.partition, self.method, step, self._replay, loss)
        if isinstance(update, str):
            self.skipped += 1
            if not amp.searching:  # a GradScaler overflows while it looks for its scale
                self.notices.skipped(update, self.skipped)
            return None
        self._renewals.done(step)
        return self._write(update, unit)

    def _gradients(self, amp: Scales) -> dict[str, Tensor]:
        """The gradients of the parameters to be moved; a warning if some or all will not move."""
        present = {name: p.grad for name, p in self._chosen.items() if p.requires_grad and p.grad is not None}
        self.notices.late(name for name in present if name not in self._params)
        grads = {name: amp.readable(present[name]) for name in self._params if name in present}
        if self._params and not grads:
            self.notices.no_gradients()
        return grads

    def _samples(self) -> int:
        """The number of samples behind the gradients on this rank."""
        n = self.recorder.samples
        if n == 0 and (self.partition.modules or self.settings.loss == "sum"):
            raise RuntimeError(
                f"{self.method.kind} saw no backward pass through the model since the last step, yet there are "
                "gradients. Call the model that it was made with (no copy; one that was compiled and called before the "
                "optimizer was made does not know its hooks) with at least one sample, and backward after zero_grad()."
            )
        return n or self.recorder.opened or 1  # there was nothing to record

    def _write(self, update: Update, unit: float) -> Promise:
        """Write the new states and parameters; returns what they promised.

        A loss times `unit`, summed over ranks, is the mean over all samples.
        """
        found, clip = update.found, self.settings.kl_clip
        shrink = None if clip is None else update.slopes.shrink(clip)
        if shrink is not None:
            torch._foreach_mul_(list(found.values()), shrink)
            self._clipped = self._clipped + (shrink < 1)
        for name, state in update.states.items():
            self.state[self._params[name]].update(state)
        states = {name: self.state[self._params[name]] for name in found}
        if clip is not None:
            slow_momentum(self.param_groups, self._rates, self.state)
        self._rates = [float(group["lr"]) for group in self.param_groups]
        move(self._params, found, self._group, states, decoupled=self.settings.decoupled)
        self.steps += 1
        return Promise(update.slopes, shrink, unit)

    # Helpers.

    def _names(self) -> dict[int, str]:
        """The names of the model's parameters by their ids."""
        return {id(p): name for name, p in self.model.named_parameters()}

    def _state_of(self, name: str) -> BlockState:
        """What is kept of the block whose first parameter this is."""
        state = self.state.get(self._chosen[name], {})
        return {key: value for key, value in state.items() if key != "momentum"}

    def _forget_state(self, name: str) -> None:
        """Drop the state of a block. The momentum stays: it belongs to the parameter alone."""
        state = self.state.get(self._chosen[name], {})
        for key in set(state) - {"momentum"}:
            del state[key]

    def _prepare_recorder(self) -> None:
        """Tell the recorder which layers the next backward pass has to record."""
        self._renewals.prepare(self.steps, self.partition, self.recorder, self._state_of, fresh=self.method.fresh)
