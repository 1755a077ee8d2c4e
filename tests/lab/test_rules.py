"""Every rule reaches both verdicts, and NaN agrees with nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Highest, Increasing, Lowest, Measured, Near, Rule

CASES: list[tuple[Rule, Measured, Measured]] = [
    (AtMost(1.0), 1.0, 1.1),
    (AtMost(1.0), {"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 2.0}),
    (AtLeast(1.0), 1.0, 0.9),
    (Between(1.0, 2.0), 2.0, 2.1),
    (Near(0.5, 0.01), 0.504, 0.506),
    (Near(-0.5, 0.01), -0.496, 0.5),
    (Lowest("a"), {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0}),
    (Highest("a"), {"a": 3.0, "b": 2.0}, {"a": 1.0, "b": 1.0}),
    (Increasing("a", "b", "c"), {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "b": 3.0, "c": 2.0}),
    (Each({"a": AtMost(1.0), "b": AtLeast(5.0)}), {"a": 1.0, "b": 5.0}, {"a": 1.0, "b": 4.0}),
]


@pytest.mark.parametrize(("rule", "good", "bad"), CASES, ids=lambda case: str(case))
def test_both_verdicts_are_reachable(rule: Rule, good: Measured, bad: Measured) -> None:
    assert rule.holds(good)
    assert not rule.holds(bad)
    assert str(rule)


@pytest.mark.parametrize(("rule", "good"), [case[:2] for case in CASES], ids=lambda case: str(case))
def test_nan_never_holds(rule: Rule, good: Measured) -> None:
    assert not rule.holds(math.nan if isinstance(good, float) else dict.fromkeys(good, math.nan))


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
@pytest.mark.parametrize(("rule", "good"), [case[:2] for case in CASES], ids=lambda case: str(case))
def test_infinity_never_holds(rule: Rule, good: Measured, infinity: float) -> None:
    if isinstance(good, float):
        assert not rule.holds(infinity)
        return
    assert not rule.holds(dict.fromkeys(good, infinity))
    judged = str(rule.name) if isinstance(rule, Lowest | Highest) else next(iter(good))
    assert not rule.holds({**good, judged: infinity})


def test_what_never_happens_comes_last() -> None:
    assert Lowest("a").holds({"a": 1.0, "b": math.inf})
    assert Increasing("a", "b").holds({"a": 1.0, "b": math.inf})


def test_orderings_need_names() -> None:
    with pytest.raises(TypeError, match="named values"):
        Lowest("a").holds(1.0)


@pytest.mark.parametrize(
    "make",
    [Increasing, lambda: Increasing("a"), lambda: Between(3, 1), lambda: Each({}), lambda: Each(AtLeast(1))],
)
def test_rules_that_ask_for_nothing_are_refused(make: Callable[[], Rule]) -> None:
    with pytest.raises(ValueError, match=r"compares nothing|can never hold|Each takes a rule for each name"):
        make()


@pytest.mark.parametrize("rule", [AtLeast(0.5), AtMost(1), Between(0, 1), Near(1, 0.1)])
def test_nothing_measured_does_not_hold(rule: Rule) -> None:
    with pytest.raises(ValueError, match="the claim measured nothing"):
        rule.holds({})
    for compared in (Lowest("a"), Highest("a")):
        with pytest.raises(ValueError, match="the claim measured nothing"):
            compared.holds({"a": 1.0})
