"""The entries: what the thesis says, what is run here, what to see in the plots."""

from torchtangent.lab.recipes.george2023.entries import (
    approximations,
    geometry,
    gradients,
    kronecker,
    linear,
    margins,
    tangent,
)

ENTRIES = (
    *geometry.ENTRIES,
    *linear.ENTRIES,
    *gradients.ENTRIES,
    *approximations.ENTRIES,
    *kronecker.ENTRIES,
    *tangent.ENTRIES,
    *margins.ENTRIES,
)
