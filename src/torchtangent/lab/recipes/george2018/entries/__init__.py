"""The entries, experiment by experiment."""

from torchtangent.lab.recipes.george2018.entries import autoencoder, basis, images

ENTRIES = (*basis.ENTRIES, *autoencoder.ENTRIES, *images.ENTRIES)
