"""What a study consists of: parts that compute arrays, and entries that show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchtangent.lab.rules import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from torchtangent.lab.claims import Claim
    from torchtangent.lab.context import Context

Scale = Literal["smoke", "paper", "test"]
SCALES: tuple[Scale, ...] = ("smoke", "paper")
"""The scales for users. A third one, `test`, is the smallest that exercises the code."""


def picker(scale: Scale) -> Callable[[Any, Any, Any], Any]:
    """A function that picks, from the values for smoke, paper and test, the one for this scale.

    >>> picker("paper")(1, 2, 3)
    2
    """
    return lambda smoke, paper, test: {"smoke": smoke, "paper": paper, "test": test}[scale]


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of one or several parts, by name, or by `part/name` where a name is not unique.

    >>> arrays = Arrays({"seed0": {"loss": np.array(1.0)}, "seed1": {"loss": np.array(3.0), "x": np.zeros(2)}})
    >>> float(arrays["seed1/loss"]), arrays["x"].shape, arrays.stack("loss")
    (3.0, (2,), array([1., 3.]))
    """

    def __init__(self, parts: Mapping[str, Mapping[str, np.ndarray]]):
        self._parts = {part: dict(arrays) for part, arrays in parts.items()}

    def __getitem__(self, key: str) -> np.ndarray:
        part, slash, name = key.partition("/")
        if slash:
            return self._parts[part][name]
        holders = [part for part, arrays in self._parts.items() if key in arrays]
        if len(holders) != 1:
            where = f"in several parts ({', '.join(holders)})" if holders else f"in none of {sorted(self)}"
            raise KeyError(f"array {key!r} is {where}")
        return self._parts[holders[0]][key]

    def __iter__(self) -> Iterator[str]:
        return (f"{part}/{name}" for part, arrays in self._parts.items() for name in arrays)

    def __len__(self) -> int:
        return sum(len(arrays) for arrays in self._parts.values())

    def stack(self, name: str) -> np.ndarray:
        """The array of this name from every part that has one, along a new first axis."""
        return np.stack([self[f"{part}/{name}"] for part, arrays in self._parts.items() if name in arrays])


@dataclass(frozen=True)
class Part:
    """One resumable computation, from a configuration to a dict of arrays.

    Attributes:
        name: The name of its file in the run's folder, and of its section of the configuration.
        run: The computation.
        needs: Parts that must be complete before; `context.arrays(name)` has their arrays.
        long: Whether it is too long for the quick report, and runs only when asked for (`--long`).
        by_hand: The name of its data set, if that has to be requested: without its files the part is passed over.
    """

    name: str
    run: Callable[[Context], Mapping[str, Any]]
    needs: tuple[str, ...] = ()
    long: bool = False
    by_hand: str = ""


@dataclass(frozen=True)
class Panel:
    """One plot, drawn from arrays alone, narrow enough for the screen of a phone.

    Attributes:
        draw: A function from the entry's arrays to a matplotlib figure.
        alt: A description of the plot, for readers who cannot see it.
    """

    draw: Callable[[Arrays], Canvas]
    alt: str


@dataclass(frozen=True)
class Table:
    """A table, made from arrays alone, also if only some parts of the entry are there.

    Attributes:
        title: What it shows.
        columns: The headings of the columns; the first is that of the names of rows.
        rows: A function from arrays to rows: a name, then numbers or text, or None if there is nothing to show.

    >>> table = Table("Loss", ("network", "paper", "ours"), lambda arrays: [("MLP", "0.1", arrays.get("p/loss"))])
    >>> table.cells(Arrays({"p": {"loss": np.array(0.125)}})), table.cells(Arrays({}))
    ([['MLP', '0.1', '0.125']], [['MLP', '0.1', '–']])
    """

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Arrays], Iterable[Sequence[Any]]]

    def cells(self, arrays: Arrays) -> list[list[str]]:
        """The cells of the table as text, row by row."""
        found = [[_cell(value) for value in row] for row in self.rows(arrays)]
        for row in found:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r} has {len(self.columns)} columns, but the row {row[:1]} has {len(row)} cells"
                )
        return found


