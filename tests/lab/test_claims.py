"""Verdicts are computed from arrays, and survive the way to JSON and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from torchtangent.lab.claims import Claim, Finding, Untested, count, judge, not_run
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Increasing, Near
from torchtangent.lab.study import Arrays

CLAIM = Claim("XX-Fig1", "small", "It is small.", "small", lambda arrays: float(arrays["x"]), AtMost(1.0))


def judged(value: float, claim: Claim = CLAIM) -> Finding:
    return judge(claim, Arrays({"part": {"x": np.array(value)}}), study="xx", scale="smoke", seconds=1.5)


def test_the_verdict_follows_the_arrays() -> None:
    assert judged(0.5).verdict == "held"
    assert judged(1.5).verdict == "did not hold"


@pytest.mark.parametrize(
    "measure",
    [
        lambda arrays: float(arrays["x"].sum()),
        lambda arrays: float(np.sum(arrays["x"] > 2.0)),
        lambda arrays: float(np.argmax(arrays["part/x"])),
        lambda arrays: float(np.sum(arrays.stack("x") > 2.0)),
        lambda arrays: float(np.sum(arrays.get("x") > 2.0)),
        lambda arrays: float(sum(np.sum(array > 2.0) for array in arrays.values())),
    ],
)
def test_a_measure_that_reads_a_nan_tests_nothing(measure: Callable[[Arrays], float]) -> None:
    claim = Claim("XX-Fig1", "n", "s", 1.0, measure, AtMost(1.0))
    for x, verdict in (([0.0, 1.0], "held"), ([0.0, math.nan], "not tested at this scale")):
        arrays = Arrays({"part": {"x": np.array(x)}})
        finding = judge(claim, arrays, study="xx", scale="smoke", seconds=1.5)
        assert finding.verdict == verdict
    assert finding.measured is None
    assert re.fullmatch("the array (part/)?x has NaN", finding.reason)


def test_a_nan_that_is_not_read_costs_nothing() -> None:
    arrays = Arrays({"part": {"x": np.array(0.5), "y": np.array(math.nan), "names": np.array(["a"])}})
    assert judge(CLAIM, arrays, study="xx", scale="smoke", seconds=1.5).verdict == "held"


def test_a_claim_for_another_scale_is_not_tested() -> None:
    claim = Claim("XX-Fig1", "n", "s", 1.0, lambda arrays: 0.0, AtMost(1.0), scales=("paper",))
    finding = judged(0.5, claim)
    assert finding.verdict == "not tested at this scale"
    assert finding.measured is None
    assert "paper" in finding.reason


def test_a_measure_may_say_why_its_arrays_do_not_suffice() -> None:
    def measure(_: Arrays) -> float:
        raise Untested("two of ten runs ended")

    finding = judged(0.5, Claim("XX-Fig1", "n", "s", 1.0, measure, AtMost(1.0)))
    assert (finding.verdict, finding.reason) == ("not tested at this scale", "two of ten runs ended")
    assert finding.measured is None


def test_findings_have_the_ledgers_keys() -> None:
    data = judged(0.5).as_json()
    keys = {"id", "statement", "published", "measured", "verdict", "scale", "seconds", "rule"}
    assert keys <= set(data)
    assert data["measured"] == 0.5
    assert data["seconds"] == 1.5


@pytest.mark.parametrize("measured", [0.5, math.nan, math.inf, None, {"a": 1.0, "b": -math.inf}])
def test_findings_survive_json(measured: float | dict[str, float] | None) -> None:
    finding = Finding(**{**judged(0.5).__dict__, "measured": measured})
    text = json.dumps(finding.as_json(), allow_nan=False)
    back = Finding.from_json(json.loads(text))
    assert str(back) == str(finding)  # as strings, for NaN differs from itself


def test_counts_name_every_verdict() -> None:
    findings = [judged(0.5), judged(1.5), not_run(CLAIM, study="xx", scale="smoke")]
    assert count(f.verdict for f in findings) == {"held": 1, "did not hold": 1, "not tested at this scale": 1}
    assert count([])["held"] == 0


def test_arrays_are_found_by_name_unless_ambiguous() -> None:
    arrays = Arrays({"a": {"x": np.zeros(1)}, "b": {"x": np.ones(1), "y": np.ones(2)}})
    assert arrays["y"].shape == (2,)
    assert arrays["b/x"] == 1
    assert len(arrays) == 3
    with pytest.raises(KeyError, match="several parts"):
        arrays["x"]
    with pytest.raises(KeyError, match="none of"):
        arrays["z"]


def test_infinity_and_hidden_nan_do_not_hold() -> None:
    inf, nan = math.inf, math.nan
    for rule in (Between(0, inf), AtMost(inf), AtLeast(0), Near(1, inf)):
        assert not rule.holds(inf)
        assert rule.holds(1.0)
    for rule in (Each({"x": AtMost(2)}), Increasing("x", "y")):
        claim = Claim("A", "a", "s", 1.0, lambda _: {"x": 1.0, "y": 2.0, "z": nan}, rule)
        assert judge(claim, Arrays({}), study="s", scale="smoke", seconds=0).verdict == "did not hold"


def test_measures_that_exit_or_read_empty_arrays() -> None:
    arrays = Arrays({"part": {"none": np.zeros(0)}})
    for measure, reason in ((lambda A: exit(0), "SystemExit"), (lambda A: A["none"].sum(), "is empty")):
        found = judge(Claim("A", "a", "s", 1.0, measure, AtMost(0)), arrays, study="s", scale="smoke", seconds=0)
        assert found.verdict == "not tested at this scale"
        assert reason in found.reason


def test_numbers_of_numpy_are_written() -> None:
    claim = Claim("A", "a", "s", np.float32(3), lambda _: 1.0, AtMost(2))
    assert json.dumps(judge(claim, Arrays({}), study="s", scale="smoke", seconds=0).as_json())
