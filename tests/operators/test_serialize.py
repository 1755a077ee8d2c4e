"""Operators on disk: nested compositions, shared tensors, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from contracts.operators import draw, positive, spd
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from torchtangent.operators import (
    BlockOperator,
    DenseOperator,
    DiagonalOperator,
    EigenOperator,
    ImplicitOperator,
    KroneckerOperator,
    LowRankOperator,
    Place,
    Segment,
    Space,
    load,
)
from torchtangent.operators.serialize import HEADER


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operator.safetensors"


def test_a_nested_composition(path: Path) -> None:
    """A block diagonal of an EKFAC-like block, a thin Kronecker product and a diagonal, shifted and inverted."""
    factor = DenseOperator(spd(3))
    eigen = EigenOperator(DiagonalOperator(positive(2)).eigh().vectors, factor.eigh().vectors, positive(2, 3))
    thin = KroneckerOperator(LowRankOperator(draw(1, 2)), factor)
    space = Space(("layer.weight", "layer.bias", "other"), tuple(map(torch.Size, [(2, 2), (2,), (8,)])))
    place = Place((Segment(0, (2, 2), (0, 1)), Segment(4, (2, 1), (0, 1))))
    blocks = BlockOperator(
        [(place, eigen), (Place.flat(6, 6), thin), (Place.flat(12, 2), DiagonalOperator(positive(2)))], 14
    )
    M = (blocks.on(space).damped(0.5).inverse(0.25) + DiagonalOperator(positive(14))) * 2.0
    M.save(path)
    loaded = load(path)
    assert loaded.space == space
    assert torch.equal(loaded.dense(), M.dense())
    v = space.split(draw(14))
    assert torch.equal((loaded @ v)["layer.bias"], (M @ v)["layer.bias"])


def test_a_shared_factor_is_stored_once(path: Path) -> None:
    factor = DenseOperator(spd(3))
    KroneckerOperator(factor, factor).save(path)
    assert len(load_file(path)) == 1


def test_views_and_gradients_are_no_obstacle(path: Path) -> None:
    base = draw(4, 4)
    rows = base[:, ::2].requires_grad_()
    (LowRankOperator(rows) + LowRankOperator(base.T[:, 1:3])).save(path)
    loaded = load(path)
    assert not loaded.rows.requires_grad
    assert torch.equal(loaded.rows, torch.cat([rows.detach(), base.T[:, 1:3]]))


def test_functions_are_refused_wherever_they_hide(path: Path) -> None:
    function = ImplicitOperator(lambda V: V, 2, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="is a function and cannot be saved"):
        BlockOperator([(Place.flat(0, 2), 2 * function)], 2).save(path)
    assert not path.exists()


def test_other_files_are_refused(path: Path) -> None:
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="not one of an operator"):
        load(path)
    DiagonalOperator(torch.ones(2)).save(path)
    tensors = load_file(path)
    for content, message in (
        ({"version": 99, "tree": None}, "version 99"),
        ({"version": 1, "tree": {"type": "os.system", "fields": {}}}, "unknown part 'os.system'"),
        ({"version": 1, "tree": {"tensor": "0"}}, "cannot be read as an operator: it holds a Tensor"),
    ):
        save_file(tensors, path, metadata={HEADER: json.dumps(content)})
        with pytest.raises(ValueError, match=message):
            load(path)


def test_files_that_were_changed_are_named(path: Path) -> None:
    M = DiagonalOperator(torch.ones(3)).on(Space(("w",), (torch.Size([3]),)))
    M.save(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()[HEADER]
    for old, new in (
        ('"tensor": "0"', '"tensor": "7"'),
        ('"values"', '"numbers"'),
        ('"tree"', '"plant"'),
        ('"version"', '"v"'),
        ("{", "["),
        ('"size": [3]', '"size": [4]'),
        ('"size": [3]', '"dtype": "ones"'),
    ):
        assert old in header
        save_file({"0": torch.ones(3)}, path, metadata={HEADER: header.replace(old, new)})
        with pytest.raises(ValueError, match=rf"'{path}' cannot be read as an operator: ."):
            load(path)
