"""Every claim once, with its verdict at the largest scale, or the reason why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab_toy import toy_study

from torchtangent.lab import ledger
from torchtangent.lab.claims import Finding
from torchtangent.lab.judging import verdicts
from torchtangent.lab.ledger import Line, Standing, stand
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import find_runs
from torchtangent.lab.runner import reproduce

ROOT = Path(__file__).parents[2]
TOY = toy_study()


Findings = list[Finding]


def line(*runs: Findings) -> Line:
    return Line("toy2000", stand(TOY, [finding for run in runs for finding in run]))


def rewritten(findings: Findings, **fields: str | None) -> Findings:
    """The findings with all of their verdicts changed."""
    return [replace(finding, **fields) for finding in findings]  # type: ignore[arg-type]


@pytest.fixture
def smoke(tmp_path: Path) -> Findings:
    return reproduce(TOY, "smoke", tmp_path).findings


@pytest.fixture
def paper(tmp_path: Path) -> Findings:
    return reproduce(TOY, "paper", tmp_path).findings


def test_without_runs_every_claim_says_what_it_needs() -> None:
    assert line().cells == ("toy2000", "3", "0", "0", "3", "0", "not run: 2, needs the paper scale: 1")


def test_smoke_alone_tests_what_it_can(smoke: Findings) -> None:
    assert line(smoke).cells == ("toy2000", "3", "1", "1", "1", "0", "needs the paper scale: 1")


def test_the_largest_scale_decides(smoke: Findings, paper: Findings) -> None:
    both = line(rewritten(smoke, verdict="held"), paper)
    assert both.cells == ("toy2000", "3", "1", "2", "0", "3", "")
    assert list(both.standings[1].tested) == ["paper", "smoke"]
    assert [finding.verdict for finding in both.standings[1].tested.values()] == ["did not hold", "held"]


def test_an_untested_larger_scale_leaves_the_smaller_verdict(smoke: Findings, paper: Findings) -> None:
    untested = rewritten(paper, verdict="not tested at this scale", measured=None, reason="not run")
    assert line(untested, smoke).cells[2:6] == ("1", "1", "1", "0")
    assert line(untested, smoke).reasons == "needs the paper scale: 1"


def test_a_run_may_say_another_reason(smoke: Findings) -> None:
    untested = rewritten(smoke, verdict="not tested at this scale", measured=None, reason="data absent")
    assert line(untested).reasons == "data absent: 3"


def test_of_two_runs_at_one_scale_the_one_that_tested_counts(smoke: Findings) -> None:
    other = rewritten(smoke, verdict="not tested at this scale", measured=None, reason="not run")
    assert line(smoke, other).cells == line(other, smoke).cells == line(smoke).cells


def test_claims_that_the_study_no_longer_has_are_left_out(smoke: Findings) -> None:
    assert len(line([*smoke, replace(smoke[0], name="gone")]).standings) == len(TOY.claims)


def test_several_studies_have_a_sum(smoke: Findings) -> None:
    lines = ledger.summarize({"a": stand(TOY, smoke), "b": stand(TOY, [])})
    assert lines[-1].cells == ("all", "6", "1", "1", "4", "0", "needs the paper scale: 2, not run: 2")
    assert [each.name for each in ledger.summarize({"a": stand(TOY, [])})] == ["a"]


def test_a_verdict_leaves_no_reason(smoke: Findings) -> None:
    assert Standing(TOY.claims[0], {"smoke": smoke[0]}).reason == ""


def test_the_table_replaces_the_one_that_is_there() -> None:
    first, second = ledger.markdown([line()]), ledger.markdown([Line("other", [])])
    text = f"before\n{first}\nafter\n"
    assert ledger.put(second, text) == f"before\n{second}\nafter\n"
    assert ledger.put(first, text) == text
    with pytest.raises(ValueError, match="no place for the table"):
        ledger.put(first, "nothing here")


def test_the_readme_has_the_table_of_the_committed_results() -> None:
    found: dict[str, Findings] = {key: [] for key in registry()}
    for run in find_runs(ROOT / "results"):
        found[run.study] += verdicts(registry()[run.study], run)
    table = ledger.markdown(ledger.summarize({key: stand(study, found[key]) for key, study in registry().items()}))
    assert table in (ROOT / "README.md").read_text(encoding="utf-8"), (
        "The README's table is not that of results/: run `torchtangent claims --markdown --into README.md`."
    )
