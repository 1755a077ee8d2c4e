"""The entries on learned eigenfunctions."""

from __future__ import annotations

from collections.abc import Sequence

from torchtangent.lab.recipes.ortiz2021.figures import eigenfunctions as draw
from torchtangent.lab.study import Entry, Panel

NETWORKS = ("MLP", "LeNet")
_PARTS = tuple(f"eigenfunctions-{network}" for network in (*NETWORKS, "ResNet18"))
_SETUP = (
    "MLP and LeNet with ReLU and flax's initialization, one output; {eigenfunctions-MLP[train]} training and "
    "{eigenfunctions-MLP[test]} test images of {eigenfunctions-MLP[data]}, standardized. The kernel at initialization "
    "on both together, its leading {eigenfunctions-MLP[eigenfunctions]} eigenvectors; labels are their signs. "
    "{eigenfunctions-MLP[epochs]} epochs of SGD with batches of {eigenfunctions-MLP[batch]}, momentum 0.9 and a rate "
    "from 0.05 linearly to 0. Networks start at the same weights; linearizations are trained by SGD in function "
    "space with the same batches."
)
_DEEP = (
    " ResNet18, at a scale of its own: {kernel-ResNet18[train]} training and {kernel-ResNet18[test]} test images, its "
    "kernel and linearization with BatchNorm's initial statistics, networks with the batch's on the eigenfunctions "
    "{eigenfunctions-ResNet18[indices]}; {kernel-ResNet18[epochs]} epochs for both."
)


def _accuracies(part: str = "eigenfunctions", names: Sequence[str] = NETWORKS) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            draw.accuracies(network, part),
            f"Test accuracy of the {network} and of its linearization against the index of the eigenfunction.",
        )
        for network in names
    )


def _costs(entry: str, network: str, ranges: str = "", notes: str = "") -> Entry:
    return Entry(
        id=entry,
        title=f"What it costs the {network} to learn an eigenfunction",
        paper=(
            "Training time to a training loss of 0.01, ℓ2 distance and cosine distance from the initial weights all "
            f"increase with the index.{ranges}"
        ),
        setup=_SETUP + (_DEEP if network == "ResNet18" else ""),
        parts=(f"eigenfunctions-{network}",),
        panels=tuple(
            Panel(draw.cost(network, name), f"{label} against the index of the eigenfunction.")
            for name, label in (("epochs", "Epochs to fit"), ("distance", "Distance"), ("cosine", "Cosine distance"))
        ),
        caption="Each point is a network trained on the signs of one eigenfunction.",
        notes=notes,
    )


def _spikes(entry: str, network: str) -> Entry:
    return Entry(
        id=entry,
        title=f"Alignments of the {network} after training on an eigenfunction",
        paper="After training on φ_k the alignment with φ_k, and with no other eigenfunction, has jumped.",
        setup=_SETUP + " Alignments on all images, in units of the Gram matrix.",
        parts=(f"eigenfunctions-{network}",),
        panels=tuple(
            Panel(draw.alignments(network, i), "Alignments before and after training; a spike at the trained index.")
            for i in (0, 1, -1)
        ),
        caption="Alignment with every eigenfunction of the initial kernel, before (its eigenvalue) and after training.",
    )


