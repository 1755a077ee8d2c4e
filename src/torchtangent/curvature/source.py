"""The one loop over data: batches in, layer Jacobians out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchtangent.curvature.cotangents import IGNORED, Cotangents
from torchtangent.curvature.data import Batch, Batches
from torchtangent.curvature.losses import LossCotangents
from torchtangent.curvature.representation import Layers
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Inputs, map_leaves

_MANY = 256  # cotangents per sample above which a warning advises to sample
_ADVICE = {
    "exact": 'kind="sampled" estimates it with one for each of `samples` draws, and tt.Implicit does without them.',
    "loss": "tt.Implicit does without them.",
}
_TRACE = 16 << 20  # on a CPU, bytes of activations and factors at a time (see Capture.budget): what its caches hold
_FEW = 96  # samples: with fewer at a time, a CPU spends most time on calls, so up to twice the bytes are allowed
_LOOK = _TRACE // 8  # where no factors are wanted, so that to look takes less than a product
_KEPT = 96 << 20  # bytes of factors that are kept for a second pass instead of being captured again


class LayerSource:
    """Layer Jacobians of all the data, pulled back from the chosen cotangents, a few samples at a time.

    With `keep`, factors are kept for the next pass while they are small, instead of being captured again.
    """

    def __init__(self, capture: Capture, batches: Batches, cotangents: Cotangents | LossCotangents) -> None:
        self.capture, self.batches, self.cotangents = capture, batches, cotangents
        self.keep = False
        self.samples = 0
        self._kept: list[tuple[Layers, bool]] = []

    def __iter__(self) -> Iterator[tuple[Layers, bool]]:
        """Layer Jacobians, and whether they are of the same samples as the last ones, with other cotangents."""
        if self._kept:
            yield from self._kept
            return
        self.samples, held = 0, 0
        pull = self.cotangents.start()
        for x, y in self._pieces(self._size):
            trace = self.capture.trace(map_leaves(Tensor.clone, x) if self.keep else x)  # a loader may reuse its buffer
            if self.samples == 0:
                self._check_likelihood(trace.outputs, y)
            self.samples += len(trace.outputs)
            parts = self.cotangents.apart(pull(trace.outputs, y), self.capture.cotangents_within(_TRACE))
            part, again = next(parts, None), False
            while part is not None:
                layers = trace.pull(part), again
                part, again = next(parts, None), True
                if part is None:
                    del trace  # to free its memory before the layers are used
                if self.keep:
                    held += _bytes_of(layers[0])
                    self._kept.append(layers)
                    if held > self.capture.budget(_KEPT):
                        self.keep, self._kept = False, []
                yield layers
                del layers

    def look(self) -> None:
        """Check all the data now, so that errors are not raised only at the first product with an implicit operator."""
        self.batches.repeat = True
        weigh = self.cotangents.weigh()
        for i, (x, y) in enumerate(self._pieces(self._size_of_products)):
            f = self.capture.outputs(x)
            weigh(f, y)
            if i == 0:
                self._check_likelihood(f, y)

    def _pieces(self, size: Callable[[Inputs], int]) -> Iterator[Batch]:
        """The data, some samples at a time; warns if no term of it counts."""
        counted = False
        for x, y in self.batches.pieces(size):
            counted = counted or self.cotangents.count_some(y)
            yield x, y
        if not counted:
            self.capture.say_once(
                "nothing",
                f"All targets are {IGNORED}, the class of terms that do not count, so the Fisher matrix is zero. Pass "
                "classes, or None instead of the targets if they are not needed.",
            )

    def _check_likelihood(self, f: Tensor, y: Any) -> None:
        """Warn if outputs taken as logits look like probabilities, or targets taken as classes are real numbers."""
        if self.cotangents.likelihood != "categorical":
            return
        if bool((f >= 0).all()) and bool((f.sum(-1) - 1).abs().max() < 1e-3):
            self.capture.say_once(
                "probabilities",
                "likelihood='categorical' takes logits, but the outputs are probabilities (not negative, and they sum "
                "to one): leave out the softmax.",
            )
        if isinstance(y, Tensor) and y.is_floating_point() and not bool(((y >= 0) & (y <= 1)).all()):
            self.capture.say_once(
                "real targets",
                "likelihood='categorical' is that of classes, but the targets are real numbers: for a regression pass "
                "likelihood='gaussian'.",
            )

    def _size(self, x: Inputs) -> int:
        """How many samples are captured at a time; warns if each takes many backward passes."""
        self.capture.look_at_two(x)  # batches of one sample and of several give factors of the same form
        self.capture.check(x)
        many = self.cotangents.count(self.capture.output_shape)
        if many > _MANY and self.cotangents.kind in _ADVICE:
            self.capture.say_once(
                "many",
                f"The matrix of outputs {tuple(self.capture.output_shape)} takes {many:,} backward passes for each "
                f"sample. {_ADVICE[self.cotangents.kind]}",
            )
        fit = self.capture.samples_within(_TRACE, many)
        if fit < _FEW and self.capture.device.type == "cpu":
            fit = min(_FEW, self.capture.samples_within(2 * _TRACE, many))
        return fit

    def _size_of_products(self, x: Inputs) -> int:
        """How many samples at a time where no layer Jacobians are wanted."""
        self.capture.look(x)
        return self.capture.samples_within(_LOOK, 1)


def _bytes_of(layers: Layers) -> int:
    """What layer Jacobians hold; tensors that several share count once."""
    tensors = [t for layer in layers.values() for t in vars(layer).values() if isinstance(t, Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
