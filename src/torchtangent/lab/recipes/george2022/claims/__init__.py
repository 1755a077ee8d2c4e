"""What the study should show, and the rules that decide."""

from torchtangent.lab.recipes.george2022.claims import lazy, linearity

CLAIMS = (*lazy.CLAIMS, *linearity.CLAIMS)
