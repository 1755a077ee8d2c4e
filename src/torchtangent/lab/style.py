"""The one style of all plots, and how they become SVG that follows the page's light or dark theme.

Plots are drawn in the colours below; in the page each of them is a CSS variable of the same name, so
that one drawing serves both themes. Series differ by line and marker as well as by colour, and the
colours by lightness, so a plot survives a black-and-white printer.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, SOFT, RULE = "#1b1f27", "#5f6673", "#d9dce2"
SERIES = ("#1f4e9c", "#c4501b", "#3f8f5f", "#8a4fa3", "#8c6d10", "#2f8fb3", "#6b6b6b")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "x")
MAP = "cividis"
"""The colour map: its lightness rises monotonically."""

VARIABLES = {INK: "--ink", SOFT: "--soft", RULE: "--rule"} | {
    color: f"--series-{i + 1}" for i, color in enumerate(SERIES)
}

_SETTINGS: Any = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "svg.fonttype": "path",
    "mathtext.fontset": "dejavusans",
}


def series(i: int, **more: Any) -> dict[str, Any]:
    """Colour, line and marker of the i-th series; keywords replace or add."""
    k = i % len(SERIES)
    return {"color": SERIES[k], "linestyle": LINES[k], "marker": MARKERS[k]} | more


@contextmanager
def applied() -> Iterator[None]:
    """The style, for the plots made inside."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def panel(title: str = "", *, x: str = "", y: str = "", height: float = 3.1) -> tuple[Figure, Axes]:
    """A figure of the panel's width (3.8 in, a telephone's) and its axes."""
    figure = Figure(figsize=(3.8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def legend(figure: Figure) -> None:
    """A legend below the axes, where it hides nothing, in as many columns as the figure is wide enough for."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for columns in (3, 2, 1):
        drawn = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


def to_svg(figure: Figure, name: str, alt: str = "") -> str:
    """The figure as an SVG element to put into a page: no size of its own, colours as CSS variables.

    Args:
        figure: The drawing.
        name: Unique in the page; keeps the identifiers inside the SVG apart from other drawings'.
        alt: What it shows, in words.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, **_SETTINGS}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        text = text.replace(color, f"var({variable}, {color})")
    # Identifiers of groups ("axes_1", "patch_2") repeat from drawing to drawing and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"\n\s+", "\n", text)
    # Hundredths of a point are enough, and of markers in a row, maybe thousands, all have their style in common.
    text = re.sub(r' (d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    alike = r'<use [^>]* style="([^"]*)"/>\n(?:<use [^>]* style="\1"/>\n)+'
    text = re.sub(alike, lambda run: f'<g style="{run[1]}">\n{_without(run[0], run[1])}</g>\n', text)
    head = f'<svg class="plot" role="img" aria-label="{_escape(alt)}"'
    text = re.sub(r'<svg( [^>]*?)? width="[^"]*"', r"<svg\1", text, count=1)
    text = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", head, 1)


def share_glyphs(page: str) -> str:
    """A page of drawings in which the outline of every letter stands once, at the beginning, not in each of them.

    >>> drawing = '<svg><defs><path id="DejaVu-41" d="M 0 0"/></defs><use xlink:href="#DejaVu-41"/></svg>'
    >>> share_glyphs("<body>" + 2 * drawing).count("M 0 0")
    1
    """
    outline = re.compile(r'<path id="(DejaVu[^"]*)"[^>]*/>')
    glyphs = {found[1]: found[0] for found in outline.finditer(page)}
    page = re.sub(r"<defs>\s*</defs>\n?", "", outline.sub("", page))
    hidden = 'width="0" height="0" style="position: absolute" aria-hidden="true"'
    shared = f"<svg {hidden}><defs>{''.join(glyphs.values())}</defs></svg>"
    return page.replace("<body>", f"<body>{shared}", 1)


def _without(uses: str, style: str) -> str:
    return uses.replace(f' style="{style}"', "")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
