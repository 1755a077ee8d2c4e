"""What the thesis should show, and the rules that decide."""

from torchtangent.lab.recipes.george2023.claims import (
    approximations,
    geometry,
    gradients,
    kronecker,
    linear,
    margins,
    tangent,
)

CLAIMS = (
    *geometry.CLAIMS,
    *linear.CLAIMS,
    *gradients.CLAIMS,
    *approximations.CLAIMS,
    *kronecker.CLAIMS,
    *tangent.CLAIMS,
    *margins.CLAIMS,
)
