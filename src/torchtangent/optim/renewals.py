"""Which blocks are renewed next, and so which layers the next backward pass has to record."""

from __future__ import annotations

from collections.abc import Callable

from torchtangent.optim.directions import Step
from torchtangent.optim.method import BlockState
from torchtangent.optim.partition import Partition
from torchtangent.optim.recorder import Recorder


class Renewals:
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
        self,
        steps: int,
        partition: Partition,
        recorder: Recorder,
        state_of: Callable[[str], BlockState],
        *,
        fresh: bool,
    ) -> None:
        """Tell the recorder which layers to record in the next step, and which gradients to check.

        Args:
            steps: Number of steps taken.
            partition: The blocks.
            recorder: Is told.
            state_of: What is kept of a block, given its first parameter; empty before its first decomposition.
            fresh: Whether every layer has to be recorded at every step.
        """
        blocks = [layer.names for layer in partition.layers] + [(name,) for name in partition.diagonal]
        if steps % self._every == 0:
            self.due = frozenset(names[0] for names in blocks)
        needed = [name for names in blocks if names[0] in self.due or not state_of(names[0]) for name in names]
        recorder.witness.watch(needed)
        recorder.wanted = frozenset(partition.modules if fresh else partition.paths(needed))
        thin = [name for layer in partition.layers if layer.key in self.thin for name in layer.names]
        recorder.welcome = frozenset(partition.paths(thin)) - recorder.wanted

    def find_thin(self, steps: int, partition: Partition, step: Step) -> None:
        """Before decompositions are renewed, look which blocks are thin in this step."""
        if steps % self._every == 0:
            self.thin = frozenset(layer.key for layer in partition.layers if step.whole and layer.thin(step.per_sample))

    def done(self, step: Step) -> None:
        """The blocks that samples of this step went through are no longer due."""
        self.due = frozenset(name for name in self.due if not step.seen(name))
