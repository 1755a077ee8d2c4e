"""What is run: identities, eigenfunctions, directions, sample sizes, the rotation of the kernel, ResNet18."""

from __future__ import annotations

from typing import Any

from torchtangent.lab.recipes.ortiz2021 import deep, directions, eigenfunctions, predictors, rotation, theory
from torchtangent.lab.recipes.ortiz2021.claims import CLAIMS
from torchtangent.lab.recipes.ortiz2021.entries import ENTRIES
from torchtangent.lab.study import Aim, Part, Scale, Study, picker

NETWORKS = ("MLP", "LeNet")
KERNEL = "kernel-ResNet18"
SINGLE = tuple(f"network-ResNet18-{position}" for position in ("first", "early", "middle", "last"))
"""ResNet18 on the signs of one eigenfunction each; on a further one, that of OJ-Fig8, in a part of its own."""

PARTS = (
    *(Part(f"sizes-{network}", rotation.sample_sizes) for network in reversed(NETWORKS)),
    *(Part(f"adam-{network}", eigenfunctions.with_adam) for network in reversed(NETWORKS)),
    Part("averaged", directions.averaged, long=True),
    *(Part(f"eigenfunctions-{network}", eigenfunctions.learning) for network in reversed(NETWORKS)),
    *(Part(f"mnist-{network}", eigenfunctions.learning, long=True) for network in reversed(NETWORKS)),
    *(Part(f"pretrained-{network}", rotation.pretrained) for network in reversed(NETWORKS)),
    Part("accuracies", predictors.accuracies),
    Part("linearization", theory.linearization),
    Part("stein", theory.stein),
    Part("first-directions", directions.first),
    *(Part(f"initial-energy-{network}", rotation.initial_energy) for network in NETWORKS),
    Part("norms", theory.norms),
    Part("data-set", predictors.data_set),
    Part("alignments", theory.alignments),
    Part(KERNEL, deep.kernel),
    *(Part(name, deep.network, needs=(KERNEL,)) for name in SINGLE),
    Part("pretrained-ResNet18", deep.pretrained, needs=(KERNEL,)),
    Part("eigenfunctions-ResNet18", deep.collected, needs=(KERNEL, *SINGLE, "pretrained-ResNet18")),
    Part("table-ResNet18-train", deep.table),
    Part("table-ResNet18-frozen", deep.table),
)
"""The longest first, so that none is left alone at the end where parts run side by side (`--jobs`)."""


