"""Photographs with a binary label and an attribute that mostly agrees with it: CelebA and Waterbirds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.lab.data.files import DataError, File, checksum, read, root_folder, understood
from torchtangent.lab.data.mixtures import Groups

if TYPE_CHECKING:
    from PIL.Image import Image

Split = Literal["train", "test"]

_CELEBA = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
CELEBA = {
    "attributes": File("celeba/list_attr_celeba.txt", None, _CELEBA, by_hand=True),
    "partition": File("celeba/list_eval_partition.txt", None, _CELEBA, by_hand=True),
}
WATERBIRDS = File(
    "waterbird_complete95_forest2water2/metadata.csv",
    None,
    "https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz",
    by_hand=True,
)
COUNTS: dict[str, dict[Split, tuple[int, ...]]] = {
    "celeba": {"train": (66_874, 71_629, 1_387, 22_880), "test": (7_535, 9_767, 180, 2_480)},
    "waterbirds": {"train": (3_498, 184, 56, 1_057), "test": (2_255, 2_255, 642, 642)},
}
"""The samples of every group; the lists have no published checksums."""

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_SIDE = 224


@dataclass(frozen=True)
class Photographs:
    """The labels of many images that are on disk: read those that are needed."""

    paths: Sequence[Path]
    y: Int[Tensor, " n"]
    spurious: Int[Tensor, " n"]
    checksums: dict[str, str]
    prepare: Callable[[Image], Image]

    @property
    def group(self) -> Int[Tensor, " n"]:
        """2·label + attribute: 0 to 3."""
        return 2 * self.y + self.spurious

    def read(self, index: Int[Tensor, " m"]) -> Groups:
        """These images, 224×224, with ImageNet's mean and deviation taken out."""
        x = torch.stack([self._picture(self.paths[i]) for i in index.tolist()])
        return Groups(x, self.y[index], self.spurious[index])

    def _picture(self, path: Path) -> Float[Tensor, "3 h w"]:
        from PIL import Image

        if not path.exists():
            raise DataError(f"{path} is listed but not there: unpack all images of the data set into {path.parent}")
        with Image.open(path) as image:
            pixels = np.asarray(self.prepare(image.convert("RGB")), dtype=np.float32) / 255
        return torch.from_numpy(((pixels - _MEAN) / _DEVIATION).astype(np.float32)).permute(2, 0, 1)


def celeba(root: Path | None, split: Split) -> Photographs:
    """CelebA (Liu et al., 2015): is the hair blond; the attribute is 1 for women, of whom more are.

    In the data folder belong `celeba/list_attr_celeba.txt`, `celeba/list_eval_partition.txt` and the aligned images in
    `celeba/img_align_celeba/`. An image's central 178×178 pixels are used.

    Raises:
        DataError: A list is absent or not the published one.
    """
    part = _part(split)
    folder = root_folder(root)
    blobs = {key: read(file, folder) for key, file in CELEBA.items()}
    with understood(CELEBA["partition"]):
        parts = dict(line.split() for line in blobs["partition"].decode().splitlines())
    with understood(CELEBA["attributes"]):
        _, header, *lines = blobs["attributes"].decode().splitlines()  # the first line is the number of images
        blond, male = (1 + header.split().index(name) for name in ("Blond_Hair", "Male"))
        rows = [row for row in map(str.split, lines) if parts.get(row[0]) == part]
        photographs = Photographs(
            [folder / "celeba" / "img_align_celeba" / row[0] for row in rows],
            torch.tensor([int(row[blond]) == 1 for row in rows]).long(),
            torch.tensor([int(row[male]) == -1 for row in rows]).long(),
            {file.path: checksum(file, blobs[key]) for key, file in CELEBA.items()},
            _celeba,
        )
    return _checked(photographs, CELEBA["attributes"], COUNTS["celeba"][split])


def waterbirds(root: Path | None, split: Split) -> Photographs:
    """Waterbirds (Sagawa et al., 2020): is it a water bird; the attribute is 1 before water.

    In the data folder belongs `waterbird_complete95_forest2water2/`, as it is unpacked. Images are made 256 pixels
    along their shorter side and cut to their centre.

    Raises:
        DataError: The list is absent or not the published one.
    """
    part = _part(split)
    folder = root_folder(root)
    blob = read(WATERBIRDS, folder)
    with understood(WATERBIRDS):
        rows = [row for row in csv.DictReader(blob.decode().splitlines()) if row["split"] == part]
        photographs = Photographs(
            [(folder / WATERBIRDS.path).parent / row["img_filename"] for row in rows],
            torch.tensor([int(row["y"]) for row in rows]).long(),
            torch.tensor([int(row["place"]) for row in rows]).long(),
            {WATERBIRDS.path: checksum(WATERBIRDS, blob)},
            _waterbirds,
        )
    return _checked(photographs, WATERBIRDS, COUNTS["waterbirds"][split])


def _part(split: str) -> str:
    """Its number in the lists."""
    parts = {"train": "0", "test": "2"}
    if split not in parts:
        raise ValueError(f"split={split!r} is none of 'train', 'test'.")
    return parts[split]


def _checked(photographs: Photographs, file: File, published: tuple[int, ...]) -> Photographs:
    found = tuple(photographs.group.bincount(minlength=4).tolist())
    if found != published:
        raise DataError(
            f"{file.path} is damaged or another file: its groups have {found} samples, the published ones {published}. "
            f"Fetch it again from {file.url}"
        )
    return photographs


def _celeba(image: Image) -> Image:
    return _resized(_cut(image, 178), _SIDE)


def _waterbirds(image: Image) -> Image:
    return _cut(_resized(image, 256), _SIDE)


def _cut(image: Image, side: int) -> Image:
    """The central square."""
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _resized(image: Image, side: int) -> Image:
    """So large along the shorter side."""
    from PIL.Image import Resampling

    width, height = (int(side * length / min(image.size)) for length in image.size)
    return image.resize((width, height), Resampling.BILINEAR)
