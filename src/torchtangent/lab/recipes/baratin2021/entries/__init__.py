"""The entries: what the study says, what is run here, what to see in the plots."""

from torchtangent.lab.recipes.baratin2021.entries import bounds, descent, spectra

ENTRIES = (*descent.ENTRIES, *spectra.ENTRIES, *bounds.ENTRIES)
