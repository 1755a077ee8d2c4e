"""What figure 5.1 should show on the yin-yang task."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.george2022.measures import toy as ours
from torchtangent.lab.recipes.george2022.measures.runs import high, low
from torchtangent.lab.rules import AtLeast, AtMost, Increasing

_LEVELS = "at every training loss that at least two runs reach with both α."

CLAIMS = (
    Claim(
        id="TG-Fig5.1",
        name="faster",
        statement="After the first iterations the network trains faster than in the linear regime.",
        published="faster",
        measure=ours.speedup,
        rule=AtLeast(1.0),
        note=(
            "Iterations to a training loss with α = 100 over those with α = 1, at equal rescaled rates: the geometric "
            "mean over runs less two standard errors. Runs that do not come there count with the last iteration: with "
            "α = 100 that makes it a lower bound."
        ),
    ),
    Claim(
        id="TG-Fig5.1",
        name="large areas",
        statement="In the large areas without a disk the network is better at equal training loss.",
        published="Δloss < 0",
        measure=ours.difference("large areas", high),
        rule=AtMost(0.0),
        note=f"Mean of Δloss where x₁x₂ > 0 plus two standard errors over runs, {_LEVELS}",
    ),
    Claim(
        id="TG-Fig5.1",
        name="disks",
        statement="In the small disks the linear regime is better.",
        published="Δloss > 0",
        measure=ours.difference("disks", low),
        rule=AtLeast(0.0),
        note=f"Mean of Δloss in the two disks less two standard errors over runs, {_LEVELS}",
    ),
    Claim(
        id="TG-Fig5.1",
        name="strips",
        statement="In the strips between the disks and the horizontal boundary the linear regime is better.",
        published="Δloss > 0",
        measure=ours.difference("strips", low),
        rule=AtLeast(0.0),
        note=(
            f"Mean of Δloss less two standard errors over runs, {_LEVELS} One loss at which it fails decides. Points "
            "between a disk and the boundary: x₁x₂ < 0, ||x₁| − ½| ≤ 0.3, |x₂| < ½, outside the disks (our reading of "
            "the map)."
        ),
    ),
    Claim(
        id="TG-Fig5.1",
        name="α = 100 is linear",
        statement="Training with α = 100 follows the linearized network, trained alike on the same samples.",
        published="not tested there",
        measure=ours.farthest_when_lazy,
        rule=AtMost(0.1),
        note=(
            "Distance of the outputs on the grid at the last mark, relative to the linearized network's: mean over "
            "runs plus two standard errors. The bound is ours, as in TG-5-lin."
        ),
    ),
    Claim(
        id="TG-Fig5.1",
        name="α = 1 is not",
        statement="Training with α = 1 goes another way.",
        published="not tested there",
        measure=ours.distances,
        rule=Increasing("α = 100", "α = 1"),
        note="The same, with two standard errors less for α = 1.",
    ),
    Claim(
        id="TG-Fig5.1",
        name="same map",
        statement="The map of Δloss is the same with the linearized network in the place of α = 100.",
        published="not tested there",
        measure=ours.map_correlations,
        rule=AtLeast(0.95),
        note="Correlation of the two maps over the grid; the bound is ours.",
    ),
    Claim(
        id="TG-Fig5.1",
        name="linearized twice",
        statement="The linearized network, trained through its kernel, is `tt.linearize` trained by its parameters.",
        published="equal",
        measure=ours.by_parameters,
        rule=AtMost(ROUNDING),
        note="Relative distance of the outputs on the grid after some iterations of a run of each part, in float64.",
    ),
)
