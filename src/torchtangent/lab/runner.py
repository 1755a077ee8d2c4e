"""Run a study part by part: up-to-date results are kept, missing ones are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from torchtangent.kernel.budget import FRACTION
from torchtangent.lab import data as datasets
from torchtangent.lab.claims import Finding
from torchtangent.lab.context import Context, compute, only_by_hand
from torchtangent.lab.judging import any_code, counted, part_keys, settle
from torchtangent.lab.provenance import checksum
from torchtangent.lab.results import Record, Run
from torchtangent.lab.study import Entry, Part, Scale, Study
from torchtangent.lab.workers import Apart, Here, Report


class NeedFailed(RuntimeError):
    """A part was not started because one that it needs failed."""


class NeedPassedOver(RuntimeError):
    """A part was not started because one that it needs was passed over."""


class Listener:
    """Is told what happens during a run. This one does nothing; that of the command line draws progress bars."""

    def started(self, part: Part) -> None:
        """A part starts."""

    def stepped(self, part: Part, done: int, total: int | None) -> None:
        """A part has made progress."""

    def finished(self, part: Part, record: Record, *, kept: bool) -> None:
        """The arrays of a part are there: computed now, or kept from an earlier run."""

    def failed(self, part: Part, error: Exception) -> None:
        """A part failed."""

    def passed_over(self, part: Part, error: Exception) -> None:
        """A part was not run because it, or a part that it needs, lacks data that have to be requested."""


@dataclass
class Outcome:
    """What a call of `reproduce` did. `entries` are those that were asked for, `findings` those of the whole study."""

    run: Run
    entries: Sequence[Entry] = ()
    computed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)
    passed_over: dict[str, Exception] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def asked(self) -> list[Finding]:
        """The findings of the entries that were asked for."""
        ids = {entry.id for entry in self.entries}
        return [finding for finding in self.findings if finding.id in ids]


def reproduce(
    study: Study,
    scale: Scale,
    out: Path,
    *,
    only: Sequence[str] = (),
    long: bool = False,
    fresh: bool = False,
    reuse: bool = False,
    jobs: int = 1,
    device: str = "cpu",
    data_root: Path | None = None,
    listener: Listener | None = None,
) -> Outcome:
    """Bring a study's run folder up to date and judge its claims.

    Args:
        study: What to run.
        scale: `smoke` or `paper` (or `test`).
        out: The folder that holds all runs.
        only: The identifiers of entries; all entries if empty.
        long: Whether to run also the entries that do not fit into the quick report. Those named in `only` always run.
        fresh: Whether to recompute what is already there.
        reuse: Whether to keep results of an earlier version of the recipe's code, if the configuration is the same.
        jobs: The number of parts that run at the same time, each in its own process. A script that asks for more than
            one must do so below `if __name__ == "__main__":`, as those processes import it.
        device: The device that torch computes on.
        data_root: The folder with data sets.
        listener: Is told about progress.

    Returns:
        What was computed, kept, failed, or passed over because its data have to be requested; and the verdicts. A part
        that fails or is passed over does not stop the others, except for those that need it. Existing arrays stay until
        new ones replace them.

    Raises:
        Busy: If another process works in the run's folder.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one part has to run at a time.")
    listener = listener or Listener()
    config = study.configuration(scale)
    if missing := [part.name for part in study.parts if part.name not in config]:
        raise ValueError(f"The configuration of {study.key!r} has no section for {', '.join(missing)}: give it {{}}.")
    if unknown := [name for name in config if name not in {part.name for part in study.parts}]:
        raise ValueError(f"The configuration of {study.key!r} has sections for no part: {', '.join(unknown)}.")
    run = Run(out / study.key / scale)
    entries = [study.find(name) for name in only] or [e for e in study.entries if long or not study.is_long(e)]
    outcome = Outcome(run, entries)
    keys = part_keys(study, config)
    wanted = any_code(study, config) if reuse else keys

    def kept(part: Part) -> Record | None:
        record = None if fresh else counted(run, part.name, wanted)
        return record if record and _same_data(record, data_root) else None

    def work(part: Part) -> partial[Record]:
        context = Context(part, config[part.name], torch.device(device), run, data_root)
        return partial(compute, context, keys[part.name], scale, jobs)

    memory = FRACTION.get(torch.device(device).type, 0.5)
    parts = study.closure([name for entry in entries for name in entry.parts])
    with run.alone():
        run.write_config(config)
        _run(parts, kept, work, outcome, listener, Here() if jobs == 1 else Apart(jobs, memory))
        outcome.findings = settle(study, run, wanted)
    return outcome


def _run(
    parts: Sequence[Part],
    kept: Callable[[Part], Record | None],
    work: Callable[[Part], Callable[[Report], Record]],
    outcome: Outcome,
    listener: Listener,
    workers: Here | Apart,
) -> None:
    """Keep or run every part as soon as what it needs is there and a worker is free."""
    left, running = list(parts), dict[str, Part]()
    try:
        while left or running:
            for part in [*left]:
                if len(running) == workers.room:
                    break
                if any(name in running or name in [other.name for other in left] for name in part.needs):
                    continue
                left.remove(part)
                if (record := kept(part)) is not None:
                    outcome.kept.append(part.name)
                    listener.finished(part, record, kept=True)
                    continue
                if (blocked := _blocked(part, outcome)) is not None:
                    _note(part, blocked, outcome, listener)
                    continue
                running[part.name] = part
                listener.started(part)
                workers.start(part.name, work(part), partial(listener.stepped, part))
            for name, result in workers.ended() if running else ():
                _note(running.pop(name), result, outcome, listener)
    finally:
        workers.stop()


def _blocked(part: Part, outcome: Outcome) -> Exception | None:
    """Why a part cannot start: a part that it needs failed or was passed over. Old arrays of that do not count."""
    if failed := [name for name in part.needs if name in outcome.failed]:
        return NeedFailed(f"needs {', '.join(failed)}, which failed")
    if passed_over := [name for name in part.needs if name in outcome.passed_over]:
        return NeedPassedOver(f"needs {', '.join(passed_over)}, which was passed over")
    return None


def _note(part: Part, result: Record | Exception, outcome: Outcome, listener: Listener) -> None:
    """Note the result of a part in the outcome, and tell the listener."""
    if isinstance(result, Record):
        outcome.computed.append(part.name)
        listener.finished(part, result, kept=False)
        return
    if isinstance(result, NeedPassedOver) or only_by_hand(part, result):
        outcome.passed_over[part.name] = result
        listener.passed_over(part, result)
        return
    if not isinstance(result, NeedFailed) and not outcome.run.failed(part.name).exists():  # as if killed
        outcome.run.write_failure(part.name, f"{type(result).__name__}: {result}")
    outcome.failed[part.name] = result
    listener.failed(part, result)


def _same_data(record: Record, root: Path | None) -> bool:
    """Whether data files without a published checksum are unchanged; files that are not here count as unchanged."""
    folder = root or Path(os.environ.get(datasets.ENVIRONMENT, ""))
    return all(
        checksum(folder / name) in said
        for name, said in record.data.items()
        if said.startswith("sha256") and (folder / name).is_file()
    )
