"""The entries: what the study says, what is run here, what to see in the plots."""

from torchtangent.lab.recipes.george2022.entries import lazy, linearity

ENTRIES = (*lazy.ENTRIES, *linearity.ENTRIES)
