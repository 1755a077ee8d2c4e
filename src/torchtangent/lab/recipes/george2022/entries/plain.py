"""Appendix C: the three examples with a plain linear network (figure C.9)."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.entries.examples import NOISE, SPURIOUS
from torchtangent.lab.recipes.george2022.figures import examples as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-FigC.9",
        title="The examples with a plain linear network",
        paper=(
            "A linear network d → d → 1 without biases or constraints learns the groups of examples 1 to 3 in the same "
            "orders, non-linear with α = 0.1, linear with α = 10; mean over 20 seeds."
        ),
        setup=(
            "α(f − f₀) with α = {plain-1[alphas]}, weights as PyTorch draws them times {plain-1[scale]}, gradient "
            "descent on the mean squared error at {plain-1[lr]}/α², {plain-1[runs]} seeds. Example 1: d = "
            "{plain-1[width]}, {plain-1[steps]} steps; examples 2 and 3: d = {plain-2[width]}, {plain-2[steps]} and "
            "{plain-3[steps]} steps, λ = {plain-3[core]}."
        ),
        parts=("plain-1", "plain-2", "plain-3"),
        panels=(
            Panel(draw.plain_modes("linearized"), "Example 1, linear regime: low indices tend to be first."),
            Panel(draw.plain_modes("network"), "Example 1, non-linear regime: all modes together, low ones first."),
            Panel(draw.plain_groups("plain-2", "linearized", NOISE), "Example 2, linear regime: both errors fall."),
            Panel(draw.plain_groups("plain-2", "network", NOISE), "Example 2, non-linear regime: both errors fall."),
            Panel(draw.plain_groups("plain-3", "linearized", SPURIOUS), "Example 3, linear regime: both fall."),
            Panel(draw.plain_groups("plain-3", "network", SPURIOUS), "Example 3, non-linear regime: both fall."),
        ),
        caption="As in TG-Ex1, TG-Ex2 and TG-Ex3; bands are two standard errors over seeds.",
        notes=(
            "The settings of example 1 are the released code's; those of examples 2 and 3 are not known, and the same "
            "are taken with more steps. In this network all features share the output weights: it first grows along "
            "Xᵀy as a whole, in which mode i has the part ỹ_i of what it needs, ỹ_i/μ_i. So the modes come in the "
            "order of μ_i here too, and nothing makes them come one after the other as with squared parameters."
        ),
    ),
)
