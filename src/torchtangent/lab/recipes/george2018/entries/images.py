"""VGG11 and ResNet34 on CIFAR-10: figures 4.5, 4.6 and A.1 to A.5."""

from __future__ import annotations

from torchtangent.lab.recipes.george2018.figures import images as draw
from torchtangent.lab.recipes.george2018.training import COMPARED
from torchtangent.lab.study import Entry, Panel


def _parts(network: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{network}-{name}" for name in names or COMPARED[network])


def _setup(network: str) -> str:
    """What is run, in words."""
    return (
        "NET of base width {NET-KFAC[base]} on {NET-KFAC[train]} images of {NET-KFAC[data]}, {NET-KFAC[epochs]} "
        "epochs, one seed. KFAC and EKFAC: batches of {NET-KFAC[batch]}, η in {NET-KFAC[rates]}, ε in "
        "{NET-KFAC[others]} on both factors' roots, taps uncorrelated (SUA), decompositions every "
        "{NET-KFAC[basis_every]} steps, no BatchNorm. SGD: batches of {NET-SGD+BN[batch]}, η in {NET-SGD+BN[rates]}, "
        "momentum {NET-SGD+BN[others]}. "
    ).replace("NET", network)


_SMALLER = (
    "Published: all 50,000 images, decompositions every 500 steps, many epochs, a wider search; here the first images, "
    "the first epochs, decompositions and halvings more often in proportion, for the sake of time. Settings were "
    "narrowed down on a network of an eighth of the width. Channels are standardized, no augmentation; validation is "
    "on the test images."
)
_BATCHES = "The best setting of each with batches of {NET-KFAC[batches]}."
_HALVED = (
    "The best setting of each for {NET-KFAC[halved_epochs]} epochs, the rate halved every {NET-KFAC[halve_every]}."
)
_KRONECKER = ("KFAC", "EKFAC", "EKFAC-ra")


def _by_batch(network: str, count: int, x: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(draw.batches(network, i, x), f"{network}: training loss against {x}, batch size {i + 1} of {count}.")
        for i in range(count)
    )


ENTRIES = (
    Entry(
        id="TG-Fig4.5",
        title="VGG11 on CIFAR-10",
        paper=(
            "Batches of 500 for KFAC and EKFAC, 200 for SGD, amortized over 500 updates. (a) At the same epoch EKFAC "
            "and EKFAC-ra are below KFAC and SGD. (b) EKFAC-ra gains some wall-clock time; KFAC with batches of 200 "
            "catches up with EKFAC, not with EKFAC-ra. (c) Validation is comparable."
        ),
        setup=_setup("VGG11"),
        parts=_parts("VGG11"),
        panels=(
            Panel(draw.envelopes("VGG11", "loss", "epochs"), "VGG11: lowest training loss over settings by epoch."),
            Panel(draw.envelopes("VGG11", "loss", "seconds"), "VGG11: the same by seconds."),
            Panel(draw.envelopes("VGG11", "valid", "epochs"), "VGG11: lowest validation error over settings by epoch."),
        ),
        caption="Envelopes: the lowest value over settings (a) by epoch, (b) by seconds, (c) validation error.",
        notes=_SMALLER,
    ),
    Entry(
        id="TG-FigA.1",
        title="VGG11: batch sizes, by epoch",
        paper="At the same epoch EKFAC's gain over KFAC shrinks as the batch gets smaller.",
        setup=_setup("VGG11") + _BATCHES.replace("NET", "VGG11"),
        parts=_parts("VGG11", *_KRONECKER),
        panels=_by_batch("VGG11", 3, "epochs"),
        caption="Training loss by epoch, a plot for each batch size.",
        notes="The published batch sizes are not known to us. " + _SMALLER,
    ),
    Entry(
        id="TG-FigA.2",
        title="VGG11: batch sizes, by iteration and by time",
        paper="At the same iteration EKFAC's gain grows with the batch; in wall-clock time VGG11 has none.",
        setup=_setup("VGG11") + _BATCHES.replace("NET", "VGG11"),
        parts=_parts("VGG11", *_KRONECKER),
        panels=(*_by_batch("VGG11", 3, "iterations"), *_by_batch("VGG11", 3, "seconds")),
        caption="Training loss by iteration (mean of the last ten) and by seconds, a plot for each batch size.",
        notes=_SMALLER,
    ),
    Entry(
        id="TG-FigA.4",
        title="VGG11: rates that are halved",
        paper="With the learning rate halved every 20 epochs EKFAC keeps some benefit.",
        setup=_setup("VGG11") + _HALVED.replace("NET", "VGG11"),
        parts=_parts("VGG11"),
        panels=(
            Panel(draw.halved("VGG11", "loss"), "VGG11: training loss by epoch with halved rates."),
            Panel(draw.halved("VGG11", "valid"), "VGG11: validation error by epoch with halved rates."),
        ),
        caption="Training loss and validation error by epoch.",
        notes=_SMALLER,
    ),
    Entry(
        id="TG-Fig4.6",
        title="ResNet34 without normalization on CIFAR-10",
        paper=(
            "EKFAC-ra beats KFAC amortized over 500 updates and SGD with momentum and BatchNorm, by epoch and in time, "
            "for every batch size; it generalizes as well."
        ),
        setup=_setup("ResNet34"),
        parts=_parts("ResNet34"),
        panels=(
            Panel(
                draw.envelopes("ResNet34", "loss", "epochs"), "ResNet34: lowest training loss over settings by epoch."
            ),
            Panel(draw.envelopes("ResNet34", "loss", "seconds"), "ResNet34: the same by seconds."),
            Panel(draw.envelopes("ResNet34", "valid", "epochs"), "ResNet34: lowest validation error by epoch."),
        ),
        caption="Envelopes: the lowest value over settings (a) by epoch, (b) by seconds, (c) validation error.",
        notes="KFAC and EKFAC-ra begin as in appendix A.3, SGD has BatchNorm. " + _SMALLER,
    ),
    Entry(
        id="TG-FigA.3",
        title="ResNet34: batch sizes",
        paper="EKFAC-ra's gain over KFAC is consistent across batch sizes.",
        setup=_setup("ResNet34") + _BATCHES.replace("NET", "ResNet34"),
        parts=_parts("ResNet34", "KFAC", "EKFAC-ra"),
        panels=_by_batch("ResNet34", 2, "epochs"),
        caption="Training loss by epoch, a plot for each batch size.",
        notes="The published batch sizes are not known to us. " + _SMALLER,
    ),
    Entry(
        id="TG-FigA.5",
        title="ResNet34: rates that are halved",
        paper="With the learning rate halved every 20 epochs EKFAC-ra keeps some benefit.",
        setup=_setup("ResNet34") + _HALVED.replace("NET", "ResNet34"),
        parts=_parts("ResNet34"),
        panels=(
            Panel(draw.halved("ResNet34", "loss"), "ResNet34: training loss by epoch with halved rates."),
            Panel(draw.halved("ResNet34", "valid"), "ResNet34: validation error by epoch with halved rates."),
        ),
        caption="Training loss and validation error by epoch.",
        notes=_SMALLER,
    ),
)
