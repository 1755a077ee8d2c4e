"""What is run: single steps, the eigenbasis along training, then optimizers on an auto-encoder, VGG11 and ResNet34."""

from __future__ import annotations

from typing import Any

from torchtangent.lab.recipes.george2018 import autoencoder, eigenbasis, grids, images, initialization, steps
from torchtangent.lab.recipes.george2018.claims import CLAIMS
from torchtangent.lab.recipes.george2018.entries import ENTRIES
from torchtangent.lab.recipes.george2018.training import COMPARED, KRONECKER
from torchtangent.lab.study import Aim, Part, Scale, Study, picker

PARTS = (
    Part("one-step", steps.one_step),
    Part("classifier", eigenbasis.classifier),
    Part("initialization", initialization.initialization),
    *(Part(f"search-{name}", autoencoder.search, long=True) for name in COMPARED["autoencoder"]),
    *(Part(f"curves-{name}", autoencoder.curves, (f"search-{name}",), long=True) for name in COMPARED["autoencoder"]),
    *(Part(f"frequency-{name}", autoencoder.frequencies, (f"search-{name}",), long=True) for name in KRONECKER),
    Part("spectra", eigenbasis.spectra, ("search-EKFAC-ra",), long=True),
    *(
        Part(f"{network}-{name}", images.compared, long=True)
        for network in ("VGG11", "ResNet34")
        for name in COMPARED[network]
    ),
)


def configuration(scale: Scale) -> dict[str, dict[str, Any]]:
    """Everything that is fixed before the run, by part. `smoke` uses digits, `paper` MNIST and CIFAR-10."""
    pick = picker(scale)
    return {
        "one-step": {
            "seed": 0,
            "samples": pick(20, 50, 20),
            "steps": pick(4, 10, 2),
            "basis_every": 2,
            "lr": 0.1,
            "damping": 0.01,
            "repeats": pick(5, 20, 2),
        },
        "classifier": {
            "data": pick("digits", "mnist", "digits"),
            "side": pick(8, 28, 3),
            "train": pick(1437, 60_000, 64),
            "test": pick(360, 10_000, 8),
            "width": pick(16, 100, 4),
            "layer": 2,
            "block": pick(250, 250, 15),
            "samples": pick(500, 2000, 32),
            "seeds": pick([0, 1], [0, 1, 2], [0, 1]),
            "steps": pick(400, 1000, 20),
            "batch": pick(50, 100, 16),
            "lr": pick(0.01, 0.003, 0.01),
            "measure_every": pick(20, 10, 5),
            "basis_every": pick(100, 100, 10),
        },
        "initialization": {
            "network": "ResNet34",
            "data": pick("digits", "cifar10", "digits"),
            "side": pick(16, 32, 8),
            "train": pick(50, 500, 4),
            "test": 1,
            "base": pick(8, 64, 2),
            "seeds": pick([0, 1], [0, 1, 2, 3, 4], [0]),
        },
        **grids.every(pick),
    }


STUDY = Study(
    key="george2018",
    title="Fast approximate natural gradient descent in a Kronecker-factored eigenbasis",
    reference=(
        "Thomas George, César Laurent, Xavier Bouthillier, Nicolas Ballas and Pascal Vincent, NeurIPS 2018; chapter 4 "
        "and appendix A of Thomas George's thesis, whose numbers the entries have: TG-Fig4.3 is its figure 4.3. What "
        "they prove is part of the study of the thesis."
    ),
    configuration=configuration,
    parts=PARTS,
    entries=ENTRIES,
    claims=CLAIMS,
    aims=(Aim("paper", 5.0, "everything", tuple(part.name for part in PARTS)),),
)
