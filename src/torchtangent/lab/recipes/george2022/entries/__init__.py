"""The entries: what the study says, what is run here, what to see in the plots."""

from torchtangent.lab.recipes.george2022.entries import (
    closed,
    cscores,
    examples,
    interface,
    lazy,
    linearity,
    noise,
    plain,
    spurious,
    toy,
)

ENTRIES = (
    *lazy.ENTRIES,
    *linearity.ENTRIES,
    *toy.ENTRIES,
    *closed.ENTRIES,
    *examples.ENTRIES,
    *plain.ENTRIES,
    *interface.ENTRIES,
    *cscores.ENTRIES,
    *noise.ENTRIES,
    *spurious.ENTRIES,
)
