"""Plots follow the page's theme and keep apart."""

from __future__ import annotations

import re

from torchtangent.lab import style


def drawing(name: str) -> str:
    with style.applied():
        figure, axes = style.panel("Title", x="x", y="y")
        axes.plot([0, 1], [0, 1], **style.series(0), label="a < b")
        style.legend(figure)
        return style.to_svg(figure, name, 'about "this" & that')


def test_colours_are_variables_with_a_value_to_fall_back_on() -> None:
    svg = drawing("one")
    assert f"var(--series-1, {style.SERIES[0]})" in svg
    assert f"var(--ink, {style.INK})" in svg
    assert not re.search(rf"(?<!, ){style.SERIES[0]}", svg)


def test_the_svg_has_no_size_of_its_own_and_an_alternative_text() -> None:
    head = drawing("one").split(">")[0]
    assert "viewBox" in head
    assert " width=" not in head
    assert " height=" not in head
    assert 'aria-label="about &quot;this&quot; &amp; that"' in head


def test_drawings_are_reproducible_and_their_identifiers_differ() -> None:
    assert drawing("one") == drawing("one")
    clips = [set(re.findall(r'clipPath id="(\w+)"', drawing(name))) for name in ("one", "two")]
    assert clips[0]
    assert not clips[0] & clips[1]


def test_series_differ_without_colour() -> None:
    looks = [(str(style.series(i)["linestyle"]), style.series(i)["marker"]) for i in range(len(style.SERIES))]
    assert len(set(looks)) == len(looks)


def test_markers_of_one_style_have_it_once() -> None:
    figure, axes = style.panel()
    for color, marker in zip(style.SERIES[:2], "os", strict=True):
        axes.plot(range(100), range(100), marker, color=color)
    text = style.to_svg(figure, "markers")
    for color in style.SERIES[:2]:
        assert text.count(f"fill: var({style.VARIABLES[color]}, {color})") <= 2  # and where the marker is defined
    assert text.count("<use") >= 200


def test_a_legend_is_never_wider_than_its_figure() -> None:
    for words, columns in (("short", 3), ("some longer words", 2), ("words that would fill a line of their own", 1)):
        with style.applied():
            figure, axes = style.panel()
            for i in range(6):
                axes.plot([0, 1], [0, i], **style.series(i), label=words)
            style.legend(figure)
        (legend,) = figure.legends
        assert legend._ncols == columns
        assert legend.get_window_extent().width <= figure.bbox.width
