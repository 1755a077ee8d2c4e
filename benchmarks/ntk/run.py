"""`python -m benchmarks.ntk.run`: the tangent kernel by us and the peers, with the same weights and inputs.

Per case: every library looks for its best setting; the kernels are compared; then they are timed in turns.
Then how seconds and memory grow with samples, outputs and width. Writes ntk.json, ntk.md and ntk.png.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.ntk.cases import CURVES, TABLE, Case
from benchmarks.ntk.peers import LIBRARIES, Setting
from benchmarks.ntk.plot import draw
from benchmarks.ntk.report import PLOT, markdown, point_text, text
from benchmarks.ntk.session import measure, tune
from benchmarks.run import RESULTS
from benchmarks.session import Effort

EFFORT = Effort(repeats=7, budget=45.0, limit=180.0)
GROWTH = Effort(repeats=3, budget=10.0, limit=60.0)
QUICK = Effort(repeats=1, budget=1.0, limit=60.0)


def main() -> None:
    """Parses the command line, measures, writes after every case."""
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "ntk.json"
    partly = args.case or args.growth != "yes"
    result: dict[str, Any] = json.loads(path.read_text()) if partly and path.exists() else {"cases": {}, "growth": []}
    result["machine"] = describe()
    fraction = 50 if args.quick else 1  # of the samples

    def write() -> None:
        path.write_text(json.dumps(result, indent=1) + "\n")
        (args.out / "ntk.md").write_text(markdown(result))

    if args.growth != "only":
        for name in args.case or TABLE:
            case = _part(TABLE[name].case, fraction)
            found = {library: {"setting": about.settings[0]} for library, about in LIBRARIES.items()}
            if not args.quick:
                found = {library: tune(case, library, EFFORT.limit) for library in LIBRARIES}
            entries = measure(case, _settings(found), QUICK if args.quick else EFFORT)
            libraries = {library: found[library] | entries[library] for library in entries}
            result["cases"][name] = asdict(case) | {"libraries": libraries, "cpu": result["machine"]["cpu"]}
            print(text(name, result["cases"][name]), flush=True)
            write()
    if args.growth != "no":
        result["growth"] = []
        for point in _growth(result["cases"], fraction, QUICK if args.quick else GROWTH):
            print(point_text(point), flush=True)
            result["growth"].append(point)
            write()
        draw(result["growth"], args.out / PLOT)


def _growth(cases: Mapping[str, Any], fraction: int, effort: Effort) -> Iterator[dict[str, Any]]:
    """The points of every curve whose case has been measured, as they are done."""
    for curve in (curve for curve in CURVES if curve.base in cases):
        settings = _settings(cases[curve.base]["libraries"])
        for value, case in zip(curve.values, curve.cases(), strict=True):
            entries = measure(_part(case, fraction), settings, effort)
            yield {"base": curve.base, "axis": curve.axis, "value": value, "libraries": entries}


def _settings(found: Mapping[str, Any]) -> dict[str, Setting]:
    return {library: best["setting"] for library, best in found.items()}


def _part(case: Case, fraction: int) -> Case:
    return replace(case, samples=max(2, case.samples // fraction))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=TABLE, action="append", help="may be repeated; all if not given")
    parser.add_argument("--growth", choices=("yes", "no", "only"), default="yes", help="the curves")
    parser.add_argument("--quick", action="store_true", help="few samples, once, into runs/: to see that all runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.out = args.out or (Path("runs/bench-ntk") if args.quick else RESULTS)
    return args


if __name__ == "__main__":
    main()
