"""Official files are read exactly, and refused with a helpful message when they are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchtangent.lab import data
from torchtangent.lab.data import DataError


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in MNIST's layout, with checksums to match."""
    rng = np.random.default_rng(0)
    files = {}
    for key, file in data.IDX["mnist"].items():
        shape = (3, 28, 28) if key.startswith("x") else (3,)
        blob = idx(rng.integers(0, 10, shape, dtype=np.uint8))
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob)
        files[key] = replace(file, md5=hashlib.md5(blob).hexdigest())
    monkeypatch.setitem(data.IDX, "mnist", files)
    return tmp_path


def test_mnist_is_read_from_idx_files(small_mnist: Path) -> None:
    dataset = data.load("mnist", small_mnist)
    assert dataset.x_train.shape == (3, 1, 28, 28)
    assert dataset.x_train.max() <= 9 / 255
    assert dataset.y_test.shape == (3,)
    assert "MNIST/raw/train-images-idx3-ubyte" in dataset.checksums


def test_gzipped_files_will_do(small_mnist: Path) -> None:
    before = data.load("mnist", small_mnist)
    for file in data.IDX["mnist"].values():
        path = small_mnist / file.path
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert data.load("mnist", small_mnist).x_train.equal(before.x_train)


@pytest.fixture
def small_kmnist(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files in KMNIST's place, gzipped with checksums to match, and unpacked."""
    files = {}
    for (key, file), source in zip(data.IDX["kmnist"].items(), data.IDX["mnist"].values(), strict=True):
        path = small_mnist / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((small_mnist / source.path).read_bytes())
        packed = gzip.compress(path.read_bytes())
        path.with_name(path.name + ".gz").write_bytes(packed)
        files[key] = replace(file, md5=hashlib.md5(packed).hexdigest())
    monkeypatch.setitem(data.IDX, "kmnist", files)
    return small_mnist


def test_a_checksum_of_the_gzipped_file(small_kmnist: Path) -> None:
    files = data.IDX["kmnist"]
    for file in files.values():
        (small_kmnist / file.path).write_bytes(b"never looked at")
    dataset = data.load("kmnist", small_kmnist)
    assert dataset.x_test.equal(data.load("mnist", small_kmnist).x_test)
    assert dataset.checksums == {file.path: f"md5 {file.md5}" for file in files.values()}
    packed = small_kmnist / (files["y_test"].path + ".gz")
    packed.write_bytes(gzip.compress(b"another"))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        data.load("kmnist", small_kmnist)
    packed.unlink()
    packed.with_suffix("").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is not in the data folder"):
        data.load("kmnist", small_kmnist)


def test_unpacked_files_that_cannot_be_checked(small_kmnist: Path) -> None:
    """They will do, with a warning at the caller's line that names these alone, and the record says what they were."""
    files = data.IDX["kmnist"]
    path = small_kmnist / files["x_train"].path
    path.with_name(path.name + ".gz").unlink()
    with pytest.warns(UserWarning, match=f"images only: {files['x_train'].path} in .* Only the gzipped") as caught:
        dataset = data.load("kmnist", small_kmnist)
    assert [warning.filename for warning in caught] == [__file__]
    assert dataset.x_train.equal(data.load("mnist", small_kmnist).x_train)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert dataset.checksums == {file.path: f"md5 {file.md5}" for file in files.values()} | {
        files["x_train"].path: f"sha256 {found}, not checked: none is published"
    }


IMAGES = np.zeros((3, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (idx(IMAGES[:2]), r"train-labels-idx1-ubyte .* labels of shape \(3,\) for images of shape \(2, 28, 28\)"),
        (idx(IMAGES[:, :, :27]), r"images of shape \(3, 28, 27\); n labels need images of shape \(n, 28, 28\)"),
        (idx(IMAGES[:, 0, 0]), r"images of shape \(3,\)"),
        (
            idx(IMAGES)[:-1],
            r"train-images-idx3-ubyte cannot be read \(idx file of shape \[3, 28, 28\] holds 2351 bytes",
        ),
        (idx(IMAGES)[:9], "train-images-idx3-ubyte cannot be read"),
        (b"no idx file", r"train-images-idx3-ubyte cannot be read \(not an idx file.*fetch it again from http"),
    ],
    ids=["count", "side", "rank", "short", "header", "format"],
)
def test_unpacked_files_of_other_sizes_are_refused(small_kmnist: Path, blob: bytes, message: str) -> None:
    path = small_kmnist / data.IDX["kmnist"]["x_train"].path
    path.with_name(path.name + ".gz").unlink()
    path.write_bytes(blob)
    with pytest.raises(DataError, match=message):
        data.load("kmnist", small_kmnist)


def test_the_folder_may_come_from_the_environment(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.ENVIRONMENT, str(small_mnist))
    assert len(data.load("mnist").x_train) == 3
    monkeypatch.delenv(data.ENVIRONMENT)
    with pytest.raises(DataError, match="--data"):
        data.load("mnist")


def test_an_absent_file_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"MNIST/raw/train-images-idx3-ubyte is not in the data folder"):
        data.load("mnist", tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-batches-bin/data_batch_1.bin is not in the data folder"):
        data.load("cifar10", tmp_path)


def test_a_damaged_file_is_refused(small_mnist: Path) -> None:
    path = small_mnist / data.IDX["mnist"]["x_test"].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        data.load("mnist", small_mnist)


@pytest.mark.parametrize("blob", [b"", b"\x00\x00\x0d\x01", idx(np.zeros(3, dtype=np.uint8))[:-1]])
def test_what_is_no_idx_file_is_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="idx file"):
        data.parse_idx(blob)


