"""The page `linear.md` of what `benchmarks.linearize` and `benchmarks.dual` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(folder: Path) -> None:
    """Make the page from the JSON files that are there."""
    found = {
        name: json.loads(path.read_text())
        for name in ("linearize", "dual")
        if (path := folder / f"{name}.json").exists()
    }
    lines = [
        "# Linearized networks",
        "",
        "Made from `linearize.json` and `dual.json` beside this page; do not edit.",
        "",
    ]
    if "linearize" in found:
        lines += _steps(found["linearize"])
    dual = found.get("dual", {})
    if "cpu" in dual:
        lines += _many_targets(dual["cpu"])
    if "gpu" in dual:
        lines += _on_gpu(dual["gpu"])
    (folder / "linear.md").write_text("\n".join(lines) + "\n")


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['threads']} threads; load {machine['load_at_start']} at the start; "
        f"torch {machine['packages']['torch']}."
    )


def _steps(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {case}, batch {r['batch']} | {r['seconds']['network']['median']:.3g} | "
        f"{r['seconds']['linearized']['median']:.3g} | {r['ratios']['median']:.2f} | {r['ratios']['min']:.2f} |"
        for case, r in found["cases"].items()
    ]
    return [
        "## A training step",
        "",
        f"Forward, backward and SGD of the network and of `tt.linearize` of it, in turns. {_machine(found['machine'])}",
        "",
        "| | network, seconds | linearized, seconds | ratio of medians | of the fastest |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        "Two at most was aimed for; multiplications alone make it 5/3.",
        "",
    ]


def _many_targets(r: dict[str, Any]) -> list[str]:
    return [
        "## Many targets",
        "",
        f"Linearized LeNet with one output, {r['samples']:,} samples, {r['targets']} targets, {r['epochs']} epochs "
        f"of batch 128. {_machine(r['machine'])}",
        "",
        "| | seconds |",
        "|---|---:|",
        f"| function space, all targets, the kernel ({r['kernel seconds']:.1f} s) included | "
        f"{r['function space seconds, kernel included']:.1f} |",
        "| the linearized module, target by target at its best batch size, extrapolated from an epoch of two targets | "
        f"{r['module seconds, extrapolated from an epoch of two targets']:,.0f} |",
        "",
        f"{r['times faster']:.0f} times faster. After an epoch with the same batches they differ by "
        f"{r['difference after an epoch']:.0e}, relative.",
        "",
    ]


def _on_gpu(r: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {r[key]['seconds']:.1f} | {r[key]['error of c after 2 epochs']:.0e} "
        f"| {r[key]['peak GiB'] or float('nan'):.0f} |"
        for key, name in (("ieee", "float32"), ("tf32", "TF32"))
    ]
    return [
        "## On a GPU",
        "",
        f"A kernel of {r['samples']:,} × {r['samples']:,}, {r['targets']:,} targets, {r['epochs']} epochs "
        f"of batch 128, momentum 0.9. {r['device']}, torch {r['torch']}.",
        "",
        "| products in | seconds | error of c after two epochs, against float64 | peak GiB |",
        "|---|---:|---:|---:|",
        *rows,
    ]
