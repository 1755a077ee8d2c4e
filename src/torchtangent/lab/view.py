"""An entry at one scale, drawn from its arrays, with how these were made."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from torchtangent.lab import style
from torchtangent.lab.judging import Key
from torchtangent.lab.recipes import called
from torchtangent.lab.results import Record, Run, elapsed
from torchtangent.lab.study import Entry, Scale, Study

T = TypeVar("T")


@dataclass(frozen=True)
class Making:
    """How the arrays of some parts were made.

    `earlier` names those made by another version of their code, with the same configuration.
    """

    records: Sequence[Record]
    earlier: Sequence[str]

    @classmethod
    def of(cls, records: Iterable[Record], keys: Mapping[str, Key]) -> Making:
        """That of these records, where the code is now that of the keys."""
        records = list(records)
        return cls(records, [record.part for record in records if record.code != keys[record.part].code])

    @property
    def seconds(self) -> float:
        """How long all parts took together."""
        return elapsed(self.records)

    @property
    def provenance(self) -> dict[str, str]:
        """Every field with the different values that it has over the parts."""
        values: dict[str, dict[str, None]] = {}
        for record in self.records:
            for key, value in record.provenance.items():
                values.setdefault(key, {})[str(value or "not a git checkout")] = None
        times = sorted(values.pop("finished", {}))
        found = {key: ", ".join(texts) for key, texts in values.items()}
        return found | ({"finished": " to ".join(dict.fromkeys((times[0], times[-1])))} if times else {})

    @property
    def data(self) -> dict[str, str]:
        """The files that were read, with their checksums."""
        return {name: sum for record in self.records for name, sum in record.data.items()}


@dataclass(frozen=True)
class View:
    """An entry at one scale: what was run, its plots and tables, and how to make them again.

    `waiting` names the missing parts, if any: there are no plots then, and tables are incomplete. `broken` names what
    could not be shown because the code that draws or describes it failed.
    """

    scale: str
    setup: str
    caption: str
    plots: Sequence[str]
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]  # title, columns, rows
    waiting: Sequence[str]
    broken: Sequence[str]
    made: Making
    command: str
    config: str


Wanted = tuple[Study, Entry, Run, Mapping[str, Key]]
_ONE_BY_ONE = 8  # up to this many entries, processes are not worth starting
_wanted: Sequence[Wanted] = ()  # in such a process: the entries to draw


def views(wanted: Sequence[Wanted]) -> list[View | None]:
    """Draw entries; on Linux in one process per core, since plots take long."""
    if sys.platform != "linux" or len(wanted) <= _ONE_BY_ONE:
        return [_view(*one) for one in wanted]
    fork = multiprocessing.get_context("fork")  # studies have functions, which cannot be pickled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads, which the children do not use
        with ProcessPoolExecutor(os.cpu_count(), fork, initializer=_begin, initargs=(wanted,)) as pool:
            return list(pool.map(_numbered, range(len(wanted))))


def _begin(wanted: Sequence[Wanted]) -> None:
    global _wanted
    _wanted = wanted


def _numbered(i: int) -> View | None:
    return _view(*_wanted[i])


def _view(study: Study, entry: Entry, run: Run, keys: Mapping[str, Key]) -> View | None:
    """Draw an entry from its arrays; None if there is nothing to show."""
    config = study.configuration(cast(Scale, run.scale))
    records = {part: record for part in entry.parts if (record := run.record(part, keys[part].digest))}
    whole = len(records) == len(entry.parts)
    if not whole and not (records and entry.tables):  # of tables, show what there is
        return None
    readable = {part: {key: _readable(key, value) for key, value in values.items()} for part, values in config.items()}
    arrays, made = run.load(list(records)), Making.of(records.values(), keys)
    broken: list[str] = []

    def shown(what: str, make: Callable[[], T]) -> list[T]:
        try:
            return [make()]
        except Exception as error:  # the rest of the page is not affected
            broken.append(f"{what} ({type(error).__name__}: {error})")
            return []

    def plot(i: int) -> str:
        panel = entry.panels[i]
        return style.to_svg(panel.draw(arrays), f"{study.key}-{run.scale}-{entry.slug}-{i}", panel.alt)

    with style.applied():
        plots = [
            one for i in range(len(entry.panels) if whole else 0) for one in shown(f"plot {i + 1}", partial(plot, i))
        ]
    tables = [
        (table.title, table.columns, rows)
        for table in entry.tables
        for rows in shown(f"the table {table.title!r}", partial(table.cells, arrays))
    ]
    return View(
        scale=run.scale,
        setup="".join(shown("what is run", partial(entry.setup.format_map, readable))),
        caption="".join(shown("the caption", partial(entry.caption.format_map, readable))) if whole else "",
        plots=plots,
        tables=tables,
        waiting=[part for part in entry.parts if part not in records],
        broken=broken,
        made=made,
        command=_command(study, entry, run.scale, made),
        config=json.dumps({part: config[part] for part in records}, indent=2, ensure_ascii=False),
    )


def _command(study: Study, entry: Entry, scale: str, made: Making) -> str:
    """The command that makes the arrays of an entry again, on the same kind of device and from the same data."""
    device = " --device cuda" if any(record.provenance["device"].startswith("cuda") for record in made.records) else ""
    data = " --data DIR" if any(not name.startswith("scikit-learn") for name in made.data) else ""
    return f"torchtangent reproduce {called(study)} --scale {scale} --only {entry.slug}{device}{data} --fresh"


def _readable(key: str, value: Any) -> Any:
    """A value of the configuration for a sentence; indices are sorted, as their order has no meaning."""
    if isinstance(value, list):
        return ", ".join(map(str, sorted(value) if key == "indices" else value))
    return f"{value:,}" if isinstance(value, int) else value
