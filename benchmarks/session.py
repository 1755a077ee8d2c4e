"""One quantity of one case: every library builds it, the results are compared, then everything is timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.cases import Case
from benchmarks.check import deviations, probe, values
from benchmarks.measure import Time, peak_memory, rounds, single_run, summary
from benchmarks.peers import Builder, Built, reason
from benchmarks.tune import best_setting

Entries = dict[str, dict[str, Any]]  # library → what was measured of it, or why not


@dataclass(frozen=True)
class Effort:
    """How long to measure: repeats, seconds for the repeats of one figure, seconds for one call."""

    repeats: int = 10
    budget: float = 60.0
    limit: float = 900.0


def measure(case: Case, quantity: str, builders: Mapping[str, Builder], effort: Effort) -> Entries:
    """Settings, agreement and seconds of every library that has the quantity."""
    entries: Entries = {
        lib: {"setting": best_setting(case.name, quantity, lib), "lazy": builder.lazy}
        for lib, builder in builders.items()
    }
    builds = _compare(case, quantity, builders, entries, effort)
    turns = [[lib] for lib in builds] if quantity == "block" else [list(builds)]  # dense blocks: one at a time
    for libraries in turns:
        _time({lib: builds[lib] for lib in libraries}, builders, entries, probe(case.problem().size), effort)
    return entries


def weigh(case: Case, quantity: str, builders: Mapping[str, Builder], effort: Effort) -> dict[str, dict[str, Any]]:
    """Peak megabytes of every library that has the quantity, each in its best configuration."""
    return {
        lib: peak_memory(case.name, quantity, lib, best_setting(case.name, quantity, lib), 3 * effort.limit)
        for lib in builders
    }


def _compare(
    case: Case, quantity: str, builders: Mapping[str, Builder], entries: Entries, effort: Effort
) -> dict[str, Callable[[], Built]]:
    """The builds that work, each run once, their values compared; the others are entered with the reason."""
    size = case.problem().size
    builds, found = {}, {}
    for lib, builder in builders.items():
        setting = entries[lib]["setting"]
        try:
            build = builder.prepare(case.problem(setting["batch"]), **setting["options"])
            cold, built = single_run(build, effort.limit)
            found[lib] = values(built, size)
        except Exception as error:
            entries[lib]["failed"] = reason(error)
            continue
        builds[lib] = build
        entries[lib]["seconds"] = {"cold build": summary([cold])}
        del built
    for lib, check in deviations(found, builders, quantity).items():
        entries[lib]["check"] = check
    return builds


def _time(
    builds: Mapping[str, Callable[[], Built]],
    builders: Mapping[str, Builder],
    entries: Entries,
    flat: Any,
    effort: Effort,
) -> None:
    """Seconds to build, of the first solve after it, and of the operations once warm."""
    built: dict[str, Built] = {}

    def rebuild(lib: str) -> None:
        built.pop(lib, None)  # the old one's memory first
        built[lib] = builds[lib]()

    def enter(operation: str, times: Mapping[str, list[Time]]) -> None:
        for lib, t in times.items():
            entries[lib]["seconds"][operation] = summary(t)

    enter("build", rounds({lib: partial(rebuild, lib) for lib in builds}, effort.repeats, effort.budget, effort.limit))
    vectors = {lib: b.pack(flat) for lib, b in built.items()}
    for operation in ("solve", "mv", "trace"):
        runs, warm = {}, {}
        for lib, b in built.items():
            method = getattr(b, operation)
            if method is None:
                continue
            run = method if operation == "trace" else partial(method, vectors[lib])
            try:
                first, _ = single_run(run, effort.limit)
            except Exception as error:
                entries[lib][f"{operation} failed"] = reason(error)
                continue
            if operation == "solve" and not builders[lib].lazy:
                enter("first solve", {lib: [first]})
            if first.wall > effort.budget / 4:
                enter(operation, {lib: [first]})
            else:
                runs[lib], warm[lib] = run, first
        enter(operation, rounds(runs, effort.repeats, effort.budget / 4, effort.limit, warm))
