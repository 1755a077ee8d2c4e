"""The entries on sample sizes and the rotation of the kernel."""

from __future__ import annotations

from torchtangent.lab.recipes.ortiz2021.claims.rotation import PUBLISHED
from torchtangent.lab.recipes.ortiz2021.entries.eigenfunctions import NETWORKS
from torchtangent.lab.recipes.ortiz2021.figures import rotation as draw
from torchtangent.lab.recipes.ortiz2021.figures.tables import COLUMNS, table_one
from torchtangent.lab.study import Entry, Panel, Table

_SIZES = tuple(f"sizes-{network}" for network in NETWORKS)
_PRETRAINED = tuple(f"pretrained-{network}" for network in NETWORKS)
_STARTS = tuple(f"initial-energy-{network}" for network in NETWORKS)
_TABLE = tuple(f"table-ResNet18-{reading}" for reading in ("train", "frozen"))
_CIFAR2 = (
    "MLP and LeNet with ReLU and flax's initialization on {sizes-MLP[data]}, the classes 0–4 against 5–9; "
    "{sizes-MLP[sizes]} training images, with the classes in equal parts, seeds {sizes-MLP[seeds]}; "
    "{sizes-MLP[epochs]} epochs of SGD as in OJ-Fig2. Linearizations are trained in function space."
)
_KERNEL = (
    " Kernels on the first {sizes-MLP[kernel_samples]} training images, of the networks trained on "
    "all of them; energy on {sizes-MLP[eigenvectors]} eigenvectors."
)
_DEEP = (
    " ResNet18 from one seed on {table-ResNet18-train[train]} images: {table-ResNet18-train[epochs]} epochs with the "
    "batch's statistics in BatchNorm, or {table-ResNet18-frozen[epochs]} with the initial ones throughout (“frozen”)."
)
_POINTS = (
    "A network is trained on sign φ_k, k = {pretrained-MLP[eigenfunction]}, and one on CIFAR2, both for "
    "{pretrained-MLP[epochs]} epochs; at some of them it is linearized, J(θ − θ_t) without bias, and the linearization "
    "trained on the same labels by the same recipe."
)

ENTRIES = (
    Entry(
        id="OJ-CIFAR2",
        title="CIFAR2: a task with a non-linear advantage",
        paper="On CIFAR2 networks are better than their linearizations, unlike on eigenfunctions.",
        setup=_CIFAR2 + _DEEP,
        parts=(*_SIZES, "eigenfunctions-ResNet18", "table-ResNet18-train"),
        panels=tuple(
            Panel(draw.by_size(n, "test"), f"Best test accuracy of the {n} and its linearization by sample size.")
            for n in NETWORKS
        ),
        caption="Best test accuracy along training; bands are the range over seeds.",
    ),
    Entry(
        id="OJ-Fig5",
        title="The non-linear advantage comes with samples",
        paper=(
            "The non-linear advantage grows with the training set and is absent on small ones; networks move farther "
            "with more samples; both models reach their best accuracy in roughly as many epochs, while linearizations "
            "need many more to fit."
        ),
        setup=_CIFAR2,
        parts=_SIZES,
        panels=tuple(
            Panel(draw.by_size(n, name), f"{n}: {name} against the number of training samples.")
            for n in NETWORKS
            for name in ("test", "distance")
        ),
        caption="Best test accuracy, and distance from the initial weights at the end; bands are the range over seeds.",
        notes="The paper's sizes are not known to us; these are ours.",
    ),
    Entry(
        id="OJ-Fig6",
        title="The labels' energy moves to the leading eigenvectors",
        paper="For LeNet on CIFAR2 the energy concentration on the first 50 eigenvectors grows from 25.8 % to 83.0 %.",
        setup=_CIFAR2 + _KERNEL,
        parts=_SIZES,
        panels=(Panel(draw.energy, "Energy concentration grows along training for both networks."),),
        caption="‖Φᵀy‖/‖y‖ along training; bands are the range over seeds.",
    ),
    Entry(
        id="OJ-Tab1",
        title="Energy concentration and accuracy on CIFAR2",
        paper="MLP 26.0 → 63.6 %, test 67.6 %; LeNet 25.8 → 83.0 %, 75.0 %; ResNet18 22.7 → 96.7 %, 81.4 %.",
        setup=_CIFAR2 + _KERNEL + _DEEP,
        parts=(*_SIZES, *_STARTS, *_TABLE),
        panels=(Panel(draw.beside(PUBLISHED), "Bars of the paper's values beside ours."),),
        tables=(Table("Table 1: the paper's values beside ours", COLUMNS, table_one(PUBLISHED)),),
        caption="Energy concentration at the start and at the end of training, and test accuracy.",
        notes=(
            "The paper takes kernels of 12,000 samples; that networks were trained on all 50,000 is our reading. It "
            "does not say which statistics ResNet18's BatchNorm has in training, nor in the kernel of the trained "
            "network: the table shows four readings."
        ),
    ),
    Entry(
        id="OJ-Fig8",
        title="The kernel of a trained network learns faster and generalizes worse",
        paper=(
            "On sign(φ₄₀₀) the network and the linearization at its trained weights converge much faster than the "
            "linearization at the start, which is the best on test samples."
        ),
        setup=_POINTS
        + " ResNet18 on k = {pretrained-ResNet18[eigenfunction]} for {pretrained-ResNet18[epochs]} epochs, linearized "
        "at its end with BatchNorm's statistics as they are, and put back to the initial ones.",
        parts=(*_PRETRAINED, "pretrained-ResNet18"),
        panels=tuple(
            Panel(draw.speed(n, name), f"{n}: {name} along training of the network and two linearizations.")
            for n in ("ResNet18", *NETWORKS)
            for name in ("loss", "test")
        ),
        caption="Along training on the signs of the eigenfunction.",
        notes="The paper shows ResNet18; here also the two smaller networks.",
    ),
    Entry(
        id="OJ-Fig9",
        title="Linearizing along training",
        paper=(
            "The test accuracy of linearizations on sign(φ₄₀₀) decays very rapidly with the epoch at which the kernel "
            "is taken; on CIFAR2 it improves."
        ),
        setup=_POINTS,
        parts=_PRETRAINED,
        panels=(
            Panel(draw.along(0), "Accuracy on the eigenfunction against epochs before linearizing."),
            Panel(draw.along(1), "Accuracy on CIFAR2 against epochs before linearizing."),
        ),
        caption="Test accuracy of the linearization; dashed, the network's own.",
        notes="The paper's epochs and networks are not known to us.",
    ),
)
