"""The tutorial's Python prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
NUMBER = r"\d+\.\d+"


def test_the_tutorial_prints_what_it_says() -> None:
    """Up to what another processor's rounding makes of a training run."""
    assert len(BLOCKS) == PAGE.count("```python") == 4
    names: dict[str, object] = {}
    for code, said in BLOCKS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        found = printed.getvalue()
        assert re.sub(NUMBER, "…", found) == re.sub(NUMBER, "…", said)
        for one, other in zip(re.findall(NUMBER, found), re.findall(NUMBER, said), strict=True):
            assert abs(float(one) - float(other)) <= 0.03 + 0.02 * float(other), f"{found} instead of {said}"