def configuration(scale: Scale) -> dict[str, dict[str, Any]]:
    """Everything that is fixed before the run, by part. `smoke` uses digits and small images, `paper` CIFAR-10's."""
    pick = picker(scale)
    data = pick("digits", "cifar10", "digits")
    networks = ["LeNet", "ResNet18"]
    base = pick(4, 64, 2)
    identities = {
        "data": data,
        "samples": pick(64, 1000, 16),
        "seed": 42,
        "eigenfunctions": pick([0, 1, 3, 10, 30], [0, 1, 2, 5, 10, 20, 50, 100, 200, 500], [0, 1, 5]),
        "draws": pick(2, 10, 2),
    }
    training = {
        "data": data,
        "side": pick(8, 32, 8),
        "train": pick(256, 50_000, 64),
        "test": pick(128, 10_000, 32),
        "width": pick(64, 100, 8),
        "seed": 42,
        "epochs": pick(15, 100, 3),
        "batch": pick(32, 128, 16),
        "lr": 0.05,
    }
    learned = training | {
        "eigenfunctions": pick(100, 1000, 8),
        "indices": pick([1, 5, 20, 50, 99], [1, 2, 5, 10, 20, 50, 100, 200, 400, 500, 600, 800, 999], [1, 3, 7]),
        "trained": pick([5, 20, 50], [20, 100, 500, 800], [1, 3, 7]),
        "draws": pick(100, 1000, 10),
    }
    mnist = {"data": pick("digits", "mnist", "digits"), "side": pick(8, 28, 8), "train": pick(256, 60_000, 64)}
    rotated = {
        "sizes": training
        | {
            "seeds": pick([0, 1], [0, 1, 2, 3, 4], [0, 1]),
            "sizes": pick([64, 256], [500, 1000, 2000, 5000, 10_000, 20_000, 50_000], [16, 64]),
            "epochs": pick(15, 200, 3),
            "probed": pick([1, 2, 5, 15], [1, 2, 5, 10, 20, 50, 100, 150, 200], [1, 3]),
            "kernel_samples": pick(256, 12_000, 32),
            "eigenvectors": pick(20, 50, 5),
        },
        "initial-energy": {key: training[key] for key in ("data", "side", "width", "seed")}
        | {
            "train": pick(256, 12_000, 32),
            "test": 0,
            "eigenvectors": pick(20, 50, 5),
            "seeds": list(range(pick(2, 20, 2))),
        },
        "pretrained": training
        | {"eigenfunction": pick(40, 400, 3), "points": pick([1, 5, 15], [1, 2, 3, 5, 10, 20, 50, 100], [1, 3])},
    }

    resnet = training | {
        "network": "ResNet18",
        "base": base,
        "train": pick(64, 50_000, 32),
        "test": pick(64, 10_000, 16),
        "epochs": pick(3, 20, 1),
        "precision": pick("float32", "float16", "float32"),
    }
    single = dict(zip(SINGLE, pick([1, 2, 5, 15], [1, 20, 100, 999], [1, 2, 4, 7]), strict=True))
    fig8 = pick(10, 400, 5)
    trained = resnet | {"statistics": "train"}
    cifar2 = trained | {"kernel_samples": pick(64, 12_000, 16), "eigenvectors": pick(20, 50, 5)}

    def both(part: str, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {f"{part}-{network}": values | {"network": network} for network in NETWORKS}

    return {
        "linearization": {
            "networks": networks,
            "data": data,
            "samples": pick(8, 100, 4),
            "seed": 42,
            "base": base,
            "directions": pick(2, 10, 1),
            "log10_steps": [-3, 0],
            "step_count": pick(7, 25, 7),
        },
        "norms": identities | {"detours": pick([0.5, 2.0], [0.2, 0.5, 1.0, 2.0], [1.0])},
        "alignments": dict(identities),
        "stein": {
            "side": pick(8, 32, 4),
            "seed": 42,
            "averaged": pick(64, 256, 8),
            "indices": pick([0, 3, 10], [0, 10, 50], [0, 1]),
            "sizes": pick([512, 2048, 8192], [4096, 16384, 65536, 262144], [32, 128]),
            "hessians": pick(2048, 16384, 64),
        },
        "data-set": {
            "seed": 42,
            "dimension": pick(256, 1024, 64),
            "samples": pick(2000, 10000, 500),
            "margins": dict(predictors.MARGINS),
            "sigma": 1.0,
        },
        "averaged": {
            "networks": networks,
            "side": pick(8, 32, 4),
            "seed": 42,
            "base": base,
            "averaged": pick(8, 8, 2),
            "leading": pick(10, 10, 3),
        },
        "first-directions": {
            "networks": networks,
            "side": pick(16, 32, 8),
            "seed": 42,
            "base": base,
            "count": 10,
            "random": 100,
        },
        "accuracies": {
            "side": pick(8, 32, 4),
            "seed": 42,
            "indices": pick([0, 5, 20, 40], [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], [0, 4, 15]),
            "margins": dict(predictors.MARGINS),
            "sigma": 1.0,
            "sizes": pick([256], [1000, 10000], [32]),
            "test_samples": pick(500, 10000, 50),
            "epochs": pick(15, 100, 2),
            "batch": pick(32, 128, 16),
            "lr": 0.05,
        },
        **both("eigenfunctions", learned),
        **both(
            "adam",
            {k: learned[k] for k in (*training, "eigenfunctions")}
            | {"indices": pick(learned["indices"], [1, 5, 20, 100, 400, 800, 999], learned["indices"])}
            | {"rates": pick([0.001], [0.001, 0.05], [0.001, 0.05])},
        ),
        **both("mnist", learned | mnist),
        **both("sizes", rotated["sizes"]),
        **both("initial-energy", rotated["initial-energy"]),
        **both("pretrained", rotated["pretrained"]),
        KERNEL: resnet
        | {
            "eigenfunctions": pick(30, 1000, 8),
            "indices": [*single.values(), fig8] if scale != "paper" else learned["indices"],
            "eigenfunction": fig8,
            "draws": pick(100, 1000, 10),
        },
        **{name: trained | {"eigenfunction": index} for name, index in single.items()},
        "pretrained-ResNet18": trained | {"eigenfunction": fig8, "linearized_with": ["running", "initial"]},
        "eigenfunctions-ResNet18": {"indices": [*single.values(), fig8]},
        "table-ResNet18-train": cifar2 | {"epochs": pick(3, 30, 1)},
        "table-ResNet18-frozen": cifar2 | {"statistics": "frozen"},
    }


STUDY = Study(
    key="ortiz2021",
    title="What can linearized neural networks actually say about generalization?",
    reference=(
        "Guillermo Ortiz-Jiménez, Seyed-Mohsen Moosavi-Dezfooli and Pascal Frossard, NeurIPS 2021. Entries have the "
        "paper's numbers: OJ-Fig2 is its figure 2."
    ),
    configuration=configuration,
    parts=PARTS,
    entries=ENTRIES,
    claims=CLAIMS,
    aims=(Aim("paper", 15.0, "MLP and LeNet", tuple(part.name for part in PARTS if "ResNet18" not in part.name)),),
)