ENTRIES = (
    Entry(
        id="OJ-Gram",
        title="What the kernel costs",
        paper=(
            "The kernel of 60,000 CIFAR-10 samples took up to 32 hours on four V100 for a ResNet18, 20 minutes for a "
            "LeNet, 3 minutes for an MLP."
        ),
        setup=_SETUP + _DEEP,
        parts=_PARTS,
        panels=(Panel(draw.seconds, "Seconds for kernel, eigenvectors, linearizations and networks."),),
        caption="Seconds on the machine named below, in float32.",
    ),
    Entry(
        id="OJ-Bin",
        title="Signs of eigenvectors",
        paper=(
            "Binarizing an eigenvector hardly changes its direction: the inner product is about 0.78; between random "
            "vectors it is of the order of 10⁻⁴."
        ),
        setup=_SETUP + _DEEP,
        parts=_PARTS,
        panels=(Panel(draw.binarized, "Inner products of eigenvectors and their signs, near 0.78."),),
        caption="Inner product of each unit eigenvector with its signs divided by √m; dotted, for normal entries.",
    ),
    Entry(
        id="OJ-Fig2",
        title="Learning the eigenfunctions of the tangent kernel",
        paper=(
            "The test accuracy of network and linearization on sign(φ_j) decreases with j, in the same order, and the "
            "linearization is better at nearly all of them: a linear advantage."
        ),
        setup=_SETUP + _DEEP,
        parts=_PARTS,
        panels=_accuracies(names=(*NETWORKS, "ResNet18")),
        caption="Test accuracy at the last epoch against the index of the eigenfunction; the first has index 0.",
        notes=(
            "Eigenvectors are of training and test images together, as in the paper, so test inputs (not their labels) "
            "are seen beforehand. The indices are ours: the paper does not give them. The first "
            "eigenvector has one sign on all images, so that there is nothing to learn: it is left out."
        ),
    ),
    _costs("OJ-Fig3", "ResNet18"),
    _costs("OJ-Fig13", "MLP"),
    _costs(
        "OJ-Fig14",
        "LeNet",
        " Axes end at 40 epochs, 7.5 and 0.6.",
        "The ends of the two distances' axes contradict each other: flax's initialization gives ‖θ₀‖ = 15, and a "
        "cosine distance of 0.6 from it needs an ℓ2 distance of 13.9 at least. The square roots of our ℓ2 distances "
        "would fit the axis.",
    ),
    Entry(
        id="OJ-Fig7",
        title="The kernel turns towards its task",
        paper=(
            "After 100 epochs on sign(φ₅₀₀) the alignment with φ₅₀₀ has grown far more than with any other "
            "eigenfunction, whose order barely changes."
        ),
        setup=_SETUP + " Alignments on all images, in units of the Gram matrix.",
        parts=("eigenfunctions-LeNet",),
        panels=(Panel(draw.alignments("LeNet", -2), "Alignments before and after training, with a spike."),),
        caption="Alignment with every eigenfunction of the initial kernel, before (its eigenvalue) and after training.",
        notes="The caption in our copy does not name the network; LeNet is the likely one.",
    ),
    _spikes("OJ-Fig15", "MLP"),
    _spikes("OJ-Fig16", "LeNet"),
    Entry(
        id="OJ-Fig11",
        title="The same with Adam",
        paper="With Adam the accuracy still decays with the index, and linearizations keep a clear advantage.",
        setup=(
            "As OJ-Fig2, with Adam at rates of {adam-MLP[rates]}, falling linearly to 0. The linearization is trained "
            "on its features, the rows of J."
        ),
        parts=tuple(f"adam-{network}" for network in NETWORKS),
        panels=tuple(
            Panel(draw.with_adam(network), f"Test accuracy of the {network} and its linearization with Adam.")
            for network in NETWORKS
        ),
        caption="Test accuracy at the last epoch; dotted and hollow, the larger rate.",
        notes="The paper gives no learning rate.",
    ),
    Entry(
        id="OJ-Fig12",
        title="The same on MNIST",
        paper="The accuracy decays with the index; for LeNet the two curves cross around φ₅₀₀.",
        setup="As OJ-Fig2, on {mnist-MLP[data]}: {mnist-MLP[train]} training and {mnist-MLP[test]} test images.",
        parts=tuple(f"mnist-{network}" for network in NETWORKS),
        panels=_accuracies("mnist"),
        caption="Test accuracy at the last epoch against the index of the eigenfunction.",
    ),
    Entry(
        id="OJ-Claim-speed",
        title="Networks converge faster",
        paper="In all experiments networks bring the training loss near zero much faster than their linearizations do.",
        setup=_SETUP + _DEEP,
        parts=_PARTS,
        panels=tuple(
            Panel(draw.losses(network), f"Training losses of the {network} and its linearization for three indices.")
            for network in (*NETWORKS, "ResNet18")
        ),
        caption="Mean training loss of every epoch for the lowest, a middle and the highest index.",
    ),
)
