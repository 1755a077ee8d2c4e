"""From the JSON of a run to tables: how many times the best peer we are, against what was aimed at."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.check import objection
from benchmarks.peers import LIBRARIES, QUANTITIES

OURS = "torchtangent"
TITLES = {
    "diagonal": "diagonal",
    "kfac": "KFAC",
    "ekfac": "EKFAC",
    "block": "block diagonal",
    "implicit": "implicit",
}
OPERATIONS = ("build", "first solve", "solve", "mv", "trace")


@dataclass(frozen=True)
class Row:
    """One figure of all libraries, lower is better."""

    quantity: str
    operation: str
    values: dict[str, float]
    target: float | None  # how many times the best peer we want to be
    against: str | None  # the best peer

    @property
    def ratio(self) -> float | None:
        """Best peer's value over ours."""
        if self.against not in self.values or OURS not in self.values:
            return None
        return self.values[self.against] / max(self.values[OURS], 1e-12)

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.ratio is None or self.target is None:
            return ""
        return "yes" if self.ratio >= self.target else "no"


def time_rows(result: dict[str, Any], quantity: str) -> list[Row]:
    """Seconds (medians) per operation."""
    rows = []
    for operation in OPERATIONS:
        times = _entries(result, quantity, operation, "seconds")
        if times:
            values = {lib: t["median"] for lib, t in times.items()}
            target = _target(result["case"], quantity, operation)
            rows.append(Row(quantity, operation, values, target, _fastest_peer(values, result, quantity)))
    return rows


def memory_row(result: dict[str, Any], quantity: str) -> Row | None:
    """Peak megabytes of building, or of a product where building does nothing, against the fastest peer's."""
    operation = "mv" if quantity == "implicit" else "build"
    values = _entries(result, quantity, operation, "megabytes")
    times = [row for row in time_rows(result, quantity) if row.operation == operation]
    return Row(quantity, f"peak MB, {operation}", values, 1.0, times[0].against) if values and times else None


def text_table(result: dict[str, Any], quantity: str) -> str:
    """One quantity for the terminal."""
    lines = [f"\n{result['title']}: {TITLES[quantity]}"]
    shown = _libraries(result)
    lines.append("".join(f"{cell:>14}" for cell in ("", *shown, "ratio", "target", "met")))
    for row in _rows(result, quantity):
        cells = [row.operation, *(_number(row.values.get(lib)) for lib in shown)]
        cells += [_ratio(row.ratio), _goal(row.target), row.verdict]
        lines.append("".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines + [f"  {note}" for note in _notes(result, quantity)])


def markdown(folder: Path) -> str:
    """The page of all cases in a results folder."""
    machine = json.loads((folder / "machine.json").read_text())
    versions = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    parts = [
        "# Benchmarks",
        "",
        "Made by `python -m benchmarks.run` from the JSON files beside this page; do not edit.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB; "
        f"load {machine['load_at_start']} at the start. Python {machine['python']}; {versions}.",
        "",
        "Exact Fisher of a 10-class softmax. Seconds are medians, measured in turns in one process after a "
        "warm-up; `first solve` is the first one after building, with whatever it factorizes. Megabytes are the "
        "peak resident memory of a fresh process beyond the model and the data. Ratio: the best peer's figure "
        "over ours, so that above 1 we are better. For memory the peer to compare with is the fastest one; the "
        "lowest figure of a row is bold.",
        "",
        "The rows of a quantity are of one run, with all libraries in turns; quantities may be of several runs, on "
        "virtual machines of one name of which some are half as fast as others: compare within a quantity.",
    ]
    for name in CASES:
        path = folder / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            parts += ["", *_section(result)]
            others = {quantity: cpu for quantity, cpu in result["cpus"].items() if cpu != machine["cpu"]}
            parts += [f"- {TITLES[quantity]}: measured on another machine, {cpu}." for quantity, cpu in others.items()]
    return "\n".join(parts) + "\n"


def _section(result: dict[str, Any]) -> list[str]:
    shown = _libraries(result)
    lines = [f"## {result['title']} ({result['parameters']:,} parameters)", ""]
    lines.append("| | | " + " | ".join(shown) + " | ratio | target | met |")
    lines.append("|---|---|" + "---:|" * (len(shown) + 2) + "---|")
    notes = []
    for quantity in QUANTITIES:
        for i, row in enumerate(_rows(result, quantity)):
            cells = [TITLES[quantity] if i == 0 else "", row.operation]
            for lib in shown:
                cell = _number(row.values.get(lib))
                cells.append(f"**{cell}**" if cell and row.values[lib] == min(row.values.values()) else cell)
            cells += [_ratio(row.ratio), _goal(row.target), row.verdict]
            lines.append("| " + " | ".join(cells) + " |")
        notes += [f"- {TITLES[quantity]}: {note}" for note in _notes(result, quantity)]
    notes += [f"- {lib} is not measured: {why}" for lib, why in result.get("missing", {}).items()]
    return [*lines, "", *notes]


def _rows(result: dict[str, Any], quantity: str) -> list[Row]:
    memory = memory_row(result, quantity)
    return time_rows(result, quantity) + ([memory] if memory else [])


def _notes(result: dict[str, Any], quantity: str) -> list[str]:
    """Failures, values that do not agree, conventions that differ, and the settings that were best."""
    notes = []
    for lib, entry in result["quantities"].get(quantity, {}).items():
        for key in ("failed", "solve failed", "mv failed", "trace failed"):
            if key in entry:
                notes.append(f"{lib} {key}: {entry[key]}")
        if "failed" in entry.get("megabytes", {}) and "failed" not in entry:
            notes.append(f"{lib} memory failed: {entry['megabytes']['failed']}")
        if said := objection(entry.get("check", {})):
            notes.append(f"{lib} {said}")
        setting = entry.get("setting", {"batch": None, "options": {}})
        words = [f"batches of {setting['batch']}"] if setting["batch"] else []
        words += [f"{k}={v}" for k, v in setting["options"].items()]
        if words:
            notes.append(f"{lib} at its best with {', '.join(words)}")
    return notes


def _target(case: str, quantity: str, operation: str) -> float | None:
    """What we aim at, as a multiple of the best peer's speed; none for building nothing."""
    if quantity == "implicit":
        return None if operation == "build" else 1.0
    return 3.0 if CASES[case].convolutional and quantity in ("diagonal", "ekfac") and operation == "build" else 1.5


def _entries(result: dict[str, Any], quantity: str, operation: str, what: str) -> dict[str, Any]:
    """What was measured of an operation, by library; beside a built matrix, what builds nothing is left out."""
    return {
        lib: entry[what][operation]
        for lib, entry in result["quantities"].get(quantity, {}).items()
        if operation in entry.get(what, {})
        and not (operation == "build" and quantity != "implicit" and entry.get("lazy"))
    }


def _fastest_peer(values: dict[str, float], result: dict[str, Any], quantity: str) -> str | None:
    """Among the peers that compute the same matrix as we do."""
    entries = result["quantities"][quantity]
    peers = [lib for lib in values if lib != OURS and not objection(entries[lib].get("check", {}))]
    return min(peers, key=lambda lib: values[lib]) if peers else None


def _libraries(result: dict[str, Any]) -> list[str]:
    present = {lib for entries in result["quantities"].values() for lib in entries}
    return [lib for lib in LIBRARIES if lib in present]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _goal(target: float | None) -> str:
    return "" if target is None else f"{target:g}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
