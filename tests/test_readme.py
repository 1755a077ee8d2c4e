"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


class Net(nn.Module):
    """A network with the names that the README's patterns expect."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv1(x)).flatten(1))


def test_there_is_something_to_run() -> None:
    assert BLOCKS


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, x, y = Net(), torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    v = torch.randn(sum(p.numel() for p in model.parameters()))
    names = {"torch": torch, "model": model, "x": x, "y": y, "loader": [(x, y)], "v": v, "u": torch.randn(6, 3)}
    for block in BLOCKS:
        exec(block, names)
