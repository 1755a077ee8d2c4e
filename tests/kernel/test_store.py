"""Kernels on disk: what goes in comes out, whatever is killed, damaged or full in between."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import CHILDREN, killed
from torch import Tensor

from torchtangent.kernel import hashing
from torchtangent.kernel.hashing import content_hash
from torchtangent.kernel.store import KernelStore, load_kernel
from torchtangent.kernel.tilefile import HEADER
from torchtangent.kernel.tiles import Tile
from torchtangent.notice import TangentWarning

SHAPES = [(7, 5), (5, 4, 3), (5, 4, 2, 2), (7, 7), (6, 6, 3), (6, 6, 3, 3)]


def kernel(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers; where the two batches are as large, K[n, m, c, e] = K[m, n, e, c] exactly."""
    K = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    if shape[0] == shape[1]:
        K = K + (K.permute(1, 0, 3, 2) if len(shape) == 4 else K.swapaxes(0, 1))
    return K


K = kernel(6, 6, 3, 3)


def edges(n: int) -> list[int]:
    return [*range(0, n, 2), n]


def begin(path: Path, K: Tensor, **changes: Any) -> KernelStore:
    """A store for K, in tiles of two samples."""
    arguments = {
        "identity": {"parameters": "1a", "inputs": ["2b", "3c"], "precision": "float64"},
        "shape": K.shape,
        "dtype": K.dtype,
        "plan": {"edges1": edges(len(K)), "edges2": edges(K.shape[1]), "ways": {"conv": "pixels"}},
        "symmetric": len(K) == K.shape[1],
    }
    return KernelStore.open(path, **(arguments | changes))


def fill(store: KernelStore, K: Tensor, pause: float = 0.0) -> np.memmap:
    """Write what is pending, and finish."""
    for tile in store.pending():
        time.sleep(pause)
        store.write(tile, K[tile.rows, tile.cols])
    return store.finish()


def assert_whole(path: Path, K: Tensor) -> None:
    """Finished, with the right bytes, and nothing else beside it."""
    loaded = np.load(path, mmap_mode="r")
    assert loaded.dtype == K.numpy().dtype
    assert loaded.shape == K.shape
    assert loaded.tobytes() == K.numpy().tobytes()
    assert load_kernel(path, verify=True).tobytes() == loaded.tobytes()
    assert json.loads(path.with_name("K.npy.json").read_text())["complete"] is True
    assert sorted(file.name for file in path.parent.iterdir()) == ["K.npy", "K.npy.json"]


def assert_unreadable(path: Path) -> None:
    """Neither the name nor the file that is being filled passes for an array."""
    for name in (path, path.with_name(path.name + ".partial")):
        with pytest.raises((FileNotFoundError, ValueError, EOFError)):
            np.load(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "K.npy"


@pytest.fixture(params=[64, hashing.STRIPE], ids=["small stripes", "one stripe"])
def _stripe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "STRIPE", request.param)


# What goes in comes out.


@pytest.mark.usefixtures("_stripe")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    K = kernel(*shape, dtype=dtype)
    store = begin(path, K)
    for count, tile in enumerate(store.pending()):
        assert tile.j <= tile.i or shape[0] != shape[1]
        assert len(store.pending()) == len(store.tiles) - count
        assert not store.complete
        assert_unreadable(path)
        store.write(tile, K[tile.rows, tile.cols])
    result = store.finish()
    assert store.complete
    assert store.pending() == []
    assert not result.flags.writeable
    assert_whole(path, K)
    again = begin(path, K)
    assert again.pending() == []
    assert again.finish().tobytes() == result.tobytes()


def test_tiles_of_any_layout_and_order(path: Path) -> None:
    """A column-major block and one that needs a gradient are stored by value; tiles in any order, some twice."""
    K = kernel(7, 7)
    store = begin(path, K)
    for tile in [*reversed(store.pending()), store.tiles[2]]:
        store.write(tile, K[tile.rows, tile.cols].T.contiguous().T.requires_grad_())
    store.finish()
    assert_whole(path, K)


def test_the_stored_plan_wins(path: Path) -> None:
    K = kernel(7, 5)
    first = begin(path, K)
    other = {"edges1": [0, 7], "edges2": [0, 5]}
    second = begin(path, K, plan=other)
    assert second.plan == first.plan != other
    assert second.tiles == first.tiles
    assert len({*second.tiles, *first.tiles}) == 12


# Killed.


def work(path: Path, K: Tensor, pause: float = 0.0, started: Connection | None = None) -> None:
    """Open and finish, in a child. A kill is no damage, so that a warning of damage is an error."""
    warnings.simplefilter("error")
    if started is not None:
        started.send(None)
    fill(begin(path, K), K, pause)


