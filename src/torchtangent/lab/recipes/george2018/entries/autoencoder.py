"""The auto-encoder: figures 4.3 and 4.4."""

from __future__ import annotations

from torchtangent.lab.recipes.george2018.figures import autoencoder as draw
from torchtangent.lab.recipes.george2018.figures import basis
from torchtangent.lab.recipes.george2018.training import COMPARED, KRONECKER
from torchtangent.lab.study import Entry, Panel, Table

_NAMES = COMPARED["autoencoder"]
_SEARCHES = tuple(f"search-{name}" for name in _NAMES)
_CURVES = tuple(f"curves-{name}" for name in _NAMES)
_SETUP = (
    "Auto-encoder of {search-EKFAC[data]} ({search-EKFAC[side]}² pixels, encoder {search-EKFAC[widths]}, mirrored "
    "decoder, sigmoids), {search-EKFAC[loss]}, {search-EKFAC[train]} images, batches of {search-EKFAC[batch]}, "
    "decompositions every {search-EKFAC[basis_every]} steps. "
)
_SEARCH = (
    "Search: {search-EKFAC[epochs]} epochs of each of 16 settings: η and ε in {search-EKFAC[rates]}; for SGD η in "
    "{search-SGD+BN[rates]}, for Adam in {search-Adam+BN[rates]}, with momentum {search-SGD+BN[others]}. "
)
_CHOSEN = "Then the best setting of each: {curves-EKFAC[epochs]} epochs, seeds {curves-EKFAC[seeds]}."
_READING = (
    "Published without loss, epochs, initialization or momentum. Here: the squared error, summed over pixels (tried on "
    "small networks, it is the one on whose scale the published η and ε make sense: with a mean over pixels "
    "ε hides G); Glorot's normal weights with gain 4; no momentum but in SGD and Adam (β₁), which have BatchNorm as "
    "published. The gain, and where SGD's rates begin, were chosen after small trials, too. The training loss of an "
    "epoch is the mean over its steps; validation is on the test images. "
)
_SMALLER = (
    "The published search also has batches of 200 and 20 random settings around each point of the grid, and its map is "
    "after 20 epochs with batches of 200; all runs here are shorter, for the sake of time."
)

ENTRIES = (
    Entry(
        id="TG-AE",
        title="The tuned comparison",
        paper=(
            "Auto-encoder of MNIST, 784-1000-500-250-30 and back, sigmoid layers. η and ε of 0.1, 0.01, 0.001 and "
            "0.0001, batches of 200 and 500, 20 random settings around each point; selection on the training loss. "
            "EKFAC beside KFAC, SGD with momentum and BatchNorm, Adam with BatchNorm."
        ),
        setup=_SETUP + _SEARCH + _CHOSEN,
        parts=(*_SEARCHES, *_CURVES),
        panels=tuple(
            Panel(draw.sensitivity(name), f"Training loss of {name} for every setting of its grid.")
            for name in ("SGD+BN", "Adam+BN")
        ),
        caption="Training loss of the baselines after the search; ∞: diverged.",
        notes=_READING + _SMALLER,
        tables=(
            Table(
                "What was tried, what was chosen, and where it ended",
                ("optimizer", "trials", "η", "ε or momentum", "last training loss", "± over seeds", "seconds an epoch"),
                draw.settings,
            ),
        ),
    ),
    Entry(
        id="TG-Fig4.3",
        title="The auto-encoder: epochs, seconds, validation, sensitivity",
        paper=(
            "(a) At the same epoch EKFAC and EKFAC-ra are below amortized KFAC and the baselines. (b) In wall-clock "
            "time EKFAC-ra is first. (c) Validation losses of KFAC and EKFAC are similar. (d) The loss after 20 epochs "
            "depends strongly on η and ε."
        ),
        setup=_SETUP + _SEARCH + _CHOSEN,
        parts=(*_SEARCHES, *_CURVES),
        panels=(
            Panel(draw.along("loss", "epochs"), "Training loss of five optimizers against epochs."),
            Panel(draw.along("loss", "seconds"), "Training loss of five optimizers against seconds of training."),
            Panel(draw.along("valid", "epochs"), "Validation loss of five optimizers against epochs."),
            *(
                Panel(draw.sensitivity(name), f"Training loss of {name} for every learning rate and damping.")
                for name in KRONECKER
            ),
        ),
        caption=(
            "(a) Training loss by epoch, (b) by seconds on the device named below, (c) validation loss; means and "
            "ranges over seeds. (d) Training loss after the search for every setting; ∞: diverged."
        ),
        notes=_READING + _SMALLER + " Seconds are of training alone, with the device synchronized; no CUDA graphs.",
    ),
    Entry(
        id="TG-Fig4.4",
        title="How often the basis is computed",
        paper=(
            "(a) At the same epoch KFAC inverted at every update beats amortized versions, and amortized EKFAC "
            "degrades less than amortized KFAC. (b) At a high cost in time. (c) With a KFE computed once, KFAC's "
            "spectrum diverges quickly from that of G (4th layer), EKFAC's and EKFAC-ra's stay much closer."
        ),
        setup=(
            _SETUP
            + "KFAC inverted every {frequency-KFAC[frequencies]} and {curves-KFAC[basis_every]} steps, EKFAC's basis "
            "every {frequency-EKFAC[frequencies]} and {curves-KFAC[basis_every]} steps, for {frequency-KFAC[epochs]} "
            "epochs, seeds {frequency-KFAC[seeds]}. (c): layer {spectra[layer]}, G of {spectra[samples]} samples, the "
            "basis computed after {spectra[begin]} steps of EKFAC-ra and kept."
        ),
        parts=(
            *(f"curves-{name}" for name in KRONECKER),
            *(f"frequency-{name}" for name in KRONECKER),
            "spectra",
        ),
        panels=(
            Panel(draw.frequencies("epochs"), "Training loss for several frequencies against epochs."),
            Panel(draw.frequencies("seconds"), "Training loss for several frequencies against seconds."),
            Panel(basis.distances, "Distance to the spectrum of G since the basis was computed."),
            Panel(basis.spectra, "Spectra of G and of three approximations at the end."),
        ),
        caption=(
            "(a) Training loss by epoch and (b) by seconds, with so many steps between decompositions; means over "
            "seeds. (c) ℓ² distance between sorted spectra relative to that of G, and the spectra at the end."
        ),
        notes=(
            _READING
            + "Every optimizer keeps the setting that was found at the middle frequency. The network of (c) is trained "
            "by EKFAC-ra, which renews its own basis as always. The running average is of N (Uᵀ∇)², whose mean is the "
            "variance of single gradients and N times the square of their mean: while the mean gradient is large, "
            "EKFAC-ra overestimates the spectrum."
        ),
    ),
)
