"""The ledger: every claim, its published value, ours, and a verdict that is computed, never typed.

A claim says how its measured value is computed from the arrays, and by which rule it is judged. Both
are fixed before anything is run; either verdict is a result.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from torchtangent.lab.rules import Measured, Rule, number, rounded
from torchtangent.lab.study import Arrays, Scale

Verdict = Literal["held", "did not hold", "not tested at this scale"]
UNTESTED: Verdict = "not tested at this scale"
VERDICTS: tuple[Verdict, ...] = ("held", "did not hold", UNTESTED)
RAISED = "the measure raised"


class Untested(Exception):
    """Raised, with the reason, by a measure whose arrays are not sufficient: the claim counts as not tested."""


class _Measurable(Arrays):
    """Arrays as a measure reads them: those with a NaN, which a comparison would hide, and empty ones are refused."""

    def __init__(self, arrays: Arrays):
        super().__init__(arrays._parts)

    def __getitem__(self, key: str) -> np.ndarray:
        array = super().__getitem__(key)
        if array.dtype.kind in "fc" and np.isnan(array).any():
            raise Untested(f"the array {key} has NaN")
        if not array.size:
            raise Untested(f"the array {key} is empty")
        return array


@dataclass(frozen=True)
class Claim:
    """Something a paper says that arrays can support or contradict.

    Attributes:
        id: The register's identifier of the entry it belongs to.
        name: Distinguishes it from the other claims of the entry.
        statement: The claim, in words.
        published: The paper's value, or its words.
        measure: From the entry's arrays to our value: a number, or named numbers. If it reads an array with a NaN, the
            claim is not tested; a part writes infinity, or a value beside a mask, for a run that diverged.
        rule: The rule that decides.
        scales: The scales at which the measurement is meaningful.
        note: What a reader should know to interpret the verdict.
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
    reason: str = ""

    @property
    def broken(self) -> bool:
        """Whether there is no verdict because the claim's own code failed."""
        return self.reason.startswith(RAISED)

    def as_json(self) -> dict[str, Any]:
        """The finding as plain JSON values; NaN and infinity, which JSON lacks, as strings."""
        return {key: _jsonable(value) for key, value in self.__dict__.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `as_json`."""
        return cls(**{**data, "measured": _parsed(data["measured"])})


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, numbers.Real) and not isinstance(value, int):  # numpy's too
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def _parsed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _parsed(item) for key, item in value.items()}
    return float(value) if isinstance(value, str) else value


def judge(claim: Claim, arrays: Arrays, *, study: str, scale: Scale, seconds: float) -> Finding:
    """Measure a claim on the arrays of its entry and apply its rule; if this raises, the finding says so."""
    if scale not in claim.scales:
        return not_run(claim, study=study, scale=scale, seconds=seconds)
    try:
        measured = _plain(claim.measure(_Measurable(arrays)))
        values = measured.values() if isinstance(measured, Mapping) else (measured,)
        verdict: Verdict = "held" if claim.rule.holds(measured) and not any(map(math.isnan, values)) else "did not hold"
    except Untested as error:
        return _finding(claim, study, scale, seconds, None, UNTESTED, str(error))
    except (Exception, SystemExit) as error:  # one broken claim must not cost the verdicts of the others
        reason = f"{RAISED} {type(error).__name__}: {' '.join(str(error).split())}"
        return _finding(claim, study, scale, seconds, None, UNTESTED, reason)
    return _finding(claim, study, scale, seconds, measured, verdict, "")


def _plain(measured: Measured) -> Measured:
    """Python's own numbers instead of numpy's."""
    if isinstance(measured, Mapping):
        return {name: float(value) for name, value in measured.items()}
    return float(measured)


def not_run(
    claim: Claim, *, study: str, scale: Scale, reason: str = "not run", seconds: float | None = None
) -> Finding:
    """The finding for a claim that has no arrays, or is not tested at this scale."""
    if scale not in claim.scales:
        reason = f"needs the {' or '.join(scale for scale in claim.scales if scale != 'test')} scale"
    return _finding(claim, study, scale, seconds, None, UNTESTED, reason)


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


def short(verdict: Verdict) -> str:
    """A verdict over all scales."""
    return verdict.removesuffix(" at this scale")


def count(verdicts: Iterable[Verdict]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def digits(rule: Rule, finding: Finding) -> int:
    """How many digits of the measured value to show: enough that a value which misses the rule is seen to."""
    measured = finding.measured
    if measured is None or finding.verdict != "did not hold":
        return 3
    for enough in range(3, 15):
        if isinstance(measured, Mapping):
            shown: Measured = {name: rounded(value, enough) for name, value in measured.items()}
        else:
            shown = rounded(measured, enough)
        if not rule.holds(shown):
            return enough
    return 15


def show(value: float | str | Mapping[str, float] | None, digits: int = 3) -> str:
    """A value as text; named values in one line.

    >>> show(0.0965735), show({"KFAC": 0.5, "EKFAC": 1e-9}), show(None)
    ('0.0966', 'KFAC 0.5, EKFAC 10⁻⁹', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {number(item, digits)}" for name, item in value.items())
    return value if isinstance(value, str) else number(value, digits)
