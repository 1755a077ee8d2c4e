"""From the JSON of a run to tables: how many times the best peer we are, against what is asked for."""

from typing import Any

from benchmarks.ntk.cases import TABLE
from benchmarks.ntk.peers import LIBRARIES, OURS
from benchmarks.ntk.session import TOLERANCE, Entries, words

PLOT = "ntk.png"


def ratio(entries: Entries) -> float | None:
    """The best peer's seconds over ours, or None where either is missing."""
    seconds = {library: entry["seconds"]["median"] for library, entry in entries.items() if "seconds" in entry}
    ours = seconds.pop(OURS, None)
    return min(seconds.values()) / ours if ours and seconds else None


def verdict(name: str, entries: Entries) -> str:
    """Whether a row of the table is as many times faster than the best peer as it has to be."""
    times = ratio(entries)
    return "yes" if times is not None and times >= TABLE[name].target else "no"


def markdown(result: dict[str, Any]) -> str:
    """The page of a run."""
    machine, cases = result["machine"], {name: result["cases"][name] for name in TABLE if name in result["cases"]}
    libraries = [library for library in LIBRARIES if any(library in case["libraries"] for case in cases.values())]
    titles = [LIBRARIES[library].title for library in libraries]
    parts = [
        "# The tangent kernel",
        "",
        "Made by `make bench-ntk` from `ntk.json` beside this page; do not edit.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB; "
        f"load {machine['load_at_start']} at the start. Python {machine['python']}; {_versions(cases)}.",
        "",
        "Seconds for the whole kernel (N, N, C, C) in float32, compile time excluded: medians, taken in turns after a "
        "warm-up, every library in its own process, with the same weights and inputs and in its best setting, "
        f"looked for in the same run. Before that the kernels are compared; all agree to {TOLERANCE:g} (relative "
        "Frobenius) or it is said below. The lowest figure of a row is bold. A row is of one run, but rows may be of "
        "several (`--case` adds to what there is), with the code of that day; the load is that of the last.",
        "",
        _line(["kernel", *titles, "times the best peer", "at least", "met"]),
        "|---|" + "---:|" * (len(titles) + 2) + "---|",
    ]
    for name, case in cases.items():
        times = ratio(case["libraries"])
        figures = _figures(case["libraries"], libraries, lambda entry: entry["seconds"]["median"])
        goal = f"{TABLE[name].target:g}"
        shown = "" if times is None else f"{times:.2f}"
        parts.append(_line([_title(name, case), *figures, shown, goal, verdict(name, case["libraries"])]))
    others = [f"{_title(name, case)}: {case['cpu']}" for name, case in cases.items() if case["cpu"] != machine["cpu"]]
    if others:
        parts += ["", f"Measured on another machine: {'; '.join(others)}."]
    missing = [row.title for name, row in TABLE.items() if name not in cases]
    if missing:
        parts += ["", f"Not measured: {'; '.join(missing)}."]
    parts += [
        "",
        "Peak resident megabytes beyond the model, the data and the libraries' code, the kernel included:",
        "",
        _line(["kernel", *titles]),
        "|---|" + "---:|" * len(titles),
    ]
    for name, case in cases.items():
        figures = _figures(case["libraries"], libraries, lambda entry: entry["megabytes"])
        parts.append(_line([_title(name, case), *figures]))
    parts += ["", "## Settings", "", *(note for name, case in cases.items() for note in _notes(name, case))]
    if result.get("growth"):
        parts += ["", "## Growth", "", f"![Seconds and peak memory against N, C and width]({PLOT})", "", CAPTION]
    return "\n".join(parts) + "\n"


CAPTION = (
    "Seconds (upper rows) and peak memory (lower rows) of the whole kernel against samples, outputs and width; both "
    "axes logarithmic, a missing point took longer than a minute or failed. Samples: one output. Outputs: 100 samples. "
    "Width: 500 samples, one output, times the width in the table."
)


def text(name: str, case: dict[str, Any]) -> str:
    """One row for the terminal."""
    entries = case["libraries"]
    figures = [f"{LIBRARIES[library].title} {_value(entry)}" for library, entry in entries.items()]
    times = ratio(entries)
    shown = "no ratio" if times is None else f"{times:.2f} times the best peer"
    goal = f"at least {TABLE[name].target:g}: {verdict(name, entries)}"
    return f"{_title(name, case)}: {', '.join(figures)}; {shown}, {goal}"


def point_text(point: dict[str, Any]) -> str:
    """One point of a curve for the terminal."""
    figures = [f"{LIBRARIES[library].title} {_value(entry)}" for library, entry in point["libraries"].items()]
    return f"{point['base']}, {point['axis']} {point['value']:g}: {', '.join(figures)}"


def _title(name: str, case: dict[str, Any]) -> str:
    return f"{TABLE[name].title}, N={case['samples']}"


def _value(entry: dict[str, Any]) -> str:
    return entry.get("failed") or f"{entry['seconds']['median']:.3g} s"


def _figures(entries: Entries, libraries: list[str], figure: Any) -> list[str]:
    """A cell per library, the lowest in bold; empty where it failed."""
    values = {library: figure(entry) for library, entry in entries.items() if "seconds" in entry}
    cells = {library: f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for library, value in values.items()}
    low = min(values, key=values.__getitem__, default=None)
    return [f"**{cells[low]}**" if library == low else cells.get(library, "failed") for library in libraries]


def _notes(name: str, case: dict[str, Any]) -> list[str]:
    """The settings used, how many were tried, and what failed."""
    notes = []
    for library, entry in case["libraries"].items():
        title = f"{_title(name, case)}: {LIBRARIES[library].title}"
        if "failed" in entry:
            notes.append(f"- {title} failed: {entry['failed']}")
        if "tried" in entry and library != OURS:
            notes.append(f"- {title}: {words(entry['setting'])}, the best of {len(entry['tried'])} settings")
    return notes


def _versions(cases: dict[str, Any]) -> str:
    found: dict[str, str] = {}
    for case in cases.values():
        for entry in case["libraries"].values():
            found |= entry.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
