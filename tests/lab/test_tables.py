"""Tables from arrays: what is not there is a dash, and rows fit the columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torchtangent.lab.recipes import registry
from torchtangent.lab.recipes.ortiz2021.claims import rotation
from torchtangent.lab.recipes.ortiz2021.figures.tables import COLUMNS, table_one
from torchtangent.lab.recipes.ortiz2021.measures.rotation import table
from torchtangent.lab.results import Run, elapsed
from torchtangent.lab.study import Arrays, Table

PUBLISHED = {
    "MLP": {"init": 0.1, "end": 0.2, "test": 0.3},
    "LeNet": {"init": 0.4, "end": 0.5, "test": 0.6},
    "ResNet18": {"init": 0.7, "end": 0.8, "test": 0.9},
}
MLP = {"energy": np.array([[0.20, 0.9, 0.60], [0.24, 0.9, 0.62]]), "network_test": np.zeros((3, 2, 4))}
MLP["network_test"][-1, :, -1] = 0.5, 0.51
RESNET = {"energy_before": np.array(0.22), "energy_after": np.array([0.95, 0.9]), "network_test": np.array([0.1, 0.8])}


def ours(parts: dict[str, dict[str, np.ndarray]]) -> dict[tuple[str, str, str], str]:
    """Our values by network, quantity and reading, with plain spaces."""
    rows = Table("Table 1", COLUMNS, table_one(PUBLISHED)).cells(Arrays(parts))
    return {(network, what, how): value.replace("\xa0", " ") for network, what, _, value, how in rows}


def test_numbers_are_written_out_and_nothing_is_a_dash() -> None:
    table = Table("T", ("a", "b", "c"), lambda arrays: [("x", np.float32(0.25), None), ("y", 12, "")])
    assert table.cells(Arrays({})) == [["x", "0.25", "–"], ["y", "12", ""]]


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    table = Table("Losses", ("a", "b"), lambda arrays: [("x", 1.0), ("y", 1.0, 2.0)])
    with pytest.raises(ValueError, match=r"'Losses' has 2 columns, but the row .*'y'.* has 3 cells"):
        table.cells(Arrays({}))


def test_table_one_of_one_network_has_dashes_for_the_others() -> None:
    found = ours({"sizes-MLP": MLP})
    assert found["MLP", "energy at the start", ""] == "22.0 ± 2.8 %"
    assert found["MLP", "energy at the end", ""] == "61.0 ± 1.4 %"
    assert found["MLP", "test accuracy", ""] == "50.5 ± 0.7 %"
    assert {value for (network, *_), value in found.items() if network != "MLP"} == {"–"}


def test_table_one_names_the_readings_of_batch_norm() -> None:
    found = ours({"table-ResNet18-train": RESNET})
    assert found["ResNet18", "energy at the start", "initial"] == "22.0 %"
    assert found["ResNet18", "energy at the end", "batch's in training, running in the kernel"] == "95.0 %"
    assert found["ResNet18", "energy at the end", "batch's in training, initial in the kernel"] == "90.0 %"
    assert found["ResNet18", "test accuracy", "batch's in training"] == "80.0 %"
    assert found["ResNet18", "test accuracy", "initial throughout"] == "–"
    frozen = ours({"table-ResNet18-frozen": RESNET})
    assert frozen["ResNet18", "energy at the start", "initial"] == "22.0 %"
    assert frozen["ResNet18", "energy at the end", "initial throughout"] == "90.0 %"
    assert frozen["ResNet18", "test accuracy", "batch's in training"] == "–"


def test_table_one_has_the_papers_values() -> None:
    rows = Table("Table 1", COLUMNS, table_one(PUBLISHED)).cells(Arrays({}))
    assert [row[2].replace("\xa0", " ") for row in rows if row[0] == "LeNet"] == ["40.0 %", "50.0 %", "60.0 %"]
    assert {row[1]: row[2].replace("\xa0", " ") for row in rows if row[0] == "ResNet18"} == {
        "energy at the start": "70.0 %",
        "energy at the end": "80.0 %",
        "test accuracy": "90.0 %",
    }


def test_the_docs_have_table_1_of_the_committed_arrays() -> None:
    root = Path(__file__).parents[2]
    study = registry()["ortiz2021"]
    arrays = Run(root / "results" / "ortiz2021" / "paper").load(study.find("Tab1").parts)
    page = (root / "docs" / "results.md").read_text()
    for key, label in (
        ("init", "energy concentration before training"),
        ("end", "after training"),
        ("test", "test acc"),
    ):
        row = next(line for line in page.splitlines() if line.startswith(f"| {label}"))
        pairs = [(paper[key], table(arrays, network)[key]) for network, paper in rotation.PUBLISHED.items()]
        assert row.split("|")[2:-1] == [f" {100 * paper:.1f} %, {100 * ours:.1f} % " for paper, ours in pairs]


def test_the_docs_have_the_advantages_and_minutes_of_the_committed_run() -> None:
    root = Path(__file__).parents[2]
    study = registry()["ortiz2021"]
    run = Run(root / "results" / "ortiz2021" / "paper")
    measured = {(finding.id, finding.name): finding.measured for finding in run.read_claims()}
    linear = measured["OJ-Fig2", "linear advantage"] | measured["OJ-Fig2", "linear advantage, ResNet18"]
    other = measured["OJ-CIFAR2", "non-linear advantage"]
    others = [*other.values(), measured["OJ-CIFAR2", "non-linear advantage, ResNet18"]]
    said = (root / "docs" / "results.md").read_text().replace("\n", " ")
    points = "by {:.0f} points for the MLP, {:.0f} for LeNet, {:.0f} for ResNet18"
    assert points.format(*(100 * linear[name] for name in ("MLP", "LeNet", "ResNet18"))) in said
    assert "by {:.0f}, {:.0f} and {:.0f}".format(*(100 * value for value in others)) in said
    records = {part.name: record for part in study.parts if (record := run.record(part.name))}
    (aim,) = study.aims
    whole, small = elapsed(records.values()), elapsed(records[name] for name in aim.parts)
    assert f"in {whole / 60:.0f} minutes, all of the MLP and LeNet in {small / 60:.0f}" in said


def test_the_docs_have_the_optimizers_of_the_committed_arrays() -> None:
    root = Path(__file__).parents[2]
    optimizers = ("EKFAC-ra", "Adam+BN", "EKFAC", "SGD+BN", "KFAC")
    arrays = Run(root / "results" / "george2018" / "paper").load([f"curves-{name}" for name in optimizers])
    rows = {
        line.split(" |")[0]: line.split("|")[2:-1] for line in (root / "docs" / "results.md").read_text().splitlines()
    }
    losses = [arrays[f"curves-{name}/loss"] for name in optimizers]
    seconds = [arrays[f"curves-{name}/seconds"] for name in optimizers]
    assert rows["| training loss after 8 epochs"] == [f" {loss[:, 7].mean():.1f} " for loss in losses]
    assert rows["| seconds an epoch"] == [f" {np.median(spent[:, 7]) / 8:.2f} " for spent in seconds]


def test_the_docs_have_the_lazy_networks_of_the_committed_claims() -> None:
    root = Path(__file__).parents[2]
    claims = json.loads((root / "results/george2022/paper/claims.json").read_text())
    measured = {(claim["id"], claim["name"]): claim["measured"] for claim in claims}
    onset = measured["TG-Fig5.2-bottomleft", "values"]
    lower, tuned = (100 * measured[f"TG-Fig5.3-{row}", "without it, test"]["over α = 1"] for row in ("top", "bottom"))
    said = (root / "docs" / "results.md").read_text().replace("\n", " ")
    assert f"a loss of {onset['α = 1']:.2f} on clean samples, against {onset['α = 100']:.2f}" in said
    assert f"without it is {lower:.1f} points lower" in said
    assert f"Fine-tuned, against the paper, it is {-tuned:.1f} points higher" in said
