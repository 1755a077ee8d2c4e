"""Which patterns an untrained convolutional network favours: smooth ones, and last of all a chessboard."""

import torch
from torch import nn

import torchtangent as tt

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
    *(nn.Conv2d(16, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
    *(nn.Flatten(), nn.Linear(64, 1)),
)

found = tt.anisotropy.directions(model, shape=(1, 8, 8))  # 64 directions v, best first
relative = found.alignments / found.alignments[0]

for n in (0, 1, -1):
    print(f"\nα(⟨v, x⟩) of the best × {relative[n]:.1g}, v =")
    v = found.vectors[n, 0]
    for row in (v / v.abs().max() * 4 + 4).round().int():
        print("  " + "".join(2 * " .:-=+*#@"[shade] for shade in row))
