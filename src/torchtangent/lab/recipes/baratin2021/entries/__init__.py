"""The entries: what the study says, what is run here, what to see in the plots."""

from torchtangent.lab.recipes.baratin2021.entries import (
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

ENTRIES = (
    *descent.ENTRIES,
    *spectra.ENTRIES,
    *bounds.ENTRIES,
    *disk.ENTRIES,
    *rates.ENTRIES,
    *features.ENTRIES,
    *supernat.ENTRIES,
    *noise.ENTRIES,
    *heldout.ENTRIES,
    *mixtures.ENTRIES,
    *capacity.ENTRIES,
)
