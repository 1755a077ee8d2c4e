"""On the page for those who come from other libraries, blocks and right-hand columns run, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
SECTIONS = ["torch.func", "nngeometry", "neural-tangents", "curvlinops", "BackPACK", "laplace-torch"]
ROW = re.compile(r"^\|.*\|(.*)\|$")


def parts() -> Iterator[str]:
    """Blocks, and the code in the last cell of each row, from top to bottom."""
    block: list[str] | None = None
    for line in PAGE.splitlines():
        if block is None and line == "```python":
            block = []
        elif block is not None and line == "```":
            yield "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)
        elif row := ROW.match(line):
            yield from re.findall(r"`([^`]+)`", row[1])


@pytest.fixture(autouse=True)
def _same_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_every_library_has_its_part() -> None:
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == SECTIONS


def test_the_page_runs() -> None:
    names: dict[str, object] = {}
    for part in parts():
        try:
            exec(part, names)
        except Exception as error:
            raise AssertionError(f"{part}\n{error}") from error
