"""The page `optim.md` of what `benchmarks.optim` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OURS = ("KFAC", "EKFAC", "EKFAC-ra")
PEER = "ASDL KFAC"
LIMITS = {  # (device, workload) → optimizer → the most that its step may take, in steps of SGD
    ("cpu", "autoencoder"): {"EKFAC": 4.0, "EKFAC-ra": 4.0},
    ("cuda", "vgg11"): {"EKFAC-ra": 2.0},
}
PIECES = ("forward", "backward", "covariances", "decomposition", "scalings", "preconditioning", "update")


def write(folder: Path) -> None:
    """Make the page from the JSON files that are there."""
    made = "Made by `python -m benchmarks.optim` from the JSON files beside this page; do not edit."
    lines = ["# A step of the optimizers", "", made, ""]
    for device in ("cpu", "cuda"):
        path = folder / f"optim-{device}.json"
        if path.exists():
            lines += _device(device, json.loads(path.read_text()))
    (folder / "optim.md").write_text("\n".join(lines).rstrip() + "\n")


def _device(device: str, found: dict[str, Any]) -> list[str]:
    machine, every = found["machine"], found["every"]
    where = f"{machine['threads']} threads; load {machine['load_at_start']} at the start" if device == "cpu" else "CUDA"
    peer = found["peer"] or "not installed"
    lines = [
        f"## On a {'CPU' if device == 'cpu' else 'GPU'}",
        "",
        f"{found['device']}, {where}; torch {machine['packages']['torch']}. Public KFAC: {peer}.",
        "",
        "Milliseconds of forward, backward and step, medians over turns in one process, every optimizer on the same "
        f"batch. Decompositions are renewed every {every} steps: *renewing* is a step that does so, *ordinary* one "
        f"that does not, *amortized* the mean of {every}.",
        "",
    ]
    for name, work in found["workloads"].items():
        lines += [f"### {work['title']}", "", f"{work['parameters']:,} parameters.", ""]
        limits = {} if found["quick"] else LIMITS.get((device, name), {})
        lines += [*_steps(work, limits), *([] if found["quick"] else _verdict(work)), *_pieces(work)]
    return lines


def _steps(work: dict[str, Any], limits: dict[str, float]) -> list[str]:
    rows = ["| | ordinary | renewing | amortized | times SGD | at most | met |", "|---|---:|---:|---:|---:|---:|---|"]
    sgd = work["optimizers"]["SGD"]["amortized"]
    for name, r in work["optimizers"].items():
        ratio = r["amortized"] / sgd
        renewing = f"{_ms(r['renewing'])}" if name in (*OURS, PEER) else "–"
        limit = limits.get(name)
        target = f"{limit:g} | {'yes' if ratio <= limit else 'no'}" if limit else " | "
        rows.append(f"| {name} | {_ms(r['ordinary'])} | {renewing} | {_ms(r['amortized'])} | {ratio:.2f} | {target} |")
    rows += [f"| {name} | {why} | | | | | |" for name, why in work["missing"].items()]
    return [*rows, ""]


def _verdict(work: dict[str, Any]) -> list[str]:
    """Ours against the public KFAC."""
    if PEER not in work["optimizers"]:
        return []
    peer, ours = work["optimizers"][PEER]["amortized"], work["optimizers"]["KFAC"]["amortized"]
    said = f"A step of KFAC as the public library does it takes {peer / ours:.2f} times ours"
    aim = f"at least 1 was aimed for: {'met' if peer >= ours else 'not met'}"
    return [f"{said} ({aim}). It leaves the biases out of the layers' blocks, which is less work.", ""]


def _pieces(work: dict[str, Any]) -> list[str]:
    """Where the time goes, from steps of their own, with the device waited for after every piece."""
    lines = [
        "Where it goes, milliseconds. Forward and backward have our recording in them; *rest* is checks, factors and "
        "everything else of `step()`.",
        "",
        f"| | {' | '.join(PIECES)} | rest | sum |",
        "|---|" + "---:|" * (len(PIECES) + 2),
    ]
    for name, kinds in work["pieces"].items():
        for kind, seconds in kinds.items():
            if name == "SGD" and kind == "renewing":
                continue
            row = dict(seconds)
            rest = row.pop("step")
            if name == "SGD":
                row["update"], rest = rest, 0.0
            cells = [_ms(row[key]) if row.get(key) else "" for key in PIECES] + [_ms(rest) if rest else ""]
            title = name if name == "SGD" else f"{name}, {kind}"
            lines.append(f"| {title} | {' | '.join(cells)} | {_ms(sum(seconds.values()))} |")
    return [*lines, ""]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"
