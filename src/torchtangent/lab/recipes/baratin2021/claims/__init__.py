"""What the study should show, and the rules that decide."""

from torchtangent.lab.recipes.baratin2021.claims import (
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

CLAIMS = (
    *descent.CLAIMS,
    *spectra.CLAIMS,
    *bounds.CLAIMS,
    *disk.CLAIMS,
    *rates.CLAIMS,
    *features.CLAIMS,
    *supernat.CLAIMS,
    *noise.CLAIMS,
    *heldout.CLAIMS,
    *mixtures.CLAIMS,
    *capacity.CLAIMS,
)
