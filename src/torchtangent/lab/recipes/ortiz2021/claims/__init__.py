"""The claims, and the rules that decide."""

from torchtangent.lab.recipes.ortiz2021.claims import directions, eigenfunctions, rotation, theory

CLAIMS = (*theory.CLAIMS, *eigenfunctions.CLAIMS, *directions.CLAIMS, *rotation.CLAIMS)
