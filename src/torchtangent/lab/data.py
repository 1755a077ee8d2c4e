"""Data sets: from scikit-learn, or from official files in a folder, refused unless their checksum is right.

The folder is the option `--data` or the environment variable `TORCHTANGENT_DATA`. Nothing is ever
unpickled. `download` fetches what is missing, where there is a network (it needs `pooch`).
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

ENVIRONMENT = "TORCHTANGENT_DATA"


class DataError(Exception):
    """A file of a data set is absent or damaged; the message says which one and where it belongs."""


@dataclass(frozen=True)
class Dataset:
    """Images in [0, 1] as (samples, channels, height, width), with labels."""

    x_train: Float[Tensor, "n c h w"]
    y_train: Int[Tensor, " n"]
    x_test: Float[Tensor, "m c h w"]
    y_test: Int[Tensor, " m"]
    checksums: dict[str, str]


@dataclass(frozen=True)
class File:
    """An official file: where it belongs, its checksum, where it comes from.

    `packed` is the checksum of the gzipped file, for those of which no other is published: then only that file will do.
    """

    path: str
    md5: str
    url: str
    packed: bool = False


_PARTS = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def _idx_files(folder: str, url: str, sums: list[str], *, packed: bool = False) -> dict[str, File]:
    return {
        key: File(f"{folder}/raw/{name}", md5, f"{url}{name}.gz", packed)
        for (key, name), md5 in zip(_PARTS.items(), sums, strict=True)
    }


IDX = {
    "mnist": _idx_files(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        [
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ],
    ),
    "fashion-mnist": _idx_files(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        [
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ],
    ),
    "kmnist": _idx_files(
        "KMNIST",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        [
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ],
        packed=True,
    ),
}
"""Data sets of four idx files."""

_CIFAR10 = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10 = [
    File(f"cifar-10-batches-bin/{name}.bin", md5, _CIFAR10)
    for name, md5 in [
        ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ]
]


def root_folder(given: Path | None = None) -> Path:
    """The data folder: the one given, or that of the environment variable.

    Raises:
        DataError: Neither is set.
    """
    if given is not None:
        return given
    if value := os.environ.get(ENVIRONMENT):
        return Path(value)
    raise DataError(f"no data folder: give one with --data or set {ENVIRONMENT}")


def read(file: File, root: Path) -> bytes:
    """The bytes of an official file, gzipped or not, refused if they are not the published ones."""
    path = root / file.path
    packed = path.with_name(path.name + ".gz")
    if path.exists() and not file.packed:
        blob = path.read_bytes()
        _check(file, blob)
    elif packed.exists():
        raw = packed.read_bytes()
        if file.packed:
            _check(file, raw)
        try:
            blob = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise DataError(f"{packed} cannot be unpacked ({error}): fetch it again from {file.url}") from error
        if not file.packed:
            _check(file, blob)
    else:
        name = f"{file.path}.gz" if file.packed else file.path
        raise DataError(
            f"{name} is not in the data folder {root}. Put it there (it comes from {file.url}), "
            "or let torchtangent.lab.data.download(folder) fetch it."
        )
    return blob


def _check(file: File, blob: bytes) -> None:
    found = hashlib.md5(blob).hexdigest()
    if found != file.md5:
        raise DataError(
            f"{file.path} is damaged or another file: its md5 is {found}, the published one {file.md5}. "
            f"Fetch it again from {file.url}"
        )


def parse_idx(blob: bytes) -> np.ndarray:
    """The array in an idx file of unsigned bytes (two zeros, type 8, rank; sizes, big-endian; data).

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    if len(blob) < 4 or blob[:3] != b"\x00\x00\x08":
        raise DataError("not an idx file of unsigned bytes")
    rank = blob[3]
    shape = np.frombuffer(blob, dtype=">u4", count=rank, offset=4)
    body = np.frombuffer(blob, dtype=np.uint8, offset=4 + 4 * rank)
    if body.size != int(np.prod(shape)):
        raise DataError(f"idx file of shape {shape.tolist()} holds {body.size} bytes")
    return body.reshape(shape)


def _idx(name: str, given: Path | None) -> Dataset:
    root = root_folder(given)
    files = IDX[name]
    raw = {key: parse_idx(read(file, root)) for key, file in files.items()}

    def images(key: str) -> Tensor:
        return torch.from_numpy(raw[key].copy()).unsqueeze(1).float() / 255

    def labels(key: str) -> Tensor:
        return torch.from_numpy(raw[key].astype(np.int64))

    sums = {file.path: f"md5 {file.md5}" for file in files.values()}
    return Dataset(images("x_train"), labels("y_train"), images("x_test"), labels("y_test"), sums)


def _cifar10(given: Path | None) -> Dataset:
    """A record of the official binary format is a label and 32×32 red, green and blue planes."""
    root = root_folder(given)
    raw = [np.frombuffer(read(file, root), dtype=np.uint8).reshape(-1, 3073) for file in CIFAR10]

    def images(records: np.ndarray) -> Tensor:
        return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float() / 255

    def labels(records: np.ndarray) -> Tensor:
        return torch.from_numpy(records[:, 0].astype(np.int64))

    train, test = np.concatenate(raw[:5]), raw[5]
    sums = {file.path: f"md5 {file.md5}" for file in CIFAR10}
    return Dataset(images(train), labels(train), images(test), labels(test), sums)


def _digits(_: Path | None) -> Dataset:
    """scikit-learn's 1,797 digits of 8×8 pixels made 28×28: every pixel 3×3 times, and a border of 2 zeros.

    The order is scikit-learn's own; every fifth sample is a test sample.
    """
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    large = small.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    x = torch.from_numpy(np.pad(large, ((0, 0), (2, 2), (2, 2)))).unsqueeze(1).float() / 16
    y = torch.from_numpy(labels.astype(np.int64))
    test = torch.arange(len(y)) % 5 == 0
    found = hashlib.md5(small.astype(np.uint8).tobytes()).hexdigest()
    return Dataset(x[~test], y[~test], x[test], y[test], {"scikit-learn digits": f"md5 {found}"})


LOADERS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": _digits,
    **{name: partial(_idx, name) for name in IDX},
    "cifar10": _cifar10,
}


def load(name: str, root: Path | None = None) -> Dataset:
    """A data set by name.

    >>> load("digits").x_train.shape
    torch.Size([1437, 1, 28, 28])
    """
    if name not in LOADERS:
        raise ValueError(f"no data set {name!r}; there are: {', '.join(LOADERS)}")
    return LOADERS[name](root)


def download(folder: str | Path) -> None:
    """Fetch the official files that are missing into a data folder, with a progress bar, and check them."""
    import pooch

    root = Path(folder)
    for file in (file for files in IDX.values() for file in files.values()):
        path = root / file.path
        if not path.exists() and not path.with_name(path.name + ".gz").exists():
            pooch.retrieve(file.url, known_hash=None, fname=path.name + ".gz", path=path.parent, progressbar=True)
        read(file, root)  # checks what was fetched
    if not all((root / file.path).exists() for file in CIFAR10):
        unpack = pooch.Untar(extract_dir=root.resolve())
        pooch.retrieve(_CIFAR10, known_hash=None, path=root, progressbar=True, processor=unpack)
    for file in CIFAR10:
        read(file, root)
