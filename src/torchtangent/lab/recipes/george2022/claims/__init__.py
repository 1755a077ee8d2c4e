"""What the study should show, and the rules that decide."""

from torchtangent.lab.recipes.george2022.claims import (
    closed,
    cscores,
    examples,
    interface,
    lazy,
    linearity,
    linearity_images,
    noise,
    plain,
    spurious,
    toy,
)

CLAIMS = (
    *lazy.CLAIMS,
    *linearity.CLAIMS,
    *toy.CLAIMS,
    *closed.CLAIMS,
    *examples.CLAIMS,
    *plain.CLAIMS,
    *interface.CLAIMS,
    *cscores.CLAIMS,
    *noise.CLAIMS,
    *linearity_images.CLAIMS,
    *spurious.CLAIMS,
)
