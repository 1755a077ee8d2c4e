"""docs/api.md has every public name, with what its docstring says now."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_the_page_is_up_to_date() -> None:
    script = Path(__file__).parents[1] / "docs" / "api.py"
    page = runpy.run_path(str(script))["page"]()
    assert script.with_suffix(".md").read_text(encoding="utf-8") == page, "run python docs/api.py"
