"""Do the libraries compute the same matrix? Their diagonals, products and traces, compared before anything is timed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import Builder, Built

TOLERANCE = 1e-4
EIGENBASIS = 1e-2  # products of EKFAC: eigenvectors of close eigenvalues are not unique
EIGENVECTORS = 1e-3  # its trace, compared with float64: a GPU's eigenvectors in float32 are not quite orthogonal


def probe(size: int) -> Tensor:
    """The vector that every library multiplies."""
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def values(built: Built, size: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What can be compared: the diagonal, one product, the trace."""
    found: dict[str, Tensor] = {}
    if built.diag is not None:
        found["diag"] = built.diag()
    if built.mv is not None:
        found["mv"] = built.unpack(built.mv(built.pack(probe(size).to(device, dtype))))
    if built.trace is not None:
        found["trace"] = torch.as_tensor(built.trace())
    return {name: value.detach().double().reshape(-1) for name, value in found.items()}


def objection(check: Mapping[str, Any]) -> str:
    """Why a library's figures are not to be compared with; empty if they are."""
    if check.get("differs"):
        return f"computes another matrix, and is not compared with: {check['differs']}"
    far = [f"{k} by {v['distance']:.1e} from {v['from']}" for k, v in check.items() if isinstance(v, dict)]
    return f"DOES NOT AGREE: {', '.join(far)}" if check.get("ok") is False else ""


def deviations(
    found: Mapping[str, Mapping[str, Tensor]],
    builders: Mapping[str, Builder],
    quantity: str,
    exact: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Relative distance of each library's values from the first peer's that has them, or from exact ones by their name.

    A library whose convention differs is reported with the reason and is no reference.
    """
    comparable = {name: found[name] for name in found if not builders[name].differs}
    peers_first = dict(sorted(comparable.items(), key=lambda pair: pair[0] == "torchtangent"))
    references = {**(exact or {}), **peers_first}
    report: dict[str, dict[str, Any]] = {}
    for name, mine in found.items():
        if builders[name].differs:
            report[name] = {"ok": None, "differs": builders[name].differs}
            continue
        report[name] = {"ok": True}
        for what, value in mine.items():
            reference = next(r for r in references if what in references[r])
            if reference == name:
                continue
            target = references[reference][what]
            distance = float((value - target).norm() / target.norm())
            report[name][what] = {"from": reference, "distance": distance}
            limit = TOLERANCE
            if quantity == "ekfac":
                limit = EIGENBASIS if what == "mv" else EIGENVECTORS if exact else TOLERANCE
            report[name]["ok"] &= distance <= limit
    return report