def test_cifar10_is_read_from_binary_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = bytes([7]) + bytes([255] * 1024) + bytes([0] * 1024) + bytes([51] * 1024)
    files = []
    for file in data.CIFAR10:
        path = tmp_path / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(record * 2)
        files.append(replace(file, md5=hashlib.md5(record * 2).hexdigest()))
    monkeypatch.setattr(data.official, "CIFAR10", files)
    dataset = data.load("cifar10", tmp_path)
    assert dataset.x_train.shape == (10, 3, 32, 32)
    assert dataset.x_test[0].mean((1, 2)).tolist() == pytest.approx([1, 0, 0.2])
    assert dataset.y_train.tolist() == [7] * 10


@pytest.fixture
def small_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three scores in the official file's format."""
    labels = np.array([6, 9, 9])
    np.savez(tmp_path / data.CSCORES.path, scores=np.array([0.7, 0.9, 0.8]), labels=labels)
    monkeypatch.setattr(data.official, "_CIFAR10_LABELS", hashlib.md5(bytes(labels.tolist())).hexdigest())
    return tmp_path


def test_scores_are_read(small_scores: Path) -> None:
    scores = data.cscores(small_scores)
    assert scores.values.tolist() == [0.7, 0.9, 0.8]
    assert scores.labels.tolist() == [6, 9, 9]
    found = hashlib.sha256((small_scores / data.CSCORES.path).read_bytes()).hexdigest()
    assert scores.checksums == {data.CSCORES.path: f"sha256 {found}, not checked: none is published"}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": np.ones(3), "labels": np.array([9, 6, 9])}, "its labels are not those of CIFAR-10"),
        ({"scores": np.ones(2), "labels": np.array([6, 9, 9])}, "its labels are not those of CIFAR-10"),
        ({"scores": np.ones(3)}, "cannot be read"),
        ({"scores": np.array([None] * 3), "labels": np.array([6, 9, 9])}, "cannot be read.*allow_pickle"),
    ],
    ids=["order", "count", "no labels", "pickled"],
)
def test_other_scores_are_refused(small_scores: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(small_scores / data.CSCORES.path, **arrays)
    with pytest.raises(DataError, match=message):
        data.cscores(small_scores)


def test_absent_or_damaged_scores(small_scores: Path) -> None:
    path = small_scores / data.CSCORES.path
    blob = bytearray(path.read_bytes())
    blob[80] ^= 255
    path.write_bytes(blob)
    with pytest.raises(DataError, match="cannot be read"):
        data.cscores(small_scores)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        data.cscores(small_scores)
    path.unlink()
    with pytest.raises(
        DataError, match=r"cifar10-cscores-orig-order.npz is not in the data folder.*download\(folder\)"
    ):
        data.cscores(small_scores)


def test_digits_fill_28_pixels() -> None:
    dataset = data.load("digits")
    assert len(dataset.x_train) + len(dataset.x_test) == 1797
    x = dataset.x_train
    assert 0 <= x.min() < x.max() <= 1
    assert x[:, :, :2].abs().max() == 0
    assert x[:, :, 2::3, 2::3][:, :, :8, :8].equal(x[:, :, 4::3, 4::3][:, :, :8, :8])


def test_an_unknown_set_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ValueError, match="digits, mnist"):
        data.load("nothing")