def work_until(call: int, path: Path, K: Tensor, log: Path) -> None:
    """Die by SIGKILL at the n-th system call that matters, in the middle of it if it writes."""
    calls = itertools.count()

    def deadly(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            changes = name != "open" or args[1] not in ("r", "rb", "r+b", os.O_RDONLY)
            if changes and next(calls) == call:
                if name in ("pwrite", "write"):
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return wrapped

    io.open = deadly("open", io.open)  # what Path.open calls
    for name in ("open", "pwrite", "write", "fsync", "replace", "unlink", "posix_fallocate"):
        setattr(os, name, deadly(name, getattr(os, name)))
    warnings.simplefilter("ignore", TangentWarning)
    store = begin(path, K)
    for tile in store.pending():
        store.write(tile, K[tile.rows, tile.cols])
        with log.open("a") as file:
            file.write(f"{tile.i}{tile.j} ")
    store.finish()


def run(target: Callable[..., None], *args: Any) -> int | None:
    """The exit code of a function in a child."""
    process = CHILDREN.Process(target=target, args=args)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("begun", ["new", "finished and damaged"])
def test_killed_at_every_system_call(tmp_path: Path, begun: str) -> None:
    """Wherever the kill falls, no tile is lost, nothing passes for whole that is not, and the next run completes it."""
    K = kernel(4, 4, 2, 2)
    template, log = tmp_path / "template", tmp_path / "log"
    template.mkdir()
    if begun != "new":
        fill(begin(template / "K.npy", K), K)
        flip(template / "K.npy", K, (3, 1, 0, 1))
    for call in itertools.count():
        log.write_text("" if begun == "new" else "00 11 ")
        path = tmp_path / str(call) / "K.npy"
        shutil.copytree(template, path.parent)
        code = run(work_until, call, path, K, log)
        assert code in (0, -signal.SIGKILL)
        if not path.exists():
            with pytest.raises((ValueError, FileNotFoundError), match=r"not complete|no kernel"):
                load_kernel(path)
        elif begun == "new":
            assert load_kernel(path, verify=True).tobytes() == K.numpy().tobytes()
        with warnings.catch_warnings():
            warnings.simplefilter("error" if begun == "new" else "ignore", TangentWarning)
            store = begin(path, K)
        assert not {f"{tile.i}{tile.j}" for tile in store.pending()} & set(log.read_text().split())
        fill(store, K)
        assert_whole(path, K)
        if code == 0:
            break
    assert call > 20


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty kills by the clock, several on the way to each kernel; no tile that was written is lost."""
    K = kernel(16, 16)
    kills = 0
    for attempt in itertools.count():
        path = tmp_path / str(attempt) / "K.npy"
        path.parent.mkdir()
        left = 10**6
        while killed(work, path, K, 0.001, within=0.08):
            kills += 1
            pending = len(begin(path, K).pending())
            assert pending <= left
            left = pending
        assert_whole(path, K)
        if kills >= 20:
            break


def write_share(path: Path, K: Tensor, rank: int) -> None:
    store = begin(path, K)
    for tile in store.tiles[rank::2]:
        store.write(tile, K[tile.rows, tile.cols])


def test_two_processes_write_at_once(path: Path) -> None:
    K = kernel(16, 16)
    store = begin(path, K)
    ranks = [CHILDREN.Process(target=write_share, args=(path, K, rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    assert store.pending() == []
    store.finish()
    assert_whole(path, K)


def test_a_torn_line_of_the_journal_costs_its_tile_only(path: Path) -> None:
    store = begin(path, K)
    for tile in store.tiles[:3]:
        store.write(tile, K[tile.rows, tile.cols])
    journal = path.with_name("K.npy.journal")
    journal.write_bytes(journal.read_bytes()[:-20])
    assert store.pending() == store.tiles[2:]
    store.write(store.tiles[4], K[store.tiles[4].rows, store.tiles[4].cols])
    assert store.pending() == [store.tiles[k] for k in (2, 3, 5)]
    fill(store, K)
    assert_whole(path, K)


# Damaged.


def flip(path: Path, K: Tensor, index: tuple[int, ...]) -> None:
    """Change a bit of an entry."""
    offset = HEADER + int(np.ravel_multi_index(index, K.shape)) * K.element_size()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.usefixtures("_stripe")
@pytest.mark.parametrize("index", [(4, 1, 2, 0), (1, 4, 0, 2), (5, 5, 0, 0)], ids=["below", "above", "diagonal"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_damaged_tile_is_found_and_is_the_only_one_to_be_done_again(
    path: Path, finished: bool, index: tuple[int, ...]
) -> None:
    store = begin(path, K)
    for tile in store.pending():
        store.write(tile, K[tile.rows, tile.cols])
    if finished:
        store.finish()
    flip(path if finished else path.with_name("K.npy.partial"), K, index)
    if finished:
        assert load_kernel(path).shape == K.shape
        with pytest.raises(ValueError, match="damaged on disk, in tiles"):
            load_kernel(path, verify=True)
    place = (max(index[:2]) // 2, min(index[:2]) // 2)
    with pytest.warns(TangentWarning, match=rf"1 of 6 tiles .* damaged .*\({place[0]}, {place[1]}\)"):
        again = begin(path, K)
    assert [tile.key for tile in again.pending()] == [place]
    assert not again.complete
    assert_unreadable(path)
    with pytest.raises(ValueError, match="1 of 6 tiles"):
        again.finish()
    assert [tile.key for tile in begin(path, K).pending()] == [place]  # and it is said once
    fill(again, K)
    assert_whole(path, K)


def test_a_file_that_was_cut_off(path: Path) -> None:
    fill(begin(path, K), K)
    size = path.stat().st_size
    os.truncate(path, size - K[:2].nbytes - K[0, :3].nbytes)  # two rows, and half of one
    with pytest.raises(ValueError, match="cut off or changed"):
        load_kernel(path)
    with pytest.warns(TangentWarning, match="4 of 6 tiles"):
        again = begin(path, K)
    assert path.with_name("K.npy.partial").stat().st_size == size
    fill(again, K)
    assert_whole(path, K)


def test_damage_after_a_finish_that_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch, full_at: Callable[..., None]
) -> None:
    """The unfinished file has its header then, and loses it again."""
    store = begin(path, K)
    for tile in store.pending():
        store.write(tile, K[tile.rows, tile.cols])
    full_at("fsync", 1)
    with pytest.raises(OSError, match="the manifest"):
        store.finish()
    monkeypatch.undo()
    flip(path.with_name("K.npy.partial"), K, (4, 1, 2, 0))
    with pytest.warns(TangentWarning, match="1 of 6 tiles"):
        again = begin(path, K)
    assert_unreadable(path)
    fill(again, K)
    assert_whole(path, K)


def test_a_damaged_header_costs_no_tile(path: Path) -> None:
    fill(begin(path, K), K)
    with path.open("r+b") as file:
        file.write(b"?")
    with pytest.raises(ValueError, match="cut off or changed"):
        load_kernel(path)
    again = begin(path, K)
    assert not again.complete
    assert again.pending() == []
    again.finish()
    assert_whole(path, K)


# Refused.


def test_another_kernel_is_refused_with_every_difference(path: Path) -> None:
    fill(begin(path, K), K)
    with pytest.raises(ValueError) as refusal:
        begin(path, K, identity={"parameters": "9z", "inputs": ("2b", "3c"), "reduce": "sum"}, dtype=torch.float32)
    message = str(refusal.value)
    for part in (
        "parameters '1a' → '9z'",
        "precision 'float64' → None",
        "reduce None → 'sum'",
        "dtype 'float64' → 'float32'",
        "delete",
    ):
        assert part in message
    assert "inputs" not in message
    with pytest.raises(ValueError, match=r"shape \(6, 6, 3, 3\) → \(6, 6\); symmetric True → False"):
        begin(path, kernel(6, 6), symmetric=False)
    assert_whole(path, K)


def test_of_two_long_texts_the_first_line_that_differs_is_named(path: Path) -> None:
    layers = [f"  ({i}): Linear(8, 8)" for i in range(100)]
    text = "\n".join(layers)
    fill(begin(path, K, identity={"architecture": text}), K)
    layers[50] = "  (50): ReLU()"
    for other, said in (
        ("\n".join(layers), "architecture '  (50): Linear(8, 8)' → '  (50): ReLU()'. Use"),
        (text + "\n", "architecture None → ''. Use"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)) as refusal:
            begin(path, K, identity={"architecture": other})
        assert len(str(refusal.value)) < 400


def test_paths_that_cannot_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="this is a folder"):
        begin(tmp_path, K)
    with pytest.raises(FileNotFoundError, match="folder for the kernel is missing"):
        begin(tmp_path / "absent" / "K.npy", K)
    plain = tmp_path / "plain.npy"
    np.save(plain, np.zeros((6, 6)))
    content = plain.read_bytes()
    for refused in (lambda: begin(plain, K), lambda: load_kernel(plain)):
        with pytest.raises(ValueError, match=r"no kernel of ours: 'plain.npy.json' is missing"):
            refused()
    assert plain.read_bytes() == content
    with pytest.raises(FileNotFoundError, match="no kernel here"):
        load_kernel(tmp_path / "K.npy")
    assert list(tmp_path.iterdir()) == [plain]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable as a kernel's manifest"),
        ("[1]", "not readable as a kernel's manifest"),
        ('{"a": 1}', "not readable as a kernel's manifest"),
        ('{"format": "torchtangent-kernel", "version": 2}', "not readable as a kernel's manifest"),
        ('{"format": "torchtangent-kernel", "version": 99}', "has version 99, this code reads 2"),
    ],
)
@pytest.mark.parametrize("data", [".partial", "", None])
def test_manifests_that_cannot_be_read(path: Path, text: str, message: str, data: str | None) -> None:
    """Refused, and left alone, whether or not there is data beside them."""
    manifest = path.with_name("K.npy.json")
    manifest.write_text(text)
    if data is not None:
        path.with_name("K.npy" + data).write_bytes(b"data")
    for refused in (lambda: begin(path, K), lambda: load_kernel(path)):
        with pytest.raises(ValueError, match=message):
            refused()
    assert manifest.read_text() == text


def test_files_that_do_not_belong_together(path: Path) -> None:
    store = begin(path, K)
    store.write(store.tiles[0], K[:2, :2])
    manifest = path.with_name("K.npy.json")
    content = manifest.read_text()
    manifest.unlink()
    with pytest.raises(ValueError, match="do not belong together"):
        begin(path, K)
    manifest.write_text(content)
    np.save(path, np.zeros(K.shape))
    for refused in (lambda: begin(path, K), lambda: load_kernel(path)):
        with pytest.raises(ValueError, match="do not belong together"):
            refused()
    path.unlink()
    assert len(begin(path, K).pending()) == 5


def test_a_kernel_without_data_is_begun_anew(path: Path) -> None:
    """Also if the journal of the old one is still there: killed in `finish`, the data deleted by hand."""
    journal = path.with_name("K.npy.journal")
    store = begin(path, K)
    for tile in store.pending():
        store.write(tile, K[tile.rows, tile.cols])
    lines = journal.read_bytes()
    store.finish()
    path.unlink()
    journal.write_bytes(lines)
    assert len(begin(path, K, identity={"parameters": "9z"}).pending()) == 6


def test_unfinished_kernels_are_not_loaded(path: Path) -> None:
    store = begin(path, K)
    store.write(store.tiles[0], K[:2, :2])
    with pytest.raises(ValueError, match="not complete: 5 of 6 tiles are missing"):
        load_kernel(path)
    with pytest.raises(ValueError, match=r"5 of 6 tiles .* missing, the first is \(1, 0\)"):
        store.finish()


def test_plans_and_blocks_that_do_not_fit(path: Path) -> None:
    for wrong in ({}, {"edges1": [0, 4], "edges2": [0, 6]}, {"edges1": [0, 6], "edges2": [0, 3, 3, 6]}):
        with pytest.raises(ValueError, match="must rise from 0 to the kernel's size 6"):
            begin(path, K, plan=wrong)
    with pytest.raises(ValueError, match="same edges1 and edges2"):
        begin(path, K, plan={"edges1": [0, 6], "edges2": [0, 3, 6]})
    with pytest.raises(ValueError, match="not as bfloat16"):
        begin(path, K, dtype=torch.bfloat16)
    assert list(path.parent.iterdir()) == []
    store = begin(path, K)
    tile = store.tiles[1]
    for wrong_tile in (Tile(0, 1, tile.cols, tile.rows), Tile(1, 0, slice(1, 3), tile.cols)):
        with pytest.raises(ValueError, match="not in the store's plan"):
            store.write(wrong_tile, K[:2, :2])
    for block in (K[:1, :2], K[:2, :2].float(), K[:2, :2, 0]):
        with pytest.raises(ValueError, match=r"Tile \(1, 0\) .* is \(2, 2, 3, 3\) of float64, the block"):
            store.write(tile, block)
    with pytest.raises(ValueError, match="not symmetric"):
        store.write(store.tiles[0], K[2:4, :2])
    assert store.pending() == store.tiles
    fill(store, K)
    with pytest.raises(ValueError, match="is finished"):
        store.write(tile, K[tile.rows, tile.cols])


# Full.


@pytest.fixture
def full_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes a system call fail with 'no space left' from its n-th use on."""

    def patch(name: str, use: int = 0, error: int = errno.ENOSPC) -> None:
        real, uses = getattr(os, name), itertools.count()

        def wrapped(*args: Any) -> Any:
            if next(uses) >= use:
                raise OSError(error, os.strerror(error))
            return real(*args)

        monkeypatch.setattr(os, name, wrapped)

    return patch


def test_no_room_for_the_kernel(path: Path, monkeypatch: pytest.MonkeyPatch, full_at: Callable[..., None]) -> None:
    """Found before anything is computed; nothing is left behind."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 90, 10))
        with pytest.raises(OSError, match=r"the kernel needs 6,688 bytes and 10 are free.*K.npy") as full:
            begin(path, K)
    assert full.value.errno == errno.ENOSPC
    full_at("posix_fallocate")
    with pytest.raises(OSError, match=r"the kernel needs 6,688 bytes and [\d,]+ are free"):
        begin(path, K)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("name", "use"), [("pwrite", 0), ("pwrite", 3), ("fsync", 0), ("write", 0)])
def test_the_disk_fills_up_while_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch, full_at: Callable[..., None], name: str, use: int, error: int
) -> None:
    """A tile that did not reach the disk is pending, those before it are kept, and one can go on."""
    store = begin(path, K)
    store.write(store.tiles[0], K[:2, :2])
    full_at(name, use, error)
    with pytest.raises(OSError, match=r"tile \(1, 0\) needs 288 bytes and [\d,]+ are free") as full:
        store.write(store.tiles[1], K[2:4, :2])
    assert full.value.errno == error
    assert_unreadable(path)
    monkeypatch.undo()
    again = begin(path, K)
    assert again.pending() == store.tiles[1:]
    fill(again, K)
    assert_whole(path, K)


@pytest.mark.parametrize(("name", "use"), [("pwrite", 0), ("fsync", 0), ("fsync", 1)])
def test_the_disk_is_full_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, full_at: Callable[..., None], name: str, use: int
) -> None:
    store = begin(path, K)
    for tile in store.pending():
        store.write(tile, K[tile.rows, tile.cols])
    full_at(name, use)
    with pytest.raises(OSError, match="the manifest needs 4,096 bytes"):
        store.finish()
    assert not store.complete
    monkeypatch.undo()
    begin(path, K).finish()
    assert_whole(path, K)


def test_file_systems_that_cannot_reserve(path: Path, full_at: Callable[..., None]) -> None:
    full_at("posix_fallocate", error=errno.EOPNOTSUPP)
    fill(begin(path, K), K)
    assert_whole(path, K)


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write, and read, less than was asked for."""
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:1000], offset))
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: read(file, [buffers[0][:7]], offset))
    K = kernel(4, 700)
    fill(begin(path, K, plan={"edges1": [0, 2, 4], "edges2": [0, 699, 700]}), K)
    assert_whole(path, K)


