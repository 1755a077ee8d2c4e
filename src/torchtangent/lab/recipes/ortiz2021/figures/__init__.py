"""The plots."""

from typing import Any

from torchtangent.lab.style import INK

REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": ":"}
"""How lines to compare with look."""
