"""What every registered study must satisfy; a new one is found by the registry."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from torchtangent.lab import style
from torchtangent.lab.claims import judge
from torchtangent.lab.recipes import registry
from torchtangent.lab.recipes.george2023 import margins
from torchtangent.lab.results import Run
from torchtangent.lab.runner import Context, reproduce
from torchtangent.lab.study import SCALES, Arrays, Entry, Study

STUDIES = list(registry().values())
ENTRIES = [(study, entry) for study in STUDIES for entry in study.entries]
each_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.key)
each_entry = pytest.mark.parametrize(("study", "entry"), ENTRIES, ids=lambda item: getattr(item, "id", ""))

GEORGE2023 = [
    "TG-Fig2.1",
    "TG-Eq2.4",
    "TG-Ridge",
    "TG-MinNorm",
    "TG-Eq-perex",
    "TG-7",
    "TG-Fig3.1",
    "TG-FIM-def",
    "TG-Fig3.3",
    "TG-Fig3.4",
    "TG-Fig3.5",
    "TG-Fig3.6",
    "TG-Prop4.2.1",
    "TG-ThmA.1–3",
    "TG-A.4",
    "TG-FigB.1",
    "TG-FigB.2",
    "TG-Margin",
]
CHAPTER6_PROVEN = ["TG-Lem6.2.1", "TG-PropB.1.4/6", "TG-erank/Tk/CKA", "TG-Thm6.4.1", "TG-PropB.2.5"]
BARATIN2021 = [
    *CHAPTER6_PROVEN,
    *("TG-Fig6.1", "TG-FigB.4", "TG-Fig6.1-notebook", "TG-lr-claim-disk", "TG-FigB.3", "TG-Fig6.5", "TG-SuperNat-id"),
    *("TG-Fig6.2", "TG-Fig6.3", "TG-FigB.8", "TG-lr-claim", "TG-FigB.5", "TG-FigB.6", "TG-Fig6.4", "TG-FigB.7"),
    "TG-Fig6.6",
]
CHAPTER5_PROVEN = ["TG-Prop5.4.1", "TG-Eq5.4.7", "TG-Eq5.4.8", "TG-Ex-init", "TG-Ex1"]
GEORGE2022 = [
    *("TG-5-lin", "TG-5-metrics", "TG-Fig5.1"),
    *CHAPTER5_PROVEN,
    *("TG-Ex2", "TG-Ex3", "TG-FigC.9"),
    *("TG-5-API", "TG-Cscore", "TG-Fig5.2-topleft", "TG-FigC.4", "TG-FigC.5"),
    *("TG-Fig5.2-bottomleft", "TG-Fig5.2-right", "TG-FigC.1", "TG-FigC.2", "TG-FigC.3", "TG-FigC.6"),
    *("TG-Fig5.3-top", "TG-Fig5.3-bottom", "TG-FigC.7", "TG-FigC.8"),
    *("TG-Fig5.3-top-CelebA", "TG-Fig5.3-bottom-Waterbirds"),
]

ORTIZ2021 = [
    *("OJ-Eq1", "OJ-Eq3", "OJ-Lem1", "OJ-Thm1"),
    *(
        "OJ-Gram",
        "OJ-Bin",
        "OJ-Fig2",
        "OJ-Fig3",
        "OJ-Fig13",
        "OJ-Fig14",
        "OJ-Fig7",
        "OJ-Fig15",
        "OJ-Fig16",
        "OJ-Fig11",
        "OJ-Fig12",
    ),
    "OJ-Claim-speed",
    *("OJ-Data-D(u)", "OJ-NAD", "OJ-Fig10", "OJ-Fig4", "OJ-NADdef"),
    *("OJ-CIFAR2", "OJ-Fig5", "OJ-Fig6", "OJ-Tab1", "OJ-Fig8", "OJ-Fig9"),
]

COUNTED = [("TG-5-API", "refused"), ("TG-Cscore", "left out"), ("TG-Margin", "ramp")]
"""The claims that read whole numbers only."""


def test_the_thesis_is_there_whole() -> None:
    assert [entry.id for entry in registry()["george2023"].entries] == GEORGE2023


def test_chapters_on_training_are_studies_of_their_own() -> None:
    assert [entry.id for entry in registry()["baratin2021"].entries] == BARATIN2021
    assert [entry.id for entry in registry()["george2022"].entries] == GEORGE2022


def test_what_linearized_networks_say_is_there() -> None:
    assert [entry.id for entry in registry()["ortiz2021"].entries] == ORTIZ2021


@each_entry
def test_an_entry_is_found_by_a_name_that_a_shell_leaves_alone(study: Study, entry: Entry) -> None:
    assert re.fullmatch(r"[\w.-]+", entry.slug)
    assert study.find(entry.slug) is study.find(entry.id) is entry


@each_study
def test_configurations_are_data_for_every_part(study: Study) -> None:
    for scale in (*SCALES, "test"):
        config = study.configuration(scale)
        assert sorted(config) == sorted(part.name for part in study.parts)
        assert json.loads(json.dumps(config, allow_nan=False)) == config
        assert config == study.configuration(scale)


@each_study
def test_parts_can_run_in_other_processes(study: Study) -> None:
    assert pickle.loads(pickle.dumps(study.parts)) == study.parts


@each_study
def test_parts_and_claims_belong_together(study: Study) -> None:
    names = [part.name for part in study.parts]
    assert len(set(names)) == len(names)
    for i, part in enumerate(study.parts):
        assert set(part.needs) <= set(names[:i])
    ids = [entry.id for entry in study.entries]
    assert {claim.id for claim in study.claims} == set(ids)
    assert len({(claim.id, claim.name) for claim in study.claims}) == len(study.claims)
    assert len({(claim.id, claim.statement) for claim in study.claims}) == len(study.claims)
    assert {part for entry in study.entries for part in entry.parts} | {
        need for part in study.parts for need in part.needs
    } == set(names)


@each_entry
def test_an_entry_runs_and_is_judged_from_its_arrays(study: Study, entry: Entry, all_runs: Path) -> None:
    run = Run(all_runs / study.key / "test")
    arrays = run.load(entry.parts)
    stored = [finding for finding in run.read_claims() if finding.id == entry.id]
    assert len(stored) == len(study.claims_of(entry)) >= 1
    for claim, finding in zip(study.claims_of(entry), stored, strict=True):
        again = judge(claim, arrays, study=study.key, scale="test", seconds=finding.seconds or 0.0)
        assert str(again) == str(finding)
    for name in arrays:
        if arrays[name].dtype.kind == "f":
            assert np.isfinite(arrays[name]).all(), name


@each_entry
def test_no_claim_is_judged_from_nan(study: Study, entry: Entry, all_runs: Path) -> None:
    found = Run(all_runs / study.key / "test").load(entry.parts)
    lost: dict[str, dict[str, np.ndarray]] = {part: {} for part in entry.parts}
    for key, array in found.items():
        part, _, name = key.partition("/")
        lost[part][name] = np.full_like(array, np.nan) if array.dtype.kind == "f" else array
    for claim in study.claims_of(entry):
        finding = judge(claim, Arrays(lost), study=study.key, scale=claim.scales[0], seconds=0.0)
        assert (finding.verdict == "not tested at this scale") != ((claim.id, claim.name) in COUNTED), claim.name


@each_entry
def test_an_entry_is_drawn_and_described(study: Study, entry: Entry, all_runs: Path) -> None:
    arrays = Run(all_runs / study.key / "test").load(entry.parts)
    config = study.configuration("test")
    assert entry.setup.format_map(config)
    assert entry.paper
    assert entry.panels
    assert entry.caption.format_map(config)
    with style.applied():
        for panel in entry.panels:
            figure = panel.draw(arrays)
            assert isinstance(figure, Figure)
            assert panel.alt
            assert all(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("george2023", name) for name in ("gaussians", "second-order", "random-layers", "line-kernels")),
        *(("george2023", name) for name in ("min-norm", "increments", "contraction", "generalization")),
        *(("baratin2021", name) for name in ("regression", "random-kernels", "random-balls", "along-training")),
        *(("baratin2021", name) for name in ("disk", "disk-rates", "interpolators", "supernat")),
        *(("george2022", name) for name in ("trajectories", "linearity", "yin-yang-0", "example-2", "plain-2")),
        *(("george2022", name) for name in ("consistency", "noise-a100-s0", "finetuned-a1-s0")),
        *(("ortiz2021", name) for name in ("norms", "stein", "accuracies")),
    ],
)
def test_the_same_seed_gives_the_same_arrays(key: str, name: str, all_runs: Path, tmp_path: Path) -> None:
    study = registry()[key]
    entry = next(entry for entry in study.entries if name in entry.parts)
    reproduce(study, "test", tmp_path, only=[entry.id])
    first, second = (Run(root / study.key / "test").load([name]) for root in (all_runs, tmp_path))
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])


def test_exact_claims_hold_at_any_scale(all_runs: Path) -> None:
    """Theorems and identities do not depend on the size of the experiment."""
    theorems = ("TG-Fig2.1", "TG-FIM-def", "TG-Prop4.2.1", "TG-ThmA.1–3")
    names = ("implicit", "exact", "formula", "kl", "l2")
    findings = Run(all_runs / "george2023" / "test").read_claims()
    for finding in findings:
        if (finding.id in theorems and finding.name != "monte carlo") or finding.name in names:
            assert finding.verdict == "held", finding


def test_errata_do_not_hold(all_runs: Path) -> None:
    findings = {(finding.id, finding.name): finding for finding in Run(all_runs / "george2023" / "test").read_claims()}
    for key in [("TG-Eq2.4", "kl as printed"), ("TG-A.4", "words")]:
        assert findings[key].verdict == "did not hold"


def test_identities_of_linearized_networks_hold_at_any_scale(all_runs: Path) -> None:
    for finding in Run(all_runs / "ortiz2021" / "test").read_claims():
        if finding.id in ("OJ-Eq1", "OJ-Eq3", "OJ-Lem1", "OJ-Data-D(u)"):
            assert finding.verdict == "held", finding


def test_theorems_on_training_hold_at_any_scale(all_runs: Path) -> None:
    """All that is proven, but not what is fitted or seen during training."""
    proven = {
        "george2023": ("TG-Ridge", "TG-MinNorm", "TG-Eq-perex", "TG-Margin"),
        "baratin2021": (*CHAPTER6_PROVEN, "TG-SuperNat-id"),
        "george2022": ("TG-5-lin", *CHAPTER5_PROVEN),
    }
    seen = ("monte carlo", "first order", "time constant as printed", "along training", "limit", "rate")
    for key, ids in proven.items():
        for finding in Run(all_runs / key / "test").read_claims():
            if finding.id in ids and finding.name not in seen:
                assert finding.verdict == "held", finding


def test_the_printed_time_constant_does_not_hold(all_runs: Path) -> None:
    findings = {finding.name: finding for finding in Run(all_runs / "baratin2021" / "test").read_claims()}
    assert findings["time constant as printed"].verdict == "did not hold"


def test_a_margin_that_is_nan_counts_as_outside_of_the_ramp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = registry()["george2023"]
    part, config = study.part("contraction"), study.configuration("test")["contraction"]
    context = Context(part, config, torch.device("cpu"), Run(tmp_path), None)
    assert part.run(context)["ramp_outside"] == 0
    monkeypatch.setattr(margins, "margin", lambda f, y: np.full(f.shape[:2], np.nan))
    assert part.run(context)["ramp_outside"] > 0
