"""CelebA and Waterbirds are read from their official layout, made up here on a small scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchtangent.lab import data
from torchtangent.lab.data import DataError

Read = Callable[[Path, Any], data.Photographs]
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture
def celeba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images of 178×218 pixels: white in the part that is used, black above and below it."""
    monkeypatch.setitem(data.COUNTS, "celeba", {"train": (1, 1, 0, 1), "test": (0, 0, 1, 1)})
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    people = [  # blond, male, part
        (-1, 1, 0),
        (-1, -1, 0),
        (1, -1, 0),
        (1, -1, 1),
        (1, 1, 2),
        (1, -1, 2),
    ]
    names = [f"{i:06}.png" for i in range(1, 7)]
    lines = [f"{name} -1 {blond:2d} {male:2d}  1 " for name, (blond, male, _) in zip(names, people, strict=True)]
    attributes = ["6", "Big_Nose Blond_Hair Male Young ", *lines]
    (folder / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    parts = [f"{name} {part}" for name, (_, _, part) in zip(names, people, strict=True)]
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    pixels = np.zeros((218, 178, 3), dtype=np.uint8)
    pixels[20:198] = 255
    for name in names:
        Image.fromarray(pixels).save(folder / "img_align_celeba" / name)
    return tmp_path


@pytest.fixture
def waterbirds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four images of 512×640 pixels, red in the 448×448 pixels in the middle: those that are used, at half the size."""
    monkeypatch.setitem(data.COUNTS, "waterbirds", {"train": (1, 0, 1, 1), "test": (0, 1, 0, 0)})
    folder = tmp_path / "waterbird_complete95_forest2water2"
    (folder / "001.Albatross").mkdir(parents=True)
    rows = [(0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 2, 1)]  # bird, part, place
    lines = ["img_id,img_filename,y,split,place,place_filename"]
    pixels = np.zeros((640, 512, 3), dtype=np.uint8)
    pixels[96:544, 32:480, 0] = 255
    for i, (bird, part, place) in enumerate(rows):
        lines.append(f'{i},001.Albatross/{i}.png,{bird},{part},{place},"/o/ocean,{i}.jpg"')
        Image.fromarray(pixels).save(folder / f"001.Albatross/{i}.png")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_celeba(celeba: Path) -> None:
    photographs = data.celeba(celeba, "train")
    assert photographs.y.tolist() == [0, 0, 1]
    assert photographs.spurious.tolist() == [0, 1, 1]  # women
    assert photographs.group.tolist() == [0, 1, 3]
    assert [path.name for path in photographs.paths] == ["000001.png", "000002.png", "000003.png"]
    assert "none is published" in photographs.checksums["celeba/list_attr_celeba.txt"]
    groups = photographs.read(torch.tensor([2, 0]))
    assert groups.x.shape == (2, 3, 224, 224)
    assert groups.x.dtype == torch.float32
    white = (1 - MEAN) / DEVIATION
    torch.testing.assert_close(groups.x, white.view(3, 1, 1).expand(2, 3, 224, 224))
    assert groups.group.tolist() == [3, 0]
    assert data.celeba(celeba, "test").group.tolist() == [2, 3]


def test_waterbirds(waterbirds: Path) -> None:
    photographs = data.waterbirds(waterbirds, "train")
    assert photographs.group.tolist() == [0, 2, 3]
    x = photographs.read(torch.tensor([1])).x
    assert x.shape == (1, 3, 224, 224)
    red = ((torch.tensor([1.0, 0, 0]) - MEAN) / DEVIATION).view(3, 1, 1)
    torch.testing.assert_close(x[0, :, 2:-2, 2:-2], red.expand(3, 220, 220))  # the edge is blended
    assert data.waterbirds(waterbirds, "test").group.tolist() == [1]
    assert "none is published" in photographs.checksums["waterbird_complete95_forest2water2/metadata.csv"]


def test_the_folder_may_come_from_the_environment(waterbirds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.ENVIRONMENT, str(waterbirds))
    assert len(data.waterbirds(None, "train").paths) == 3


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (data.celeba, "celeba/list_attr_celeba.txt"),
        (data.waterbirds, "waterbird_complete95_forest2water2/metadata.csv"),
    ],
)
def test_an_absent_list_is_named_with_its_place(read: Read, name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{name} is not in the data folder .* \(it comes from https://.*\)\.$"):
        read(tmp_path, "train")


@pytest.mark.parametrize("read", [data.celeba, data.waterbirds])
def test_an_unknown_split(read: Read, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split='valid' is none of 'train', 'test'"):
        read(tmp_path, "valid")


def test_an_absent_image(celeba: Path) -> None:
    (celeba / "celeba" / "img_align_celeba" / "000002.png").unlink()
    photographs = data.celeba(celeba, "train")
    with pytest.raises(DataError, match=r"000002.png is listed but not there: unpack all images"):
        photographs.read(torch.tensor([1]))


@pytest.mark.parametrize(
    ("old", "new"), [("Male", "Mail"), ("000001.png", ""), ("000001.png -1 -1  1  1", "000001.png")]
)
def test_a_list_in_another_format(celeba: Path, old: str, new: str) -> None:
    path = celeba / "celeba" / "list_attr_celeba.txt"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=r"list_attr_celeba.txt (cannot be read|is damaged)"):
        data.celeba(celeba, "train")


def test_a_list_that_breaks_off(waterbirds: Path) -> None:
    path = waterbirds / "waterbird_complete95_forest2water2" / "metadata.csv"
    path.write_text(path.read_text().replace(",1,0,1,", ",1,0\n"))
    with pytest.raises(DataError, match=r"metadata\.csv cannot be read"):
        data.waterbirds(waterbirds, "train")


def test_a_list_with_other_counts(waterbirds: Path) -> None:
    path = waterbirds / "waterbird_complete95_forest2water2" / "metadata.csv"
    path.write_text(path.read_text().replace(",1,0,1,", ",1,0,0,"))
    with pytest.raises(DataError, match=r"damaged or another file: its groups have \(1, 0, 2, 0\).*\(1, 0, 1, 1\)"):
        data.waterbirds(waterbirds, "train")


def test_published_counts_add_up() -> None:
    """To the sizes of the parts, and to the numbers of blond people among them."""
    assert {split: sum(groups) for split, groups in data.COUNTS["celeba"].items()} == {"train": 162_770, "test": 19_962}
    assert [sum(groups[2:]) for groups in data.COUNTS["celeba"].values()] == [24_267, 2_660]
    assert {split: sum(g) for split, g in data.COUNTS["waterbirds"].items()} == {"train": 4_795, "test": 5_794}
