"""A study of one's own, run and reported like those of the lab: `torchtangent reproduce docs/examples/own_study.py`."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import torchtangent as tt
from torchtangent.lab import style
from torchtangent.lab.claims import Claim
from torchtangent.lab.rules import Between
from torchtangent.lab.runner import Context, reproduce
from torchtangent.lab.study import Arrays, Entry, Panel, Part, Scale, Study


def configuration(scale: Scale) -> dict[str, dict]:
    """Everything that is fixed before the run."""
    widths, seeds = ([64, 256, 1024], 20) if scale == "smoke" else ([64, 256, 1024, 4096, 16384], 100)
    return {"kernels": {"widths": widths, "seeds": seeds, "samples": 10}}


def kernels(context: Context) -> dict[str, np.ndarray]:
    """How much the kernel at initialization differs from seed to seed, relative to its mean."""
    config = context.config
    x = torch.randn(config["samples"], 8, generator=torch.Generator().manual_seed(0)).to(context.device)
    spread = []
    for width in context.track(config["widths"]):
        found = []
        for seed in range(config["seeds"]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(8, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False))
            found.append(tt.ntk(model.to(context.device), x, reduce="trace"))
        K = torch.stack(found)
        spread.append((K.std(0).norm() / K.mean(0).norm()).item())
    return {"widths": np.array(config["widths"]), "spread": np.array(spread)}


def exponent(arrays: Arrays) -> float:
    """The power of the width with which the kernel's spread goes."""
    return float(np.polyfit(np.log(arrays["widths"]), np.log(arrays["spread"]), 1)[0])


def draw(arrays: Arrays) -> Figure:
    """Spread against width."""
    figure, axes = style.panel(x="width", y="spread of the kernel over seeds")
    axes.loglog(arrays["widths"], arrays["spread"], **style.series(0))
    return figure


STUDY = Study(
    key="width",
    title="Do wide networks begin with the same kernel?",
    reference="After Jacot, Gabriel and Hongler, NeurIPS 2018.",
    configuration=configuration,
    parts=[Part("kernels", kernels)],
    entries=[
        Entry(
            id="Spread",
            title="The kernel at initialization, from seed to seed",
            paper="As the width grows, the kernel at initialization tends to one that does not depend on the seed.",
            setup="One hidden layer of width {kernels[widths]}, without biases, from {kernels[seeds]} seeds each.",
            parts=("kernels",),
            panels=(Panel(draw, "The spread of the kernel falls with the width, as a straight line in logarithms."),),
            caption="Standard deviation over seeds, relative to the mean kernel.",
        ),
    ],
    claims=[
        Claim(
            id="Spread",
            name="exponent",
            statement="The spread falls as one over the square root of the width.",
            published=-0.5,
            measure=exponent,
            rule=Between(-0.6, -0.4),
        ),
    ],
)

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        for finding in reproduce(STUDY, "smoke", Path(folder)).findings:
            print(f"{finding.statement} {finding.verdict}: {finding.measured:.2f}")
