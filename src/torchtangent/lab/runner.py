"""Run a study part by part: what is already there is kept, what is missing is computed."""

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
    """A part was not begun, because one that it needs failed."""


class NeedPassedOver(RuntimeError):
    """A part was not begun, because one that it needs was passed over."""


class Listener:
    """Told what happens during a run. This one stays silent; the command line draws progress bars."""

    def started(self, part: Part) -> None:
        """A part begins."""

    def stepped(self, part: Part, done: int, total: int | None) -> None:
        """A part has come so far."""

    def finished(self, part: Part, record: Record, *, kept: bool) -> None:
        """A part is there, computed now or kept from an earlier run."""

    def failed(self, part: Part, error: Exception) -> None:
        """A part raised."""

    def passed_over(self, part: Part, error: Exception) -> None:
        """A part was not run, because data are absent that only their owners give, to it or to one that it needs."""


@dataclass
class Outcome:
    """What a call of `reproduce` did; `findings` are of the whole study, `entries` those it was asked for."""

    run: Run
    entries: Sequence[Entry] = ()
    computed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)
    passed_over: dict[str, Exception] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def asked(self) -> list[Finding]:
        """The findings of the entries it was asked for."""
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
        scale: `smoke`, `paper` (or `test`).
        out: The folder that holds all runs.
        only: Identifiers of entries; all of them if empty.
        long: Also the entries that do not fit into the quick report. Those named in `only` always run.
        fresh: Compute again what is already there.
        reuse: Keep what an earlier version of the recipe's code made, if the configuration is the same.
        jobs: Parts that run side by side, each in a process of its own; a script that asks for several does so below
            `if __name__ == "__main__":`, since those processes import it.
        device: Where torch computes.
        data_root: The folder with data sets.
        listener: Told about progress.

    Returns:
        What was computed, what was kept, what failed, what was passed over because its data are got by hand, and the
        verdicts. A part that fails or is passed over does not stop the others: those that need it go the same way.
        Arrays that are there stay until new ones take their place.

    Raises:
        Busy: Another process works in the run's folder.
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
    """Keep or run parts, as soon as what they need is there and a worker is free; one that fails costs only its own."""
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
    """Why a part cannot begin: what it needs failed or was passed over, and old arrays of that would not do."""
    if failed := [name for name in part.needs if name in outcome.failed]:
        return NeedFailed(f"needs {', '.join(failed)}, which failed")
    if passed_over := [name for name in part.needs if name in outcome.passed_over]:
        return NeedPassedOver(f"needs {', '.join(passed_over)}, which was passed over")
    return None


def _note(part: Part, result: Record | Exception, outcome: Outcome, listener: Listener) -> None:
    """Note what came of a part."""
    if isinstance(result, Record):
        outcome.computed.append(part.name)
        listener.finished(part, result, kept=False)
        return
    if isinstance(result, NeedPassedOver) or only_by_hand(part, result):
        outcome.passed_over[part.name] = result
        listener.passed_over(part, result)
        return
    if not isinstance(result, NeedFailed) and not outcome.run.failed(part.name).exists():  # such as one that was killed
        outcome.run.write_failure(part.name, f"{type(result).__name__}: {result}")
    outcome.failed[part.name] = result
    listener.failed(part, result)


def _same_data(record: Record, root: Path | None) -> bool:
    """Whether files that no published checksum vouches for are still what they were; those not here are taken so."""
    folder = root or Path(os.environ.get(datasets.ENVIRONMENT, ""))
    return all(
        checksum(folder / name) in said
        for name, said in record.data.items()
        if said.startswith("sha256") and (folder / name).is_file()
    )
