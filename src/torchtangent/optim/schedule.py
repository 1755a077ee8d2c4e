"""Which blocks are renewed next, and so which layers the next backward pass has to record."""

from __future__ import annotations

from collections.abc import Callable

from torchtangent.optim.directions import Step
from torchtangent.optim.method import State
from torchtangent.optim.plan import Plan
from torchtangent.optim.recorder import Recorder


class Schedule:
    """The blocks to decompose, all of them every few steps.

    Args:
        every: Number of steps between two decompositions.

    Attributes:
        due: Blocks to decompose as soon as samples go through them.
        thin: Blocks cheaper to precondition sample by sample than as a matrix.
    """

    def __init__(self, every: int) -> None:
        self.due: frozenset[str] = frozenset()
        self.thin: frozenset[str] = frozenset()
        self._every = every

    def prepare(
        self, steps: int, plan: Plan, recorder: Recorder, state_of: Callable[[str], State], *, fresh: bool
    ) -> None:
        """Tell the recorder which layers to record in the next step, and which gradients to check.

        Args:
            steps: Number of steps taken.
            plan: The blocks.
            recorder: Is told.
            state_of: What is kept of a block, given its first parameter; empty before its first decomposition.
            fresh: Whether every layer has to be recorded at every step.
        """
        blocks = [layer.names for layer in plan.layers] + [(name,) for name in plan.diagonal]
        if steps % self._every == 0:
            self.due = frozenset(names[0] for names in blocks)
        needed = [name for names in blocks if names[0] in self.due or not state_of(names[0]) for name in names]
        recorder.witness.watch(needed)
        recorder.wanted = frozenset(plan.modules if fresh else plan.paths(needed))
        thin = [name for layer in plan.layers if layer.key in self.thin for name in layer.names]
        recorder.welcome = frozenset(plan.paths(thin)) - recorder.wanted

    def find_thin(self, steps: int, plan: Plan, step: Step) -> None:
        """Before decompositions are renewed, look which blocks are thin in this step."""
        if steps % self._every == 0:
            self.thin = frozenset(layer.key for layer in plan.layers if step.whole and layer.thin(step.passes))

    def done(self, step: Step) -> None:
        """The blocks that samples of this step went through are no longer due."""
        self.due = frozenset(name for name in self.due if not step.seen(name))