def test_a_line_that_is_cut_short_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that only half fits says so by its length; the tile does not count as written."""
    store = begin(path, K)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match=r"The disk is full: tile \(0, 0\)"):
        store.write(store.tiles[0], K[:2, :2])
    monkeypatch.undo()
    assert store.pending() == store.tiles
    fill(store, K)
    assert_whole(path, K)


# What it is of.


@pytest.mark.usefixtures("_stripe")
def test_content_hash() -> None:
    """Every part of the content counts, and the layout in memory does not."""
    x = torch.randn(40, 3, dtype=torch.float64)
    same = content_hash({"x": x, "step": torch.tensor(3)})
    assert same == content_hash(iter([("x", x.T.contiguous().T.requires_grad_()), ("step", torch.tensor(3))]))
    changed = x.clone()
    changed[-1, -1] = torch.nextafter(changed[-1, -1], torch.tensor(9.0, dtype=torch.float64))
    others: list[dict[str, Tensor]] = [
        {"x": changed, "step": torch.tensor(3)},
        {"x": x.reshape(3, 40), "step": torch.tensor(3)},
        {"x": x.view(torch.int64), "step": torch.tensor(3)},
        {"y": x, "step": torch.tensor(3)},
        {"x": x, "step": torch.tensor(4)},
        {"x": x},
        {},
        {"x": x[:0]},
    ]
    assert len({same, *map(content_hash, others)}) == len(others) + 1
    half = torch.ones(2, 3, dtype=torch.bfloat16)
    assert content_hash({"x": half}) != content_hash({"x": half.half()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_blocks_and_hashes_from_a_gpu(path: Path) -> None:
    fill(begin(path, K), K.cuda())
    assert_whole(path, K)
    assert content_hash({"K": K}) == content_hash({"K": K.cuda()})
