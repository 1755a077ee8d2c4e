"""Table 1 beside ours, from whatever parts are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from torchtangent.lab.recipes.ortiz2021.measures.eigenfunctions import NETWORKS
from torchtangent.lab.study import Arrays

COLUMNS = ("network", "of CIFAR2", "paper", "ours", "BatchNorm's statistics")
ROWS = {"init": "energy at the start", "end": "energy at the end", "test": "test accuracy"}

READINGS = (
    ("init", "initial", ("train/energy_before", "frozen/energy_before")),
    ("end", "batch's in training, running in the kernel", ("train/energy_after/0",)),
    ("end", "batch's in training, initial in the kernel", ("train/energy_after/1",)),
    ("end", "initial throughout", ("frozen/energy_after/1",)),
    ("test", "batch's in training", ("train/network_test/-1",)),
    ("test", "initial throughout", ("frozen/network_test/-1",)),
)
"""Row, what BatchNorm's statistics are, and where ResNet18's value is: reading/array/index, the first that is there."""


def table_one(published: Mapping[str, Mapping[str, float]]) -> Callable[[Arrays], list[tuple[str | None, ...]]]:
    """Rows of `COLUMNS`; ours is the mean ± standard deviation over seeds, where there are seeds."""

    def rows(arrays: Arrays) -> list[tuple[str | None, ...]]:
        found: list[tuple[str | None, ...]] = []
        for network in NETWORKS:
            ours = _over_seeds(arrays, network)
            found += [(network, ROWS[k], _percent(v), ours.get(k), "") for k, v in published[network].items()]
        for row, statistics, places in READINGS:
            value = next((v for place in places if (v := _at(arrays, place)) is not None), None)
            found.append(("ResNet18", ROWS[row], _percent(published["ResNet18"][row]), value, statistics))
        return found

    return rows


def _over_seeds(arrays: Arrays, network: str) -> dict[str, str]:
    """Energies and test accuracy of the networks trained on all samples."""
    part = f"sizes-{network}"
    if f"{part}/energy" not in arrays:
        return {}
    energy, tested = arrays[f"{part}/energy"], arrays[f"{part}/network_test"][-1, :, -1]
    return {"init": _percent(energy[:, 0]), "end": _percent(energy[:, -1]), "test": _percent(tested)}


def _at(arrays: Arrays, place: str) -> str | None:
    """ResNet18's value at reading/array/index, None if that part is not there."""
    reading, name, *index = place.split("/")
    key = f"table-ResNet18-{reading}/{name}"
    if key not in arrays:
        return None
    return _percent(arrays[key][int(index[0])] if index else arrays[key])


def _percent(values: float | np.ndarray) -> str:
    """One decimal; of several values the mean ± standard deviation. Spaces do not break.

    >>> _percent(0.636).split(), _percent(np.array([0.25, 0.27])).split()
    (['63.6', '%'], ['26.0', '±', '1.4', '%'])
    """
    values = 100 * np.atleast_1d(values)
    spread = f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{spread}\N{NO-BREAK SPACE}%"
