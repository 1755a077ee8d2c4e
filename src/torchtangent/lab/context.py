"""One part of a study at work: what it is given, how it is run, and how its arrays are kept."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from torchtangent.lab import data as datasets
from torchtangent.lab.judging import Key
from torchtangent.lab.provenance import describe
from torchtangent.lab.results import Record, Run
from torchtangent.lab.study import Arrays, Part, Scale
from torchtangent.lab.workers import Report, silent

T = TypeVar("T")


@dataclass
class Context:
    """What a part is given: its configuration, a device, data, the arrays of the parts it needs."""

    part: Part
    config: Mapping[str, Any]
    device: torch.device
    run: Run
    data_root: Path | None
    report: Report = silent
    checksums: dict[str, str] = field(default_factory=dict)

    def arrays(self, part: str) -> Arrays:
        """The arrays of a part this one needs."""
        if part not in self.part.needs:
            raise ValueError(f"part {self.part.name!r} reads {part!r} but does not list it in `needs`")
        return self.run.load([part], writable=True)

    def data(self, name: str) -> datasets.Dataset:
        """A data set; its checksums go into the record."""
        try:
            dataset = datasets.load(name, self.data_root)
        except datasets.DataError as error:
            raise datasets.DataError(f"{error}\n{_files(name)}") from error
        self.checksums.update(dataset.checksums)
        return dataset

    def track(self, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate, and let the progress bar follow."""
        if total is None and isinstance(items, Sequence):
            total = len(items)
        self.report(0, total)
        for done, item in enumerate(items, start=1):
            yield item
            self.report(done, total)

    def stepped(self, done: int, total: int) -> None:
        """Let the progress bar follow where there is nothing to iterate over."""
        self.report(done, total)

    def scratch(self) -> Path:
        """A folder of its own for what is too large to keep."""
        return self.run.scratch(self.part.name)


def _files(name: str) -> str:
    """All files of a data set, so that who lacks one need not find out one by one."""
    files = datasets.CIFAR10 if name == "cifar10" else datasets.IDX[name].values()
    paths = ", ".join(file.path + (".gz" if file.packed else "") for file in files)
    fetch = "python -c \"from torchtangent.lab.data import download; download('DIR')\""
    return f"All files of {name}, in the data folder: {paths}. To fetch them: {fetch}"


def compute(context: Context, key: Key, scale: Scale, jobs: int, report: Report) -> Record:
    """Run one part and keep its arrays."""
    part, run, context.report = context.part, context.run, report
    config, context.config = context.config, deepcopy(context.config)  # a part may write to its own
    needs = {name: record.sha256 for name in part.needs if (record := run.said(name))}
    run.failed(part.name).unlink(missing_ok=True)
    start = time.perf_counter()
    with _threads(scale):
        arrays = _arrays(context)
        seconds = round(time.perf_counter() - start, 3)
        provenance = describe(context.device, jobs)
    return run.save(
        part.name,
        arrays,
        digest=key.digest,
        code=key.code,
        seconds=seconds,
        config=dict(config),
        provenance=provenance,
        data=context.checksums,
        needs=needs,
    )


def _arrays(context: Context) -> Mapping[str, Any]:
    """What a part computes; if it fails, its traceback is kept."""
    try:
        with warnings.catch_warnings():
            # Studies look at networks before they are trained; whoever does so by hand should think about it.
            warnings.filterwarnings("ignore", message="BatchNorm saw no batch yet")
            arrays = context.part.run(context)
        if not isinstance(arrays, Mapping):
            raise TypeError(f"a part returns a dict of arrays, this one a {type(arrays).__name__}")
    except SystemExit as error:  # else it would end the command, as if all had gone well
        context.run.write_failure(context.part.name, traceback.format_exc())
        raise RuntimeError(f"the part ended its process (exit code {error.code})") from error
    except Exception as error:
        if not only_by_hand(context.part, error):
            context.run.write_failure(context.part.name, traceback.format_exc())
        raise
    return arrays


@contextmanager
def _threads(scale: Scale) -> Iterator[None]:
    """One thread below paper scale: for small arrays more are slower, and much slower on a busy machine."""
    if scale == "paper":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def only_by_hand(part: Part, error: Exception) -> bool:
    """Whether a part failed for want of data that only their owners give."""
    return bool(part.by_hand) and isinstance(error, datasets.DataError)
