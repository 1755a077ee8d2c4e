"""The rules by which a measured value is judged, each of which can say in words what it asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

Measured = float | Mapping[str, float]

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """A number as a reader wants it: three significant digits, powers of ten written out.

    >>> number(0.09657), number(12.0), number(-0.5), number(8.88e-16), number(0.0)
    ('0.0966', '12', '−0.5', '8.9 × 10⁻¹⁶', '0')
    >>> number(1e-10), number(45432), number(float("-inf")), number(0.09657, 4)
    ('10⁻¹⁰', '45,400', '−∞', '0.09657')
    """
    if not 0 < abs(value) < float("inf"):
        return f"{value:g}".replace("-", "−").replace("inf", "∞")
    if _plain(value):
        return f"{rounded(value, digits):,.15g}".replace("-", "−")
    mantissa, _, exponent = f"{value:.{digits - 2}e}".partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if float(mantissa) == 1 else f"{mantissa.replace('-', '−')} × {power}"


def rounded(value: float, digits: int) -> float:
    """The value that `number` shows."""
    return float(f"{value:.{digits if _plain(value) else digits - 1}g}")


def _plain(value: float) -> bool:
    """Whether a number is written without a power of ten."""
    return 1e-3 <= abs(value) < 1e5


class Rule(ABC):
    """Decides whether a measured value agrees with a claim, and says so in words."""

    @abstractmethod
    def holds(self, measured: Measured) -> bool:
        """Whether the measured value agrees. NaN never does, infinity only as what another value is compared with."""

    @abstractmethod
    def __str__(self) -> str:
        """The rule in words, shown beside the verdict."""


def _values(measured: Measured) -> list[float]:
    values = list(measured.values()) if isinstance(measured, Mapping) else [measured]
    if not values:
        raise ValueError("the claim measured nothing, which agrees with everything")
    return values


def _named(measured: Measured) -> Mapping[str, float]:
    if not isinstance(measured, Mapping):
        raise TypeError(f"this rule compares named values, but the claim measured {measured!r}")
    return measured


def _others(measured: Measured, name: str) -> list[float]:
    """All values but that of a name."""
    return _values({key: value for key, value in _named(measured).items() if key != name})


@dataclass(frozen=True)
class Between(Rule):
    """Every measured value lies in [low, high].

    >>> Between(0.4, 0.6).holds(0.5), Between(0.4, 0.6).holds(float("nan"))
    (True, False)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"Between({self.low}, {self.high}) can never hold: the lower bound comes first.")

    def holds(self, measured: Measured) -> bool:
        return all(isfinite(value) and self.low <= value <= self.high for value in _values(measured))

    def __str__(self) -> str:
        return f"between {number(self.low)} and {number(self.high)}"


@dataclass(frozen=True)
class AtMost(Rule):
    """Every measured value is at most the bound, and finite."""

    bound: float

    def holds(self, measured: Measured) -> bool:
        return all(isfinite(value) and value <= self.bound for value in _values(measured))

    def __str__(self) -> str:
        return f"at most {number(self.bound)}"


@dataclass(frozen=True)
class AtLeast(Rule):
    """Every measured value is at least the bound, and finite."""

    bound: float

    def holds(self, measured: Measured) -> bool:
        return all(isfinite(value) and self.bound <= value for value in _values(measured))

    def __str__(self) -> str:
        return f"at least {number(self.bound)}"


@dataclass(frozen=True)
class Near(Rule):
    """Every measured value is within a relative tolerance of the expected one.

    >>> Near(0.5, 0.01).holds(0.504), str(Near(0.5, 0.01))
    (True, 'within 1 % of 0.5')
    """

    expected: float
    relative: float

    def holds(self, measured: Measured) -> bool:
        near = self.relative * abs(self.expected)
        return all(isfinite(value) and abs(value - self.expected) <= near for value in _values(measured))

    def __str__(self) -> str:
        if self.relative < 1e-3:
            return f"{number(self.expected)} up to a relative {number(self.relative)}"
        return f"within {100 * self.relative:g} % of {number(self.expected)}"


@dataclass(frozen=True)
class Lowest(Rule):
    """The named value is finite and strictly below all others, which may be infinite: what never happens is late."""

    name: str

    def holds(self, measured: Measured) -> bool:
        return all(-inf < _named(measured)[self.name] < value for value in _others(measured, self.name))

    def __str__(self) -> str:
        return f"{self.name} is the lowest"


@dataclass(frozen=True)
class Highest(Rule):
    """The named value is finite and strictly above all others."""

    name: str

    def holds(self, measured: Measured) -> bool:
        return all(inf > _named(measured)[self.name] > value for value in _others(measured, self.name))

    def __str__(self) -> str:
        return f"{self.name} is the highest"


@dataclass(frozen=True)
class Increasing(Rule):
    """The named values increase strictly in this order.

    >>> Increasing("a", "b").holds({"a": 1.0, "b": 2.0})
    True
    """

    names: tuple[str, ...]

    def __init__(self, *names: str):
        if len(names) < 2:
            raise ValueError(f"Increasing{names} compares nothing: pass at least two names, the lowest first.")
        object.__setattr__(self, "names", names)

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(-inf < values[low] < values[high] for low, high in zip(self.names, self.names[1:], strict=False))

    def __str__(self) -> str:
        return " < ".join(self.names)


@dataclass(frozen=True)
class Each(Rule):
    """Every named value satisfies its own rule."""

    rules: Mapping[str, Rule]

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Mapping) or not self.rules:
            raise ValueError(f"Each takes a rule for each name, {{name: rule, ...}}, got {self.rules!r}.")

    def holds(self, measured: Measured) -> bool:
        values = _named(measured)
        return all(rule.holds(values[name]) for name, rule in self.rules.items())

    def __str__(self) -> str:
        return "; ".join(f"{name} {rule}" for name, rule in self.rules.items())
