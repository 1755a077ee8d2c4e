"""Section 5.2: the knob α."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import lazy as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-5-lin",
        title="Scaling a network makes its training linear",
        paper=(
            "The network f₀ + α(f − f₀) is trained at the learning rate η/α²: a first step moves the outputs by O(1) "
            "and the parameters by O(1/α), and as α → ∞ training follows the linearized network."
        ),
        setup=(
            "A network with {trajectories[widths]} hidden units on {trajectories[samples]} samples of "
            "{trajectories[data]}, cross-entropy, float64. One step of gradient descent; then {trajectories[epochs]} "
            "epochs with batches of {trajectories[batch]} and momentum 0.9, the same batches for every α and for the "
            "linearized network; outputs on {trajectories[test_samples]} test samples."
        ),
        parts=("first-step", "trajectories"),
        panels=(
            Panel(draw.first_step, "The length of the first step against alpha, of outputs and of parameters."),
            Panel(draw.trajectories, "Distance from the linearized network against alpha, for ReLU and tanh."),
        ),
        caption=(
            "Left: length of the first step against α, in function space and in parameter space. Right: how far "
            "training ends from the linearized network, relative to how far its outputs moved."
        ),
        notes=(
            "The thesis adds f₀ (eq. 5.2.4), the released code does not; both are run. The thesis gives no rate: 1/α "
            "is that of Chizat et al. for smooth networks. With ReLU one expects 1/√α: a part 1/α of the units "
            "switches, each with an effect that α does not reduce, and effects at random add up to their root."
        ),
    ),
)
