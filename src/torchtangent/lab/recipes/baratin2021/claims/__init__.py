"""What the study should show, and the rules that decide."""

from torchtangent.lab.recipes.baratin2021.claims import bounds, descent, spectra

CLAIMS = (*descent.CLAIMS, *spectra.CLAIMS, *bounds.CLAIMS)
