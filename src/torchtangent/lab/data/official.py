"""Image classification sets from their official files, and scikit-learn's digits."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.lab.data.files import DataError, File, as_found, checksum, parse_idx, read, root_folder, understood


@dataclass(frozen=True)
class Dataset:
    """Images in [0, 1] as (samples, channels, height, width), with labels."""

    x_train: Float[Tensor, "n c h w"]
    y_train: Int[Tensor, " n"]
    x_test: Float[Tensor, "m c h w"]
    y_test: Int[Tensor, " m"]
    checksums: dict[str, str]


@dataclass(frozen=True)
class Scores:
    """The consistency scores of CIFAR-10's training set, in the order of its files; near 1 is easy."""

    values: Float[Tensor, " n"]
    labels: Int[Tensor, " n"]
    checksums: dict[str, str]


_PARTS = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def _idx_files(folder: str, url: str, sums: Sequence[str], *, packed: bool = False) -> dict[str, File]:
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
"""Data sets of four idx files.

Of KMNIST only the gzipped files have published checksums. Where only unpacked ones are there, which may hold fewer
images, they are read with a warning, and the record of a run says so.
"""

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

CSCORES = File(
    "cifar10-cscores-orig-order.npz",
    None,
    "https://pluskid.github.io/structural-regularity/cscores/cifar10-cscores-orig-order.npz",
)
_CIFAR10_LABELS = "69c5f3349be54915edfca558b72ad888"  # md5 of the 50,000 training labels, a byte each


def load(name: str, root: Path | None = None) -> Dataset:
    """A data set by name.

    >>> load("digits").x_train.shape
    torch.Size([1437, 1, 28, 28])
    """
    if name not in LOADERS:
        raise ValueError(f"no data set {name!r}; there are: {', '.join(LOADERS)}")
    return LOADERS[name](root)


def cscores(root: Path | None = None) -> Scores:
    """How consistently each of CIFAR-10's 50,000 training images is learned from the others (Jiang et al., 2021).

    The C-score of (x, y) is P(f(x; D) = y) for a network trained on a random subset D of the rest, averaged over sizes
    of D. The file has no published checksum: its labels must be those of CIFAR-10.

    Raises:
        DataError: The file is absent, damaged or another one.
    """
    blob = read(CSCORES, root_folder(root))
    with understood(CSCORES), np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        values, labels = arrays["scores"], arrays["labels"]
    if values.shape != labels.shape or hashlib.md5(labels.astype(np.uint8).tobytes()).hexdigest() != _CIFAR10_LABELS:
        raise DataError(
            f"{CSCORES.path} is another file: its labels are not those of CIFAR-10's training set in the order of the "
            f"official files. Fetch it again from {CSCORES.url}"
        )
    return Scores(
        torch.from_numpy(values.astype(np.float64)),
        torch.from_numpy(labels.astype(np.int64)),
        {CSCORES.path: checksum(CSCORES, blob)},
    )


def _idx(name: str, given: Path | None) -> Dataset:
    root = root_folder(given)
    files = {key: as_found(file, root) for key, file in IDX[name].items()}
    blobs = {key: read(file, root) for key, file in files.items()}
    raw = {}
    for key, file in files.items():
        with understood(file):
            raw[key] = parse_idx(blobs[key])
    for part in ("train", "test"):
        images, labels = raw[f"x_{part}"].shape, raw[f"y_{part}"].shape
        if len(labels) != 1 or images != (*labels, 28, 28):
            raise DataError(
                f"{files[f'y_{part}'].path} in {root} holds labels of shape {labels} for images of shape {images}; "
                f"n labels need images of shape (n, 28, 28). Fetch both again from {files[f'x_{part}'].url}"
            )
    if unchecked := [file.path for file in files.values() if file.md5 is None]:
        warnings.warn(
            f"not checked, and maybe a part of the images only: {', '.join(unchecked)} in {root}. Only the gzipped "
            "files have published checksums: put them there, or let torchtangent.lab.data.download(folder) fetch them.",
            stacklevel=3,
        )

    def x(key: str) -> Tensor:
        return torch.from_numpy(raw[key].copy()).unsqueeze(1).float() / 255

    def y(key: str) -> Tensor:
        return torch.from_numpy(raw[key].astype(np.int64))

    sums = {file.path: checksum(file, blobs[key]) for key, file in files.items()}
    return Dataset(x("x_train"), y("y_train"), x("x_test"), y("y_test"), sums)


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


def download(folder: str | Path) -> None:
    """Fetch the official files that are missing into a data folder, with a progress bar, and check them.

    CelebA and Waterbirds are not among them: they come as archives that are unpacked by hand.
    """
    import pooch

    root = Path(folder)
    for file in (file for files in IDX.values() for file in files.values()):
        path = root / file.path
        missing = file.packed or not path.exists()
        if missing and not path.with_name(path.name + ".gz").exists():
            pooch.retrieve(file.url, known_hash=None, fname=path.name + ".gz", path=path.parent, progressbar=True)
        read(file, root)  # checks what was fetched
    if not all((root / file.path).exists() for file in CIFAR10):
        unpack = pooch.Untar(extract_dir=root.resolve())
        pooch.retrieve(_CIFAR10, known_hash=None, path=root, progressbar=True, processor=unpack)
    for file in CIFAR10:
        read(file, root)
    if not (root / CSCORES.path).exists():
        pooch.retrieve(CSCORES.url, known_hash=None, fname=CSCORES.path, path=root, progressbar=True)
    cscores(root)
