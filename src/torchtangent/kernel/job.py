"""The computation of one kernel: samples are captured in panels, and contracted tile by tile."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import Inputs, Output
from torchtangent.jacobians.select import Params
from torchtangent.kernel.budget import default_budget, halve
from torchtangent.kernel.distributed import Ranks
from torchtangent.kernel.identity import check_same, identity, probe
from torchtangent.kernel.panel import Panel
from torchtangent.kernel.plan import make_plan
from torchtangent.kernel.precision import find_precision, for_captures, for_contractions
from torchtangent.kernel.samples import Samples, check_alike
from torchtangent.kernel.store import KernelStore, load_kernel
from torchtangent.kernel.task import Machine, Task
from torchtangent.kernel.tiles import Tile, tiles_of
from torchtangent.kernel.way import REDUCTIONS, Block, DifferentUse, Outputs
from torchtangent.kernel.writer import Writer
from torchtangent.notice import Overflow, check_choice
from torchtangent.operators import memory
from torchtangent.operators.symmetric import reflect
from torchtangent.progress import Progress, Report

_CAPTURE = 2.0  # peak bytes of a capture, as a multiple of what its trace holds

Held = tuple[Panel, int]  # a panel, and the index of its first sample
Where = Callable[[Tile], list[Block]]  # the zeros that a tile is added to


class Job:
    """One kernel to compute: the model captured, the inputs checked, the plan made."""

    def __init__(
        self,
        model: nn.Module,
        x1: Any,
        x2: Any = None,
        *,
        output: Output = None,
        reduce: str = "full",
        params: Params = None,
        per_layer: bool = False,
        precision: str | torch.dtype | None = None,
        max_memory: int | None = None,
        stored: bool = False,
    ) -> None:
        check_choice("reduce", reduce, REDUCTIONS)
        self.capture = Capture(model, params, output)
        self.device, self.per_layer = self.capture.device, per_layer
        self.precision = find_precision(precision, self.capture.dtype)
        self.x1 = Samples(x1, self.device)
        self.x2 = self.x1 if x2 is None else Samples(x2, self.device)
        self.symmetric = x2 is None
        if not self.symmetric:
            check_alike(self.x1, self.x2)
        self.reduce = reduce
        self.ranks = Ranks.current() if stored else Ranks()  # in memory, every rank computes a whole kernel of its own
        with self.x1.explaining(), for_captures(self.precision, self.device):
            layers = self.capture.trace(self.x1.few()).layers(summed=reduce == "sum")
        C = self.capture.output_shape.numel()
        self.outputs = Outputs(reduce, 1 if reduce == "sum" else C)
        self.budget = default_budget(self.device) if max_memory is None else max_memory
        self.task = self._task(layers, stored)
        self.plan = make_plan(self.task)

    @property
    def shape(self) -> tuple[int, ...]:
        """The kernel's shape."""
        C = self.outputs.outputs
        return (len(self.x1), len(self.x2), *{"full": (C, C), "diag": (C,)}.get(self.reduce, ()))

    def run(self, progress: bool | Report | None) -> Any:
        """Compute the kernel in memory."""
        place = self.device if self.task.result else torch.device("cpu")
        K = self._zeros((len(self.x1), len(self.x2)), place)
        tiles = tiles_of(*self.plan.edges, self.symmetric)

        def where(tile: Tile) -> list[Block]:
            return [k[:, tile.rows, :, tile.cols] for k in K] if place == self.device else self._zeros(tile.shape)

        with Progress(sum(map(self._work, tiles)), progress, "kernel", "pairs") as bar:
            for tile, blocks in self.blocks(tiles, where):
                if place != self.device:
                    for k, block in zip(K, blocks, strict=True):
                        k[:, tile.rows, :, tile.cols] = block.to(place)
                bar.add(self._work(tile))
        kernels = [self._finish(k, self.symmetric) for k in K]
        self._check_finite(K)
        if not self.per_layer:
            return kernels[0]
        names = [part.names[0] for part in self.plan.parts]
        order = list(self.capture.params)
        return dict(sorted(zip(names, kernels, strict=True), key=lambda item: order.index(item[0])))

    def run_to(self, path: str | os.PathLike[str], progress: bool | Report | None) -> np.memmap:
        """Compute, with all ranks, the tiles that are not on disk yet; then return the kernel, mapped into memory."""
        now = probe(self.capture, [self.x1] if self.symmetric else [self.x1, self.x2])
        open_store = partial(
            KernelStore.open,
            path,
            identity(self.capture, self.x1, self.x2, self.precision.name, self.reduce),
            self.shape,
            self.precision.total,
            {**self.plan.to_json(), "probe": now},
            self.symmetric,
        )
        store = open_store() if self.ranks.rank == 0 else None
        self.ranks.wait()
        store = store or open_store()
        check_same(store.plan["probe"], now, self.capture.rounding(self.capture.outputs(self.x1.few())))
        self.plan = self.plan.follow(self.task, store.plan)
        self.plan = replace(self.plan, panel=self.ranks.from_first(self.plan.panel))  # all ranks capture together
        pending = self.ranks.from_first(store.pending())
        show = progress if self.ranks.rank == 0 else False
        work = sum(map(self._work, pending))
        with Progress(work, show, "kernel", "pairs") as bar, Writer(store.write) as writer:
            for tile, (block,) in self.blocks(pending, lambda tile: self._zeros(tile.shape)):
                self._check_finite([block])
                writer.write(tile, self._finish(block, self.symmetric and tile.i == tile.j))
                bar.add(min(self._work(tile) * self.ranks.size, work - bar.done))  # the other ranks are about as far
            if bar.done < work:
                bar.add(work - bar.done)
        self.ranks.wait()
        if self.ranks.rank == 0:
            store.finish()
        self.ranks.wait()
        return load_kernel(path)

    def blocks(self, tiles: Sequence[Tile], where: Where) -> Iterator[tuple[Tile, list[Block]]]:
        """Compute this rank's share of the tiles, and yield each with its blocks: one, or one for each part's kernel.

        The plan is made for the first samples. If a later batch uses a parameter in another form (because a layer is
        skipped, say), the J of that parameter is formed from then on.

        Args:
            tiles: The tiles to be computed by all ranks together.
            where: Returns the zeros that a tile is added to.
        """
        left = list(tiles)
        while left:
            try:
                yield from self._sweep(left, where)
            except DifferentUse as error:
                plan = make_plan(self.task, {**self.plan.ways, **dict.fromkeys(error.args, "formed")})
                self.plan = plan.follow(self.task, {**self.plan.to_json(), "ways": plan.ways})

    def _sweep(self, tiles: list[Tile], where: Where) -> Iterator[tuple[Tile, list[Block]]]:
        """The blocks of this rank's share, by pairs of panels; tiles that all ranks have computed leave the list."""
        for i, rows in enumerate(self._panels(self.plan.edges[0])):
            own = [t for t in tiles if rows[0] <= t.rows.start < rows[1]]
            left = self._panel(self.x1, *rows) if own else None
            for j, cols in enumerate(self._panels(self.plan.edges[1])):
                wanted = [t for t in own if cols[0] <= t.cols.start < cols[1]]
                if left is None or not wanted:
                    continue
                right = left if self.symmetric and i == j else self._panel(self.x2, *cols)
                for tile in self.ranks.mine(wanted, self._work):
                    yield tile, self._tile(tile, (left, rows[0]), (right, cols[0]), where(tile))
                tiles[:] = [tile for tile in tiles if tile not in wanted]
                del right  # before the next one is captured

    def _work(self, tile: Tile) -> int:
        """The pairs of samples in a tile; on the diagonal of a symmetric kernel, those with m ≤ n."""
        n, _ = tile.shape
        return n * (n + 1) // 2 if self.symmetric and tile.i == tile.j else tile.pairs

    def _panels(self, edges: tuple[int, ...]) -> list[tuple[int, int]]:
        starts = edges[:-1][:: self.plan.panel]
        return list(zip(starts, (*starts[1:], edges[-1]), strict=True))

    def _panel(self, x: Samples, start: int, end: int) -> Panel:
        """Capture samples start … end − 1 and keep what the plan needs of them."""
        panel = Panel(self.plan.parts, self.precision, end - start, self.ranks)
        i, stop = start + panel.own.start, start + panel.own.stop
        changed: tuple[str, ...] = ()
        batch = min(self.plan.batch, stop - i)
        while i < stop and not changed:
            try:
                self._add(panel, x.batch(i, min(i + batch, stop)))
                i += batch
            except DifferentUse as error:
                changed = error.args
            except RuntimeError as error:
                batch = halve(error, batch, "samples captured at a time")
        if different := sorted({name for names in self.ranks.gather(changed) for name in names}):
            raise DifferentUse(*different)
        panel.share()
        return panel

    def _add(self, panel: Panel, x: Inputs) -> None:
        """Capture a batch and keep what is needed; the rest of it is freed on return, also if memory ran out."""
        with for_captures(self.precision, self.device):
            layers = self.capture.trace(x).layers(summed=self.reduce == "sum")
        with for_contractions(self.precision):
            panel.append(layers)

    def _tile(self, tile: Tile, left: Held, right: Held, blocks: list[Block]) -> list[Block]:
        """Fill the blocks of a tile; in two halves if memory runs out."""
        half = 0
        try:
            self._contract(tile, left, right, blocks)
        except RuntimeError as error:
            half = halve(error, tile.shape[0], "rows of a tile")
        if half:  # not inside `except`: the error keeps alive the tensors that filled the memory
            middle = tile.rows.start + half
            for block in blocks:
                block.zero_()
            top, bottom = slice(tile.rows.start, middle), slice(middle, tile.rows.stop)
            self._tile(replace(tile, rows=top), left, right, [b[:, :half] for b in blocks])
            self._tile(replace(tile, rows=bottom), left, right, [b[:, half:] for b in blocks])
        return blocks

    def _contract(self, tile: Tile, left: Held, right: Held, blocks: list[Block]) -> None:
        rows = slice(tile.rows.start - left[1], tile.rows.stop - left[1])
        cols = slice(tile.cols.start - right[1], tile.cols.stop - right[1])
        with for_contractions(self.precision):
            for i, part in enumerate(self.plan.parts):
                mine = left[0].tile(i, rows)
                other = mine if left[0] is right[0] and rows == cols else right[0].tile(i, cols)
                unit = left[0].unit(i) * right[0].unit(i)
                if unit > torch.finfo(self.precision.total).max:
                    unit = math.inf  # which torch takes as a factor, and the kernel is refused
                part.way.add(blocks[i % len(blocks)], mine, other, unit, self.plan.room)

    def _zeros(self, shape: tuple[int, int], device: torch.device | None = None) -> list[Block]:
        """Zeros for a block of the kernel, or of each part's kernel."""
        B, R = self.outputs.batches, self.outputs.rows
        many = len(self.plan.parts) if self.per_layer else 1
        size = (B, shape[0], R, shape[1], R)
        return [memory.zeros(size, self.precision.total, device or self.device) for _ in range(many)]

    def _finish(self, block: Block, symmetric: bool) -> Tensor:
        """A view with the axes of the kernel; on the diagonal, the lower half is first copied to the upper one."""
        if symmetric:
            for one in block:
                reflect(one.view(one.shape[0] * one.shape[1], -1))
        if self.reduce == "full":
            return block[0].permute(0, 2, 1, 3)
        return block[:, :, 0, :, 0].permute(1, 2, 0) if self.reduce == "diag" else block[0, :, 0, :, 0]

    def _check_finite(self, blocks: Sequence[Block]) -> None:
        """Raise `Overflow` on NaN or infinity: factors are finite, but sums of their products may exceed the dtype."""
        if not all(bool(torch.isfinite(k.sum())) or bool(torch.isfinite(k).all()) for k in blocks):
            raise Overflow(
                "The kernel has NaN or infinity: products of gradients leave the range of "
                f"{self.precision.total}. Scale the inputs or the outputs, or pass model.double()."
            )

    def _task(self, layers: dict[str, LayerJacobian], stored: bool) -> Task:
        fixed, each = self.capture.bytes_per_sample
        captured = int(_CAPTURE * (fixed + self.outputs.outputs * each))
        many = len(layers) if self.per_layer else 1
        size = many * int(np.prod(self.shape)) * self.precision.total.itemsize
        fits = not stored and (self.device.type == "cpu" or size <= self.budget / 2)
        n2 = None if self.symmetric else len(self.x2)
        return Task(
            layers=layers,
            outputs=self.outputs,
            samples=(len(self.x1), n2),
            precision=self.precision,
            machine=Machine.of(self.device),
            captured=captured,
            result=size if fits else 0,
            budget=self.budget,
            separate=self.per_layer,
            ranks=self.ranks.size,
        )
