"""`TangentProbe`: the tangent kernel and related quantities, measured while a network trains."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import nn

from torchtangent.complexity.fixed import kept, kept_inputs
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.modes import unwrapped
from torchtangent.jacobians.select import Params, select
from torchtangent.probe import callbacks
from torchtangent.probe.measures import choose
from torchtangent.probe.observer import Observer
from torchtangent.probe.overlap import check_apart
from torchtangent.probe.schedule import Steps, schedule
from torchtangent.probe.state import View
from torchtangent.probe.writers import Record, as_writers


class TangentProbe:
    """Measures of a network on a fixed probe set, taken at chosen steps of its training.

    Create it before training: later states of the network are compared with the one at this moment. The probe measures
    in eval mode, with BatchNorm's running statistics, and leaves the model, its gradients and the random state as they
    are: training goes on as it would without the probe.

    A record is a dict of `step`, `seconds` (its cost), `finite`, and one or more numbers for every measure:

    | key | |
    |---|---|
    | `spectrum/max`, `/mean`, `/2`, `/5`, … | eigenvalues of the kernel centred per class |
    | `effective_rank`, `trace_ratio/40`, … | of the same kernel |
    | `cka`, `cka/<module>` | centred alignment with the labels, of the kernel and of the kernel of each layer |
    | `kernel_alignment` | ⟨K, K₀⟩ / ‖K‖‖K₀‖ with the kernel at the start, uncentred |
    | `representation_alignment`, `/features` | the same for the last layer's input: Gram matrices, second moments |
    | `sign_similarity` | the fraction of ReLU outputs that are on or off as they were at the start |
    | `distance/l2`, `/cosine` | ‖θ − θ₀‖ and 1 − ⟨θ, θ₀⟩ / ‖θ‖‖θ₀‖ |
    | `complexity`, `/increment` | Σ_t ‖θ_{t+1} − θ_t‖ √(Tr K_t / N) over the records, and its last term |
    | `complexity/feature_norm` | √(Tr K / N) |
    | `eigenvalues` | all eigenvalues; only if asked for |

    Keys of the held-out set begin with `test/`. If the network has NaN or infinity, values are NaN and `finite` is
    False. A measure of something that the model does not have (ReLUs, a last linear layer) is None, and `notes` says
    why. Measures of your own are functions with the decorator `torchtangent.probe.measure`. A layer is a module
    (`cka/conv1`) with its weight and bias, whereas `ntk(..., per_layer=True)` has one kernel per parameter
    (`conv1.weight`).

    A record costs a kernel (N, N, C, C) for each layer and set, and an eigendecomposition of size N·C; 100 samples are
    enough.

    Args:
        model: The network. If it is wrapped by `torch.compile`, `DataParallel` or `DistributedDataParallel`, the model
            inside is used, with the parameter names that it has there.
        x: Inputs, as for `ntk`. Inputs in memory are copied, and so are the labels: later changes do not matter.
        y: Labels, for `cka`: classes (N,) of C outputs, or a target for every output. Not needed if `cka` is not among
            the `measures`.
        x_test: Held-out inputs, which must not be in x.
        y_test: The labels of the held-out inputs.
        steps: When to measure: "log" at 0 and 5·⌊1.15ᵏ⌋, a number n at every n-th step, a list of steps, or a function
            of the step.
        measures: Which measures, by name (see `torchtangent.probe.MEASURES`); all but `eigenvalues` by default.
        layers: Whether to take `cka` also for each layer.
        params: Which parameters count, by name pattern or a predicate (name, parameter); by default those that are
            trainable now.
        output: Which tensor of the model's result to use.
        writers: Where records go besides memory: a path (JSON lines, appended), a `SummaryWriter`, a function of a
            record, or a list of these.
        max_overhead: The largest fraction of the time, such as 0.05, that the probe may take. A record that would
            exceed it is skipped; its step is noted in `skipped` and by the writers.

    Attributes:
        records: All records.
        skipped: The steps that were skipped because of `max_overhead`.
        notes: Measures that this model does not have, and why.

    Reference:
        George, Deep networks training and generalization: insights from linearization, 2023, chapters 5 and 6.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> probe = TangentProbe(net, torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), measures=["cka", "distance"])
    >>> record = probe.log(0)
    >>> list(record)
    ['step', 'seconds', 'finite', 'cka', 'cka/0', 'cka/2', 'distance/l2', 'distance/cosine']
    >>> probe.log(1) is None, probe.series("distance/l2")
    (True, (array([0]), array([0.])))
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        y: Any = None,
        *,
        x_test: Any = None,
        y_test: Any = None,
        steps: Steps = "log",
        measures: str | Iterable[str] | None = None,
        layers: bool = True,
        params: Params = None,
        output: Output = None,
        writers: Any = (),
        max_overhead: float | None = None,
    ) -> None:
        self._began = perf_counter()
        if (y_test is not None) != (x_test is not None and y is not None):
            raise ValueError("x_test and y_test go together: a held-out set has inputs and, if the other has, labels.")
        if x_test is not None:
            check_apart(x, x_test)
        if max_overhead is not None and not 0 < max_overhead < 1:
            raise ValueError(f"max_overhead={max_overhead} should be a part of the time, between 0 and 1.")
        self.model = model = unwrapped(model)
        self.max_overhead = max_overhead
        self.records: list[Record] = []
        self.skipped: list[int] = []
        self._due = schedule(steps)
        self._latest: int | None = None  # the last step that was due
        self._writers = as_writers(writers)
        chosen = choose(measures)
        see = partial(View, model, frozenset(select(model, params)), output, by_layer=layers and "cka" in chosen)
        views = {"": see(kept_inputs(x), kept(y))}
        if x_test is not None:
            views["test/"] = see(kept_inputs(x_test), kept(y_test), label="y_test")
        self._observer = Observer(views, chosen)
        if measures is not None and self.notes:
            name, reason = next(iter(self.notes.items()))
            raise ValueError(f"measure {name!r} cannot be taken: {reason}")
        self._spent = self._cost = perf_counter() - self._began

    def log(self, step: SupportsIndex, *, force: bool = False) -> Record | None:
        """Measure, if this is a step to measure at and was not measured already.

        Args:
            step: The number of the step.
            force: Measure whether or not this is such a step, at any cost; for instance after the last step.

        Returns:
            The record, or None if nothing was measured.
        """
        step = operator.index(step)
        measured = bool(self.records) and self.records[-1]["step"] == step
        if measured or not (force or (step != self._latest and self._due(step))):
            return None
        if not force and self._too_costly():
            self._latest = step
            self.skipped.append(step)
            self._write({"step": step, "skipped": True})
            return None
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # do not count what training has left to compute
        began = perf_counter()
        values, finite = self._observer.now()
        self._latest = step
        self._cost = perf_counter() - began
        record = {"step": step, "seconds": self._cost, "finite": finite, **values}
        self.records.append(record)
        self._write(record)
        self._spent += perf_counter() - began
        return record

    def __repr__(self) -> str:
        at = f", the last at step {self.records[-1]['step']}" if self.records else ""
        return f"TangentProbe({len(self.records)} records{at})"

    @property
    def notes(self) -> dict[str, str]:
        """Measures that the model does not have, and why."""
        return self._observer.notes

    @property
    def overhead(self) -> float:
        """The fraction of the time since the probe was created that was spent in it."""
        return self._spent / (perf_counter() - self._began)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The steps, and the value of a key at each of them: NaN for None, a row for a list."""
        found = [(record["step"], record[key]) for record in self.records if key in record]
        if not found:
            keys = ", ".join(self.records[-1]) if self.records else "none, for nothing was logged yet"
            raise KeyError(f"No record has {key!r}. The keys are: {keys}.")
        steps, values = zip(*found, strict=True)
        return np.array(steps), np.stack(np.broadcast_arrays(*(np.array(value, dtype=float) for value in values)))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as tensors and numbers: the states at the start and last record, all records."""
        return {
            "records": list(self.records),
            "skipped": list(self.skipped),
            "latest": self._latest,
            "observer": self._observer.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict()`. Steps that are measured again have two lines in a file: the later counts."""
        if "observer" not in saved:
            raise ValueError("This is no state of a TangentProbe: pass what its state_dict() gave.")
        self._observer.load_state_dict(saved["observer"])
        self.records, self.skipped, self._latest = list(saved["records"]), list(saved["skipped"]), saved["latest"]

    def lightning(self) -> Any:
        """A Lightning callback that logs after every optimizer step, and whose state is part of checkpoints."""
        return callbacks.lightning(self)

    def huggingface(self) -> Any:
        """A callback for Hugging Face's Trainer that logs after every optimizer step."""
        return callbacks.huggingface(self)

    def _write(self, record: Record) -> None:
        for write in self._writers:
            write(record)

    def _too_costly(self) -> bool:
        """Whether another record would exceed `max_overhead`; the first never does."""
        if self.max_overhead is None or not self.records:
            return False
        elapsed = perf_counter() - self._began
        return self._spent + self._cost > self.max_overhead * (elapsed + self._cost)
