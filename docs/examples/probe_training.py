"""A training run, watched by a probe: the kernel turns towards the labels. `python probe_training.py [probe.png]`"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn
from trained import network, x_test, x_train, y_test, y_train

import torchtangent as tt

measures = {
    "cka": "alignment with the labels (CKA)",
    "kernel_alignment": "alignment with the initial kernel",
    "effective_rank": "effective rank of the kernel",
}
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

probe = tt.TangentProbe(model, x_train[:40], y_train[:40], x_test=x_test[:40], y_test=y_test[:40], measures=measures)
for step in range(251):
    probe.log(step)  # measures at the steps 0, 5, 10, …, ever further apart
    batch = torch.randint(len(x_train), (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
    optimizer.step()

figure, panels = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for panel, (key, title) in zip(panels, measures.items(), strict=True):
    panel.plot(*probe.series(key), "o-", label="training images")
    panel.plot(*probe.series(f"test/{key}"), "s--", label="test images")
    panel.set(title=title, xlabel="step")
panels[0].legend()
path = sys.argv[1] if len(sys.argv) > 1 else "probe.png"
figure.savefig(path)

for step, cka, rank in zip(*probe.series("cka"), probe.series("effective_rank")[1], strict=True):
    print(f"step {step:3}: CKA with the labels {cka:.2f}, effective rank {rank:.0f}")
print(f"The plot is in {path}")
