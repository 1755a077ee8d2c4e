"""What the kernels of networks trained on random labels should show, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.measures import noise as ours
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Increasing
from torchtangent.lab.study import Scale

_FULL: tuple[Scale, ...] = ("paper",)

CLEARLY = 0.5
"""A rank correlation that counts as clear; the threshold is ours."""

_FITTED = "When the training accuracy first is 99.9 %, or at the end if it never is."
_OURS = "The threshold is ours."
_CHANCE = "With one seed, as at paper scale, a small difference may be chance."

CLAIMS = (
    Claim(
        id="TG-Fig6.2",
        name="growth",
        statement="Until the training set is fitted the largest and the mean eigenvalue grow more than a hundredfold.",
        published="> 100",
        measure=ours.growth("noise-0"),
        rule=AtLeast(100.0),
        scales=_FULL,
        note=f"{_FITTED} Counted from the start, also where eigenvalues fall first. No random labels.",
    ),
    Claim(
        id="TG-Fig6.2",
        name="anisotropy",
        statement="Larger eigenvalues grow faster.",
        published="faster",
        measure=ours.growth_by_index("noise-0"),
        rule=Each({"mean": AtMost(-CLEARLY)}),
        note=f"Spearman's correlation of an eigenvalue's index with its growth. {_FITTED} {_OURS}",
    ),
    *(
        Claim(
            id="TG-Fig6.2",
            name=f"effective rank, {percent} %",
            statement=f"With {percent} % random labels the effective rank falls to {100 * below:.0f} % of its start.",
            published=f"< {100 * below:.0f} %",
            measure=ours.drop(f"noise-{percent}"),
            rule=Each({"mean": AtMost(below)}),
            scales=_FULL,
            note="The least of the points of training, of the training kernel centred per class. One seed, a fifth of "
            "the images.",
        )
        for percent, below in ((0, 0.1), (50, 0.2))
    ),
    *(
        Claim(
            id="TG-Fig6.2",
            name=f"early, {percent} %",
            statement=f"With {percent} % random labels the effective rank falls early in training.",
            published="early",
            measure=ours.drop_early(f"noise-{percent}"),
            rule=Each({"mean": AtMost(0.1)}),
            scales=_FULL,
            note=f"Half of the way down is made within a tenth of the steps. {_OURS}",
        )
        for percent in (0, 50)
    ),
    Claim(
        id="TG-Fig6.2",
        name="trace ratio",
        statement="Forty of a thousand eigenvalues make up more than 70 % of the trace.",
        published="> 70 %",
        measure=ours.share("noise-0", 40),
        rule=Each({"mean": AtLeast(0.7)}),
        scales=_FULL,
        note=f"T₄₀ of the training kernel. {_FITTED} No random labels.",
    ),
    Claim(
        id="TG-Fig6.2",
        name="rank against accuracy",
        statement="With 50 % random labels the effective rank is low when test accuracy is high.",
        published="anti-correlated",
        measure=ours.rank_against_accuracy("noise-50"),
        rule=Each({"mean": AtMost(-CLEARLY)}),
        scales=_FULL,
        note=f"Spearman's correlation over all points of training, those before anything is learned included. {_OURS}",
    ),
    Claim(
        id="TG-Fig6.2",
        name="rebound",
        statement="With 50 % random labels the effective rank rises again when the network overfits.",
        published="rises",
        measure=ours.rebound("noise-50"),
        rule=Each({"rank, end over least": AtLeast(1.5), "test accuracy lost": AtLeast(0.02)}),
        scales=_FULL,
        note="At the end the rank is half as large again as at its least, and test accuracy two points below its best; "
        "when it rises is not asked. The thresholds are ours.",
    ),
    *(
        Claim(
            id="TG-Fig6.2",
            name=f"test kernel, {percent} %",
            statement=f"With {percent} % random labels kernels of training and test images have the same spectrum.",
            published="nearly identical",
            measure=ours.sets_differ(f"noise-{percent}"),
            rule=Each({"mean": AtMost(0.15)}),
            scales=_FULL,
            note="The median of |log₁₀ of the ratio| of eigenvalues; 0.15 is a factor of 1.4, ours.",
        )
        for percent in (0, 50)
    ),
    Claim(
        id="TG-Fig6.3",
        name="increases",
        statement="CKA with the labels increases during training, on training and on test images.",
        published="increases",
        measure=ours.cka_growth("noise-0"),
        rule=AtLeast(1.5),
        note="At the end at least half as much again as at the start; the factor is ours.",
    ),
    Claim(
        id="TG-Fig6.3",
        name="end",
        statement="Without random labels CKA with the labels ends at about 0.25.",
        published=0.25,
        measure=ours.cka_end("noise-0"),
        rule=Each({"mean": Between(0.15, 0.35)}),
        scales=_FULL,
        note="On test images; the published value is read off a thumbnail that does not say which set. The tolerance "
        "is ours.",
    ),
    Claim(
        id="TG-Fig6.3",
        name="clean labels first",
        statement="With 50 % random labels CKA is much higher on test images while the network learns.",
        published="≫ 1",
        measure=ours.clean_over_noisy("noise-50"),
        rule=Each({"mean": AtLeast(1.5)}),
        note="Mean CKA on test (true labels) over that on training images (labels as trained on), from half of the "
        f"rise of test accuracy to its peak. {_OURS}",
    ),
    Claim(
        id="TG-Fig6.3",
        name="layers",
        statement="Several layers come to a CKA above 0.5.",
        published="several",
        measure=ours.layers_above("noise-0", 0.5),
        rule=Each({"mean": AtLeast(3.0)}),
        scales=_FULL,
        note="On test images, at some point of training; three count as several.",
    ),
    Claim(
        id="TG-Fig6.3",
        name="top layer",
        statement="The CKA of the topmost layer stays low.",
        published="low",
        measure=ours.last_layer("noise-0"),
        rule=Each({"mean": AtMost(0.5)}),
        scales=_FULL,
        note="Its largest along training is at most half of that of the best layer; the factor is ours.",
    ),
    Claim(
        id="TG-Fig6.3",
        name="peak",
        statement="With 50 % random labels the layers' CKA peaks when test accuracy does.",
        published="together",
        measure=ours.layer_peaks("noise-50"),
        rule=Each({"test": Between(1 / 3, 3.0)}),
        scales=_FULL,
        note="Steps of the one over steps of the other, median over layers, on test images; a factor of three on a "
        "logarithmic axis counts as together, ours. Beside it the same of training images.",
    ),
    *(
        Claim(
            id="TG-FigB.8",
            name=f"drop, {percent} %",
            statement=f"With {percent} % random labels the effective rank falls at the small learning rate, too.",
            published="an early drop",
            measure=ours.drop(f"slow-{percent}"),
            rule=Each({"mean": AtMost(0.6)}),
            scales=_FULL,
            note="The least along training over that at the start; published (thumbnail): 250–300 of 650–700, so 0.4. "
            f"{_OURS} That the drop is early is not tested.",
        )
        for percent in (0, 50)
    ),
    Claim(
        id="TG-FigB.8",
        name="three times",
        statement="At the small learning rate the effective rank falls to about three times that at the usual one.",
        published=3.0,
        measure=ours.slower("noise-0", "slow-0"),
        rule=Each({"mean": Between(2.0, 4.5)}),
        scales=_FULL,
        note="The least along training; no random labels. A factor of 1.5 either way counts as about.",
    ),
    *(
        claim
        for percent in (0, 50)
        for claim in (
            Claim(
                id="TG-lr-claim",
                name=f"alignment, {percent} %",
                statement=f"With {percent} % random labels the larger learning rate aligns the kernel more.",
                published="enhances alignment",
                measure=ours.rates_at_equal_loss("test_cka", f"noise-{percent}", f"slow-{percent}"),
                rule=Increasing("small", "usual"),
                note=f"CKA on test images at equal training loss: the mean over losses that both runs pass. {_CHANCE}",
            ),
            Claim(
                id="TG-lr-claim",
                name=f"features, {percent} %",
                statement=f"With {percent} % random labels features stay closer to the start at the smaller rate.",
                published="constant features in the limit",
                measure=ours.rates_at_equal_loss("test_start", f"noise-{percent}", f"slow-{percent}"),
                rule=Increasing("usual", "small"),
                note=f"Uncentred alignment of the test kernel with the first one, at equal training loss. {_CHANCE}",
            ),
        )
    ),
)
