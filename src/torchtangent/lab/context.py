"""Running one part of a study: what it is given, and how its arrays are computed and kept."""

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
    """What a part is given: its configuration, a device, data sets, and the arrays of the parts that it needs."""

    part: Part
    config: Mapping[str, Any]
    device: torch.device
    run: Run
    data_root: Path | None
    report: Report = silent
    checksums: dict[str, str] = field(default_factory=dict)

    def arrays(self, part: str) -> Arrays:
        """The arrays of a part that this one needs."""
        if part not in self.part.needs:
            raise ValueError(f"part {self.part.name!r} reads {part!r} but does not list it in `needs`")
        return self.run.load([part], writable=True)

    def data(self, name: str) -> datasets.Dataset:
        """A data set, whose checksums go into the record of the part."""
        try:
            dataset = datasets.load(name, self.data_root)
        except datasets.DataError as error:
            raise datasets.DataError(f"{error}\n{_files(name)}") from error
        self.checksums.update(dataset.checksums)
        return dataset

    def track(self, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate over items, and update the progress bar."""
        if total is None and isinstance(items, Sequence):
            total = len(items)
        self.report(0, total)
        for done, item in enumerate(items, start=1):
            yield item
            self.report(done, total)

    def stepped(self, done: int, total: int) -> None:
        """Update the progress bar, if there is nothing to iterate over."""
        self.report(done, total)

    def scratch(self) -> Path:
        """A folder for files of this part that are too large to keep."""
        return self.run.scratch(self.part.name)


def _files(name: str) -> str:
    """A sentence that names all files of a data set, so that missing ones need not be discovered one by one."""
    files = datasets.CIFAR10 if name == "cifar10" else datasets.IDX[name].values()
    paths = ", ".join(file.path + (".gz" if file.packed else "") for file in files)
    fetch = "python -c \"from torchtangent.lab.data import download; download('DIR')\""
    return f"All files of {name}, in the data folder: {paths}. To fetch them: {fetch}"


def compute(context: Context, key: Key, scale: Scale, jobs: int, report: Report) -> Record:
    """Run one part and save its arrays."""
    part, run, context.report = context.part, context.run, report
    config, context.config = context.config, deepcopy(context.config)  # a part may change its copy
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
    """The arrays that a part returns; if it fails, its traceback is written to the run's folder."""
    try:
        with warnings.catch_warnings():
            # Studies measure untrained networks on purpose, so this warning is not for them.
            warnings.filterwarnings("ignore", message="BatchNorm saw no batch yet")
            arrays = context.part.run(context)
        if not isinstance(arrays, Mapping):
            raise TypeError(f"a part returns a dict of arrays, this one a {type(arrays).__name__}")
    except SystemExit as error:  # which would end the command as if all had gone well
        context.run.write_failure(context.part.name, traceback.format_exc())
        raise RuntimeError(f"the part ended its process (exit code {error.code})") from error
    except Exception as error:
        if not only_by_hand(context.part, error):
            context.run.write_failure(context.part.name, traceback.format_exc())
        raise
    return arrays


@contextmanager
def _threads(scale: Scale) -> Iterator[None]:
    """One thread below paper scale: with small arrays, more are slower, and much slower on a busy machine."""
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
    """Whether a part failed because it lacks data that have to be requested from their owners."""
    return bool(part.by_hand) and isinstance(error, datasets.DataError)
