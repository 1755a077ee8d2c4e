"""The entries, section by section."""

from torchtangent.lab.recipes.ortiz2021.entries import directions, eigenfunctions, rotation, theory

ENTRIES = (*theory.ENTRIES, *eigenfunctions.ENTRIES, *directions.ENTRIES, *rotation.ENTRIES)
