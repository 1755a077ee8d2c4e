"""The layout of parameter space, and the places of blocks in it."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtangent.operators import Place, Segment, Space

SPACE = Space.of({"w": torch.zeros(2, 3), "b": torch.zeros(2), "scale": torch.zeros(())})


def test_size_and_offsets() -> None:
    assert SPACE.size == 9
    assert SPACE.offsets == {"w": 0, "b": 6, "scale": 8}


def test_split_is_a_view() -> None:
    flat = torch.arange(9.0)
    pieces = SPACE.split(flat)
    assert torch.equal(pieces["w"], torch.tensor([[0.0, 1, 2], [3, 4, 5]]))
    assert pieces["scale"].shape == ()
    assert pieces["b"].data_ptr() == flat[6:].data_ptr()


@pytest.mark.parametrize("shape", [(9,), (9, 4)])
def test_tensors_come_back_in_their_shape(shape: tuple[int, ...]) -> None:
    v = torch.randn(shape)
    columns, restore = SPACE.flatten(v)
    assert columns.shape == (9, math.prod(shape[1:]))
    assert columns.data_ptr() == v.data_ptr(), "no copy"
    assert torch.equal(restore(columns), v)


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_named_and_listed_vectors_come_back_in_their_format(kind: type) -> None:
    named = {"scale": torch.randn(()), "b": torch.randn(2), "w": torch.randn(2, 3)}  # in any order
    ordered = {name: named[name] for name in SPACE.names}
    v = named if kind is dict else kind(ordered.values())
    columns, restore = SPACE.flatten(v)
    assert torch.equal(columns[:, 0], torch.cat([t.reshape(-1) for t in ordered.values()]))
    back = restore(columns)
    assert type(back) is kind
    items = back.values() if kind is dict else back
    assert all(torch.equal(a, b) for a, b in zip(items, ordered.values(), strict=True))


def test_errors_name_what_is_wrong() -> None:
    good = SPACE.split(torch.zeros(9))
    with pytest.raises(ValueError, match=r"missing \['b'\], unknown \['bias'\]"):
        SPACE.flatten({"w": good["w"], "bias": good["b"], "scale": good["scale"]})
    with pytest.raises(ValueError, match=r"'w': expected shape \(2, 3\), got \(3, 2\)"):
        SPACE.flatten({**good, "w": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match="expected 3, got 2"):
        SPACE.flatten([good["w"], good["b"]])
    with pytest.raises(ValueError, match=r"\(9,\) or \(9, K\), got \(8,\)"):
        SPACE.flatten(torch.zeros(8))
    with pytest.raises(ValueError, match=r"\(9,\) or \(9, K\), got \(9, 1, 1\)"):
        SPACE.flatten(torch.zeros(9, 1, 1))
    with pytest.raises(ValueError, match="flat vector of 9"):
        SPACE.split(torch.zeros(8))


def test_transposed_segment() -> None:
    """The weight (in, out, kernel) of a transposed convolution, with out as its rows."""
    place = Place((Segment(1, (2, 3, 2), (1, 0, 2)),))
    block = place.gather(torch.arange(14)[:, None]).view(place.rows, place.cols)
    assert block.tolist() == [[1, 2, 7, 8], [3, 4, 9, 10], [5, 6, 11, 12]]


def test_a_single_untransposed_segment_is_not_copied() -> None:
    v = torch.randn(20, 1)
    assert Place((Segment(2, (3, 2, 2), (0, 1, 2)),)).gather(v).data_ptr() == v[2:].data_ptr()
    assert Place.flat(4, 5).gather(v).data_ptr() == v[4:].data_ptr()


def test_segments_of_different_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same rows, got \[2, 3\]"):
        Place((Segment(0, (2, 3), (0, 1)), Segment(6, (3, 1), (0, 1))))


Layout = tuple[list[tuple[int, tuple[int, ...], tuple[int, ...]]], int]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One to three segments of equal rows with gaps between them, in any order, and the vector's length."""
    rows, end, segments = draw(st.integers(1, 4)), 0, []
    for _ in range(draw(st.integers(1, 3))):
        others = draw(st.lists(st.integers(1, 3), max_size=3))
        position = draw(st.integers(0, len(others)))
        shape = (*others[:position], rows, *others[position:])
        rest = draw(st.permutations([axis for axis in range(len(shape)) if axis != position]))
        end += draw(st.integers(0, 3))
        segments.append((end, shape, (position, *rest)))
        end += math.prod(shape)
    return draw(st.permutations(segments)), end + draw(st.integers(0, 3))


def entries(place: Place) -> list[int]:
    """Where each entry of the block lies in the flat vector, one index at a time."""
    columns = []
    for segment in place.segments:
        strides = [math.prod(segment.shape[axis + 1 :]) for axis in range(len(segment.shape))]
        rest = segment.order[1:]
        for index in product(*(range(segment.shape[axis]) for axis in rest)):
            offset = segment.start + sum(i * strides[axis] for i, axis in zip(index, rest, strict=True))
            columns.append([offset + row * strides[segment.order[0]] for row in range(place.rows)])
    return [column[row] for row in range(place.rows) for column in columns]


@given(layouts(), st.integers(1, 3))
def test_gather_and_scatter_follow_the_definition(layout: Layout, columns: int) -> None:
    segments, size = layout
    place = Place(tuple(Segment(*segment) for segment in segments))
    V = torch.arange(size * columns, dtype=torch.float64).view(size, columns)
    index = entries(place)
    assert place.size == place.rows * place.cols == len(index)
    block = place.gather(V)
    assert torch.equal(block, V[index])
    out = torch.full_like(V, -1.0)
    place.scatter(block, out)
    expected = torch.full_like(V, -1.0)
    expected[index] = V[index]
    assert torch.equal(out, expected)
