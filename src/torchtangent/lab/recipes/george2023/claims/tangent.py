"""What figures B.1 and B.2 show."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.george2023 import measures as ours
from torchtangent.lab.rules import AtLeast, AtMost, Near

CLAIMS = (
    Claim(
        id="TG-FigB.1",
        name="random directions",
        statement=(
            "Most directions have almost no effect: a random one moves the outputs far less than the "
            "first singular one."
        ),
        published="≈ no effect",
        measure=lambda arrays: ours.moved(arrays)["random"],
        rule=AtMost(0.1),
        note="Median over random directions, relative to the first singular direction.",
    ),
    Claim(
        id="TG-FigB.1",
        name="later singular directions",
        statement="Only the top singular directions move the outputs: the 50th hardly does.",
        published="≈ no effect",
        measure=lambda arrays: ours.moved(arrays)["last singular"],
        rule=AtMost(0.1),
        note="The last singular direction tried, relative to the first.",
    ),
    Claim(
        id="TG-FigB.2",
        name="order",
        statement="The index of an eigenvector follows its frequency in the first half of the spectrum.",
        published="remarkable alignment",
        measure=ours.order_correlation,
        rule=AtLeast(0.95),
        note="Spearman's correlation of index and dominant cosine frequency, median over seeds.",
    ),
    Claim(
        id="TG-FigB.2",
        name="eigenvalues",
        statement="λ₁₀/λ₁ ≈ 4 %, read as a ratio of eigenvalues.",
        published=0.04,
        measure=ours.line_ratio,
        rule=Near(0.04, 0.25),
        note="Kaiming-normal weights, default biases; median over seeds.",
    ),
    Claim(
        id="TG-FigB.2",
        name="eigenvalues, centred",
        statement="λ₁₀/λ₁ ≈ 4 %, read as a ratio of eigenvalues of the centred kernel.",
        published=0.04,
        measure=lambda arrays: ours.line_ratio(arrays, "eigenvalues_centred"),
        rule=Near(0.04, 0.25),
    ),
    Claim(
        id="TG-FigB.2",
        name="singular values",
        statement="√(λ₁₀/λ₁) ≈ 4 %, read as a ratio of singular values of the Jacobian.",
        published=0.04,
        measure=lambda arrays: ours.line_ratio(arrays) ** 0.5,
        rule=Near(0.04, 0.25),
    ),
    Claim(
        id="TG-FigB.2",
        name="singular values, default init",
        statement="√(λ₁₀/λ₁) ≈ 4 %, with PyTorch's default initialization.",
        published=0.04,
        measure=lambda arrays: ours.line_ratio(arrays, init=1) ** 0.5,
        rule=Near(0.04, 0.25),
    ),
    Claim(
        id="TG-FigB.2",
        name="zero biases",
        statement="Biases were not zero: the network would be linear on x > 0, and the kernel of rank 3 at most.",
        published="not said",
        measure=ours.beyond_rank_three,
        rule=AtMost(ROUNDING),
        note="λ₄/λ₁, Kaiming-normal weights, largest over seeds. x = 0, where no ReLU is on, is the third dimension.",
    ),
)
