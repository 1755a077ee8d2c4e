"""How seconds and peak memory grow with samples, outputs and width: one figure from the JSON of a run."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from benchmarks.ntk.cases import CURVES, TABLE, Curve
from benchmarks.ntk.peers import LIBRARIES
from torchtangent.lab import style

NETWORKS = {"mlp": "MLP", "lenet": "LeNet"}
AXES = {"samples": "samples N", "outputs": "outputs C", "width": "width (times the table's)"}


def draw(growth: list[dict[str, Any]], path: Path) -> None:
    """Writes the figure; a library has no point where it failed or took too long."""
    with style.applied():
        columns = list(AXES)
        figure = Figure(figsize=(10, 11), layout="constrained")
        grid = figure.subplots(2 * len(NETWORKS), len(columns))
        for curve in CURVES:
            network = TABLE[curve.base].case.network
            row, column = 2 * list(NETWORKS).index(network), columns.index(curve.axis)
            points = [point for point in growth if (point["base"], point["axis"]) == (curve.base, curve.axis)]
            title = f"{NETWORKS[network]}: {_fixed(curve)}"
            _panel(grid[row][column], curve, points, "seconds", title)
            _panel(grid[row + 1][column], curve, points, "megabytes", title)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.savefig(path, dpi=110, facecolor="white")


def _panel(axes: Axes, curve: Curve, points: list[dict[str, Any]], what: str, title: str) -> None:
    for i, (library, about) in enumerate(LIBRARIES.items()):
        found = [(p["value"], p["libraries"].get(library, {})) for p in points]
        values = [(x, _figure(entry, what)) for x, entry in found if "seconds" in entry]
        axes.plot(*zip(*values, strict=True) if values else ([], []), label=about.title, **style.series(i))
    axes.set(title=title, xlabel=AXES[curve.axis], ylabel="peak MB" if what == "megabytes" else what)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(curve.values, minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(ScalarFormatter())


def _figure(entry: dict[str, Any], what: str) -> float:
    return entry["seconds"]["median"] if what == "seconds" else max(entry["megabytes"], 0.1)


def _fixed(curve: Curve) -> str:
    """What stays the same along a curve."""
    outputs = TABLE[curve.base].case.outputs
    parts = [] if curve.axis == "samples" else [f"N={curve.samples}"]
    return ", ".join(parts if curve.axis == "outputs" else [*parts, f"C={outputs}"])
