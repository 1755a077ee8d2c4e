"""The ledger: every claim, its published value, ours, and a verdict that is computed, never typed.

A claim says how its measured value is read off the arrays and by which rule it is judged. Both
are fixed before anything is run; either verdict is a result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torchtangent.lab.study import Arrays, Scale

Verdict = Literal["held", "did not hold", "not tested at this scale"]
VERDICTS: tuple[Verdict, ...] = ("held", "did not hold", "not tested at this scale")
Measured = float | Mapping[str, float]


class Rule(Protocol):
    """Decides whether a measured value agrees with a claim, and says so in words."""

    def holds(self, measured: Measured) -> bool:
        """Whether the measured value agrees. A NaN never does."""

    def __str__(self) -> str:
        """The rule in words, shown beside the verdict."""


def _values(measured: Measured) -> list[float]:
    return list(measured.values()) if isinstance(measured, Mapping) else [measured]


def _named(measured: Measured) -> Mapping[str, float]:
    if not isinstance(measured, Mapping):
        raise TypeError(f"this rule compares named values, but the claim measured {measured!r}")
    return measured


@dataclass(frozen=True)
class Between:
    """Every measured value lies in [low, high].

    >>> Between(0.4, 0.6).holds(0.5), Between(0.4, 0.6).holds(float("nan"))
    (True, False)
    """

    low: float
    high: float

    def holds(self, measured: Measured) -> bool:
        return all(self.low <= value <= self.high for value in _values(measured))

    def __str__(self) -> str:
        return f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class AtMost:
    """Every measured value is at most the bound."""

    bound: float

    def holds(self, measured: Measured) -> bool:
        return all(value <= self.bound for value in _values(measured))

    def __str__(self) -> str:
        return f"at most {self.bound:g}"


@dataclass(frozen=True)
class AtLeast:
    """Every measured value is at least the bound."""

    bound: float

    def holds(self, measured: Measured) -> bool:
        return all(value >= self.bound for value in _values(measured))

    def __str__(self) -> str:
        return f"at least {self.bound:g}"


@dataclass(frozen=True)
class Near:
    """Every measured value is within a relative tolerance of the expected one.

    >>> Near(0.5, 0.01).holds(0.504), str(Near(0.5, 0.01))
    (True, 'within 1% of 0.5')
    """

    expected: float
    relative: float

    def holds(self, measured: Measured) -> bool:
        return all(
            abs(value - self.expected) <= self.relative * abs(self.expected) for value in _values(measured)
        )

    def __str__(self) -> str:
        return f"within {100 * self.relative:g}% of {self.expected:g}"


@dataclass(frozen=True)
class Lowest:
    """The named value is strictly below all others."""

    name: str

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(values[self.name] < value for name, value in values.items() if name != self.name)

    def __str__(self) -> str:
        return f"{self.name} is the lowest"


@dataclass(frozen=True)
class Highest:
    """The named value is strictly above all others."""

    name: str

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(values[self.name] > value for name, value in values.items() if name != self.name)

    def __str__(self) -> str:
        return f"{self.name} is the highest"


@dataclass(frozen=True)
class Increasing:
    """The named values increase strictly in this order.

    >>> Increasing("a", "b").holds({"a": 1.0, "b": 2.0})
    True
    """

    names: tuple[str, ...]

    def __init__(self, *names: str):
        object.__setattr__(self, "names", names)

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(
            values[low] < values[high] for low, high in zip(self.names, self.names[1:], strict=False)
        )

    def __str__(self) -> str:
        return " < ".join(self.names)


@dataclass(frozen=True)
class Each:
    """Every named value satisfies its own rule."""

    rules: Mapping[str, Rule]

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(rule.holds(values[name]) for name, rule in self.rules.items())

    def __str__(self) -> str:
        return "; ".join(f"{name} {rule}" for name, rule in self.rules.items())


@dataclass(frozen=True)
class Claim:
    """Something a paper says that arrays can support or contradict.

    Attributes:
        id: The register's identifier of the entry it belongs to.
        name: Tells it from the entry's other claims.
        statement: The claim, in words.
        published: The paper's value, or its words.
        measure: From the entry's arrays to our value: a number, or named numbers.
        rule: Decides.
        scales: The scales at which the measurement means something.
        note: What a reader must know to weigh the verdict.
    """

    id: str
    name: str
    statement: str
    published: float | str
    measure: Callable[[Arrays], Measured]
    rule: Rule
    scales: tuple[Scale, ...] = ("smoke", "paper", "test")
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A judged claim: one object of `claims.json`."""

    id: str
    name: str
    statement: str
    published: float | str
    measured: Measured | None
    verdict: Verdict
    rule: str
    scale: str
    seconds: float | None
    study: str
    note: str = ""
    reason: str = field(default="")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN and infinities as strings, which JSON has no numbers for."""
        return {key: _jsonable(value) for key, value in self.__dict__.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `as_json`."""
        return cls(**{**data, "measured": _parsed(data["measured"])})


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _parsed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _parsed(item) for key, item in value.items()}
    return float(value) if isinstance(value, str) else value


def judge(claim: Claim, arrays: Arrays, *, study: str, scale: Scale, seconds: float) -> Finding:
    """Measure a claim on its entry's arrays and apply its rule."""
    if scale not in claim.scales:
        reason = f"needs the {' or '.join(claim.scales)} scale"
        return _finding(claim, study, scale, seconds, None, "not tested at this scale", reason)
    raw = claim.measure(arrays)
    measured: Measured
    if isinstance(raw, Mapping):
        measured = {name: float(value) for name, value in raw.items()}
    else:
        measured = float(raw)
    verdict: Verdict = "held" if claim.rule.holds(measured) else "did not hold"
    return _finding(claim, study, scale, seconds, measured, verdict, "")


def not_run(claim: Claim, *, study: str, scale: Scale, reason: str = "not run") -> Finding:
    """The ledger's line for a claim whose entry has no arrays."""
    return _finding(claim, study, scale, None, None, "not tested at this scale", reason)


def _finding(
    claim: Claim,
    study: str,
    scale: Scale,
    seconds: float | None,
    measured: Measured | None,
    verdict: Verdict,
    reason: str,
) -> Finding:
    return Finding(
        id=claim.id,
        name=claim.name,
        statement=claim.statement,
        published=claim.published,
        measured=measured,
        verdict=verdict,
        rule=str(claim.rule),
        scale=scale,
        seconds=seconds,
        study=study,
        note=claim.note,
        reason=reason,
    )


def count(findings: Iterable[Finding]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    counts = Counter(finding.verdict for finding in findings)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def show(value: float | str | Mapping[str, float] | None) -> str:
    """A value as a reader wants it: three significant digits, names before values.

    >>> show(0.0965735), show({"KFAC": 0.5, "EKFAC": 1e-9}), show(None), show(12.0)
    ('0.0966', 'KFAC 0.5, EKFAC 1e-09', '–', '12')
    """
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show(item)}" for name, item in value.items())
    return value if isinstance(value, str) else f"{value:.3g}"
