"""What is run: the identities and theorems of chapter 6 and appendix B, and the experiments."""

from __future__ import annotations

from typing import Any

from torchtangent.lab.recipes.baratin2021 import (
    bounds,
    capacity,
    descent,
    disk,
    features,
    heldout,
    mixtures,
    noise,
    rates,
    spectra,
    supernat,
)
from torchtangent.lab.recipes.baratin2021.claims import CLAIMS
from torchtangent.lab.recipes.baratin2021.entries import ENTRIES
from torchtangent.lab.study import Part, Scale, Study, picker

PARTS = (
    Part("one-step", descent.one_step),
    Part("regression", descent.regression),
    Part("random-kernels", spectra.random_kernels),
    Part("layer-kernels", spectra.layer_kernels),
    Part("random-balls", bounds.random_balls),
    Part("along-training", bounds.along_training),
    Part("rescaling", bounds.rescaling),
    *disk.PARTS,
    *rates.PARTS,
    *features.PARTS,
    *supernat.PARTS,
    *noise.PARTS,
    *heldout.PARTS,
    *mixtures.PARTS,
    *capacity.PARTS,
)


def configuration(scale: Scale) -> dict[str, dict[str, Any]]:
    """Everything that is fixed before the run, by part. `smoke` uses digits, `paper` MNIST."""
    pick = picker(scale)
    data = pick("digits", "mnist", "digits")
    return {
        "one-step": {
            "data": data,
            "samples": pick(32, 200, 8),
            "seed": 0,
            "log10_lrs": [-4, 0],
            "lr_count": 9,
            "leading": pick(20, 50, 5),
        },
        "regression": {
            "data": data,
            "samples": pick(40, 200, 10),
            "seed": 0,
            "steps": pick(10000, 100000, 200),
            "time_count": pick(40, 60, 10),
        },
        "random-kernels": {
            "seed": 0,
            "trials": pick(60, 500, 6),
            "samples": 12,
            "classes": 3,
            "features": pick(20, 20, 5),
        },
        "layer-kernels": {
            "data": data,
            "samples": pick(50, 100, 12),
            "seed": 0,
            "epochs": pick(3, 10, 1),
        },
        "random-balls": {
            "seed": 0,
            "trials": pick(100, 2000, 5),
            "samples": pick(8, 10, 6),
            "classes": 3,
            "features": 12,
            "steps": 6,
            "members": pick(50, 500, 10),
        },
        "along-training": {
            "data": data,
            "samples": pick(50, 200, 10),
            "seed": 0,
            "steps": pick(20, 100, 3),
            "lr": 0.5,
            "signs": pick(500, 5000, 200),
        },
        "rescaling": {"data": data, "samples": pick(40, 150, 8), "seed": 0, "starts": pick(3, 20, 2)},
        **disk.configuration(pick),
        **rates.configuration(pick),
        **features.configuration(pick),
        **supernat.configuration(pick),
        **noise.configuration(pick),
        **heldout.configuration(pick),
        **mixtures.configuration(pick),
        **capacity.configuration(pick),
    }


STUDY = Study(
    key="baratin2021",
    title="Implicit regularization via neural feature alignment",
    reference=(
        "Aristide Baratin, Thomas George, César Laurent, R Devon Hjelm, Guillaume Lajoie, Pascal Vincent and Simon "
        "Lacoste-Julien, AISTATS 2021; chapter 6 and appendix B of Thomas George's thesis, whose numbers the "
        "entries have: TG-Fig6.2 is its figure 6.2."
    ),
    configuration=configuration,
    parts=PARTS,
    entries=ENTRIES,
    claims=CLAIMS,
)