@dataclass(frozen=True)
class Entry:
    """A figure, table or theorem of a paper, under its identifier in the register.

    Attributes:
        id: The register's identifier, such as `TG-Fig2.1`.
        title: A few words.
        paper: What the paper says.
        setup: What is run here; `{part[key]}` is filled in from the configuration.
        parts: The parts whose arrays it uses.
        panels: Its plots.
        caption: What to see in the plots.
        notes: Interpretations and conventions that matter for the verdict.
        tables: Its tables.
    """

    id: str
    title: str
    paper: str
    setup: str
    parts: tuple[str, ...]
    panels: tuple[Panel, ...] = ()
    caption: str = ""
    notes: str = ""
    tables: tuple[Table, ...] = ()

    @property
    def slug(self) -> str:
        """The identifier as a plain name for anchors, file names and the command line."""
        return plain(self.id)


@dataclass(frozen=True)
class Aim:
    """How long some parts of a study should take together, at one scale.

    Attributes:
        scale: The scale it is for.
        minutes: The aim.
        what: What takes this time, in words.
        parts: The parts that count.
    """

    scale: Scale
    minutes: float
    what: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A paper: its configuration at every scale, its parts, its entries, its claims, how long it should take."""

    key: str
    title: str
    reference: str
    configuration: Callable[[Scale], dict[str, dict[str, Any]]]
    parts: Sequence[Part]
    entries: Sequence[Entry]
    claims: Sequence[Claim]
    aims: Sequence[Aim] = ()

    def __post_init__(self) -> None:
        """Refuse names that do not fit together, which would be noticed late or never."""
        parts, ids = [part.name for part in self.parts], [entry.id for entry in self.entries]
        wrong = [f"part {name!r} is there twice" for name in parts if parts.count(name) > 1]
        wrong += [f"entry {name!r} is there twice" for name in ids if ids.count(name) > 1]
        slugs = [entry.slug.lower() for entry in self.entries]
        wrong += [
            f"entry {name!r} cannot be told from another on the command line"
            for name, slug in zip(ids, slugs, strict=True)
            if slugs.count(slug) > ids.count(name)
        ]
        claims = [(claim.id, claim.name) for claim in self.claims]
        wrong += [f"claim {name!r} of {id!r} is there twice" for id, name in claims if claims.count((id, name)) > 1]
        wrong += [] if is_file_name(self.key) else [f"its key {self.key!r} cannot name a folder"]
        wrong += [f"part {name!r} cannot name a file" for name in parts if not is_file_name(name)]
        for i, part in enumerate(self.parts):
            wrong += [
                f"part {part.name!r} needs {n!r}, which is no part before it" for n in part.needs if n not in parts[:i]
            ]
        for entry in self.entries:
            wrong += [
                f"entry {entry.id!r} looks at {name!r}, which is no part" for name in entry.parts if name not in parts
            ]
        wrong += [f"claim {c.name!r} belongs to {c.id!r}, which is no entry" for c in self.claims if c.id not in ids]
        if wrong:
            raise ValueError(f"The study {self.key!r} does not fit together: {'; '.join(dict.fromkeys(wrong))}.")

    def part(self, name: str) -> Part:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)

    def closure(self, names: Sequence[str]) -> list[Part]:
        """These parts and all that they need, directly or indirectly, in an order in which they can run."""
        wanted = set(names)
        for part in reversed(self.parts):
            if part.name in wanted:
                wanted.update(part.needs)
        return [part for part in self.parts if part.name in wanted]

    def is_long(self, entry: Entry) -> bool:
        """Whether an entry needs a part that does not fit into the quick report."""
        return any(part.long for part in self.closure(entry.parts))

    def claims_of(self, entry: Entry) -> list[Claim]:
        """The claims that belong to an entry."""
        return [claim for claim in self.claims if claim.id == entry.id]

    def find(self, wanted: str) -> Entry:
        """The entry with this identifier; case, kind of dash and the prefix of the paper do not matter.

        Raises:
            ValueError: If there is no such entry; the message names those that there are.
        """
        name = plain(wanted).lower()
        for entry in self.entries:
            if name in (entry.slug.lower(), entry.slug.lower().partition("-")[2]):
                return entry
        known = ", ".join(entry.id for entry in self.entries)
        raise ValueError(f"{self.key} has no entry {wanted!r}. It has: {known}.")


def _cell(value: Any) -> str:
    """A value as text; a dash for None."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else number(float(value))


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file, and not a path.

    >>> is_file_name("noise-a1"), is_file_name("../noise"), is_file_name("")
    (True, False, False)
    """
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def plain(text: str) -> str:
    """The text with hyphens for everything but letters, digits and dots, so that shells take it literally.

    >>> plain("TG-ThmA.1–3"), plain("OJ-Data-D(u)")
    ('TG-ThmA.1-3', 'OJ-Data-D-u')
    """
    return re.sub(r"[^\w.]+", "-", text).strip("-")
