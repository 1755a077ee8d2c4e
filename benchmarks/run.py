"""`python -m benchmarks.run`: builds, products, solves and traces of us and the peers on the same inputs.

Per case and quantity: every library builds once and the results are compared; then builds are timed
in turns, then the operations; then peak memory, each in a fresh process. Writes one JSON per case and
the machine's description, prints a table, and remakes results/README.md from the JSON.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import CASES, Case
from benchmarks.machine import THREADS, describe
from benchmarks.peers import LIBRARIES, QUANTITIES, load_all
from benchmarks.report import markdown, text_table
from benchmarks.session import Effort, measure, weigh

RESULTS = Path(__file__).parent / "results"
QUICK = Effort(repeats=1, budget=1.0, limit=120.0)


def main() -> None:
    """Parses the command line, measures, writes."""
    args = _arguments()
    effort = QUICK if args.quick else Effort(args.repeats, args.budget, args.limit)
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore")  # the peers' own, of deprecated calls
    args.out.mkdir(parents=True, exist_ok=True)
    _write(args.out / "machine.json", describe())
    libraries, missing = load_all(args.only or LIBRARIES)
    for name in args.case or CASES:
        path = args.out / f"{name}.json"
        result = _earlier(path, CASES[name], partly=args.only or args.quantity or args.memory == "only")
        result["missing"] = missing
        for quantity in args.quantity or QUANTITIES:
            builders = {lib: builders[quantity] for lib, builders in libraries.items() if quantity in builders}
            kept: dict[str, Any] = result["quantities"].setdefault(quantity, {})
            result.setdefault("cpus", {})[quantity] = describe()["cpu"]
            if args.memory != "only":
                kept |= measure(CASES[name], quantity, builders, effort)
            if args.memory != "no":
                for lib, megabytes in weigh(CASES[name], quantity, builders, effort).items():
                    kept.setdefault(lib, {})["megabytes"] = megabytes
            _write(path, result)
            print(text_table(result, quantity), flush=True)
    (args.out / "README.md").write_text(markdown(args.out))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="may be repeated; all if not given")
    parser.add_argument("--only", choices=LIBRARIES, action="append", help="a library; may be repeated")
    parser.add_argument("--quantity", choices=QUANTITIES, action="append", help="may be repeated")
    parser.add_argument("--memory", choices=("yes", "no", "only"), default="yes", help="peak memory")
    parser.add_argument("--quick", action="store_true", help="one repeat, no memory: to see that all runs")
    parser.add_argument("--repeats", type=int, default=Effort.repeats)
    parser.add_argument("--budget", type=float, default=Effort.budget, help="seconds for the repeats of a figure")
    parser.add_argument("--limit", type=float, default=Effort.limit, help="seconds for one call")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.memory = "no"
    return args


def _earlier(path: Path, case: Case, partly: Any) -> dict[str, Any]:
    """What a partial run adds to: the earlier result, if there is one."""
    if partly and path.exists():
        return json.loads(path.read_text())
    size = case.problem().size
    return {"case": case.name, "title": case.title, "parameters": size, "samples": case.samples, "quantities": {}}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
