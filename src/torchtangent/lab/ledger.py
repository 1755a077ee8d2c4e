"""Every claim over all runs: its verdict at the largest scale that tested it, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchtangent.lab.claims import UNTESTED, Claim, Finding, Verdict
from torchtangent.lab.study import Study

LARGEST_FIRST = ("paper", "smoke", "test")
NOT_RUN = "not run"
COLUMNS = ("study", "claims", "held", "did not hold", "not tested", "tested at paper scale", "why not tested")
BEGIN, END = "<!-- ledger: torchtangent claims --markdown --into README.md -->", "<!-- end of ledger -->"


@dataclass(frozen=True)
class Standing:
    """What is known about a claim.

    Attributes:
        claim: The claim.
        findings: The runs' findings by scale, the largest scale first.
    """

    claim: Claim
    findings: Mapping[str, Finding]

    @property
    def tested(self) -> dict[str, Finding]:
        """The findings that have a verdict, by scale."""
        return {scale: finding for scale, finding in self.findings.items() if finding.verdict != UNTESTED}

    @property
    def verdict(self) -> Verdict:
        """The verdict at the largest scale that tested the claim."""
        return next((finding.verdict for finding in self.tested.values()), UNTESTED)

    @property
    def reason(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.tested:
            return ""
        said = [finding.reason for finding in self.findings.values() if finding.reason not in ("", NOT_RUN)]
        if said:
            return said[0]
        return NOT_RUN if "smoke" in self.claim.scales else "needs the paper scale"


@dataclass(frozen=True)
class Line:
    """A line of the ledger, for one study or all: the number of claims with each verdict."""

    name: str
    standings: Sequence[Standing]

    def number(self, verdict: Verdict) -> int:
        """How many claims have this verdict."""
        return sum(standing.verdict == verdict for standing in self.standings)

    @property
    def at_paper_scale(self) -> int:
        """How many claims were tested at paper scale."""
        return sum("paper" in standing.tested for standing in self.standings)

    @property
    def reasons(self) -> str:
        """Why claims were not tested: each reason with its count, the most frequent first."""
        return count_reasons(standing.reason for standing in self.standings)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the line, for the columns `COLUMNS`."""
        numbers = (
            len(self.standings),
            self.number("held"),
            self.number("did not hold"),
            self.number(UNTESTED),
            self.at_paper_scale,
        )
        return (self.name, *map(str, numbers), self.reasons)


def count_reasons(reasons: Iterable[str]) -> str:
    """Each reason with its count, the most frequent first; empty ones are ignored.

    >>> count_reasons(["", "the part a failed", "not run", "not run"])
    'not run: 2, the part a failed: 1'
    """
    counted = Counter(reason for reason in reasons if reason)
    return ", ".join(f"{reason}: {number}" for reason, number in counted.most_common())


def stand(study: Study, findings: Iterable[Finding]) -> list[Standing]:
    """Every claim of a study with the findings of its runs; of two at one scale, the first that tested it counts."""
    found: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        mine = found.setdefault((finding.id, finding.name), {})
        if finding.scale not in mine or mine[finding.scale].verdict == UNTESTED:
            mine[finding.scale] = finding
    standings = []
    for claim in study.claims:
        mine = found.get((claim.id, claim.name), {})
        standings.append(Standing(claim, {scale: mine[scale] for scale in LARGEST_FIRST if scale in mine}))
    return standings


def summarize(ledger: Mapping[str, Sequence[Standing]]) -> list[Line]:
    """A line for each study, and one for all of them if there are several."""
    lines = [Line(name, standings) for name, standings in ledger.items()]
    if len(lines) > 1:
        lines.append(Line("all", [standing for line in lines for standing in line.standings]))
    return lines


def markdown(lines: Sequence[Line]) -> str:
    """The table as Markdown, between the markers that `put` looks for."""
    rows = [COLUMNS, ("---", *(5 * ["---:"]), "---"), *(line.cells for line in lines)]
    return "\n".join([BEGIN, *(f"| {' | '.join(row)} |" for row in rows), END])


def put(table: str, text: str) -> str:
    """The text with its table replaced by this one.

    Raises:
        ValueError: If the text has no markers for a table.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no place for the table: the file should hold the lines {BEGIN!r} and {END!r}")
    return before + table + after
