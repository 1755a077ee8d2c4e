"""The plan of a kernel: a way for each layer, and tiles that fit a memory budget. A pure function of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer
from torchtangent.jacobians.together import is_bias_of
from torchtangent.kernel.contract import Formed, Forming, Locations, Product, Tokens
from torchtangent.kernel.panel import Part
from torchtangent.kernel.pixels import Pixels
from torchtangent.kernel.task import COPIES, Task
from torchtangent.kernel.way import ALIGN, Outputs, Way, aligned, is_plain_convolution
from torchtangent.notice import warn

_SHARE = 0.25  # share of the free memory for captures and blocks; the rest holds what is kept of the samples
_BATCH = {"cpu": 4096, "cuda": 8192}  # most samples captured at a time
_CAPTURED = {"cpu": 80 << 20, "cuda": 4 << 30}  # most bytes captured at a time: a CPU is slow to allocate and fill more
_FEW = {"cpu": 64, "cuda": 1024}  # samples captured at a time even if they exceed these bytes, as long as they fit
_ROOM = {"cpu": 32 << 20, "cuda": 1 << 40}  # most bytes for products: on a CPU they should stay in the cache
_MARGINS = (1.0, 1.1, 1.5)  # slowdowns accepted for a way that keeps less, tried in turn until all samples fit


@dataclass(frozen=True)
class Plan:
    """How a kernel is computed.

    Args:
        parts: Parameters that are contracted together, and how.
        edges: Where tiles start along each of the two sample axes, then where the last one ends.
        panel: How many tiles along an axis have their factors kept at a time.
        batch: Samples captured at a time.
        room: Bytes for the products of a block.
        lines: The printed table: parameter, way, multiplications, kept bytes per sample and predicted seconds.
    """

    parts: tuple[Part, ...]
    edges: tuple[tuple[int, ...], tuple[int, ...]]
    panel: int
    batch: int
    room: int
    lines: tuple[tuple[str, str, int, int, float], ...]

    @property
    def ways(self) -> dict[str, str]:
        """The name of each parameter's way."""
        return {name: way.name for part in self.parts for name, way in zip(part.names, part.ways, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """Everything in the plan that the rounding of the kernel depends on."""
        edges = {"edges1": list(self.edges[0]), "edges2": list(self.edges[1])}
        return {**edges, "ways": self.ways, "panel": self.panel, "batch": self.batch, "room": self.room}

    def follow(self, task: Task, stored: Mapping[str, Any]) -> Plan:
        """This plan, changed to follow the one of an earlier run.

        If fewer samples fit into memory now, fewer are kept at a time, which may change roundings.
        """
        edges = (tuple(stored["edges1"]), tuple(stored["edges2"]))
        longest = max(edges[0][1], edges[1][1])
        planned = make_plan(replace(task, ranks=1), stored["ways"])
        if edges[0][1] > planned.edges[0][1] or stored["batch"] > planned.batch:
            warn(
                f"The earlier run's plan has tiles of {edges[0][1]} samples, captured {stored['batch']} at a time, but "
                f"only {planned.edges[0][1]} and {planned.batch} fit into max_memory now. It is followed all the same, "
                "and takes more memory than that.",
            )
        fits = max(1, self.panel * self.edges[0][1] // longest)
        everything = self.panel >= max(map(len, self.edges)) - 1
        wanted = stored.get("panel", fits)
        panel = wanted if everything else min(fits, wanted)
        return replace(self, parts=planned.parts, edges=edges, panel=panel, batch=stored["batch"], room=stored["room"])

    def __str__(self) -> str:
        """A table: parameter, way, multiplications and kept bytes, predicted seconds."""
        n = len(self.edges[0]) - 1
        kept = min(self.edges[0][-1], self.panel * self.edges[0][1])
        head = (
            f"tiles of {self.edges[0][1]} × {self.edges[1][1]} samples, {n} × {len(self.edges[1]) - 1} of them; "
            f"{kept} samples kept at a time, captured {self.batch} at a time; "
            f"{self.room / 2**20:.0f} MiB for products; seconds are those of contractions, captures come on top"
        )
        rows = [f"{'parameter':40} {'way':10} {'multiplications':>15} {'bytes/sample':>13} {'seconds':>9}"]
        for name, way, products, held, seconds in self.lines:
            rows.append(f"{name:40} {way:10} {products:15.2e} {held:13.0f} {seconds:9.2g}")
        total = [sum(line[i] for line in self.lines) for i in (2, 3, 4)]  # type: ignore[misc]
        rows.append(f"{'all':40} {'':10} {total[0]:15.2e} {total[1]:13.0f} {total[2]:9.2g}")
        return "\n".join([head, *rows])


def make_plan(task: Task, ways: Mapping[str, str] | None = None) -> Plan:
    """The cheapest way for each layer, and the largest tiles and panels that fit.

    Args:
        task: What is to be done.
        ways: The way to take for some parameters, by name, instead of the cheapest.
    """
    need = 0
    while isinstance(plan := _plan_within(replace(task, budget=max(task.budget, need)), ways), int):
        need = max(plan, need + 1)  # a larger budget admits other ways, which may need even more
    if need:
        raise ValueError(
            f"max_memory of {task.budget:,} bytes is too small: one tile of one sample needs {need:,} "
            f"bytes, {task.result:,} of them for the kernel itself. "
            "Give more, or write the kernel to disk with out=..."
        )
    return plan


def _plan_within(task: Task, ways: Mapping[str, str] | None) -> Plan | int:
    """The plan, or, if the budget is too small for any, the bytes that it needs."""
    n, m = task.samples
    everything = n + (m or 0)
    for margin in _MARGINS:
        chosen = {name: _choose(task, layer, (ways or {}).get(name), margin) for name, layer in task.layers.items()}
        held, opened = _bytes(task, list(chosen.values()))
        if everything * held <= (1 - _SHARE) * (task.budget - task.result):
            break
    tile = task.outputs.batches * task.outputs.rows**2 * task.precision.total.itemsize
    tile *= 2 if task.result else 3  # the tile, a copy of it and, if it goes elsewhere, the previous one on its way
    if task.separate and not task.result:
        tile *= len(chosen)
    captured = task.captured + COPIES * 4 * sum(w.cost().held for w in chosen.values() if isinstance(w, Formed))
    free = task.budget - task.result
    most = max(n, m or 0)
    least = _least_work(captured, opened, tile)
    if free < least + 2 * held:
        return math.ceil(task.result + least + 2 * held)
    work = max(least, min(int(_SHARE * free), free - 2 * held))
    # The largest e with tile · e² + 2 · opened · e ≤ work / 2, exactly.
    largest = (math.isqrt(opened**2 + tile * (work // 2)) - opened) // tile
    edge = max(1, min(most, task.edge, largest))
    edges1, edges2 = _cut(task, edge)
    if everything * held + work <= free:
        panel = max(len(edges1), len(edges2)) - 1
    else:
        kept = int((free - work) / (2 * held))  # samples of a panel; it should have tiles for every rank
        fits = max(1, kept // task.ranks)
        if fits < max(edges1[1], edges2[1]):
            edge = fits
            edges1, edges2 = _cut(task, edge)
        panel = max(1, kept // max(edges1[1], edges2[1]))
    fast = max(_FEW[task.machine.kind], _CAPTURED[task.machine.kind] // max(1, captured))
    batch = max(1, min(_BATCH[task.machine.kind], fast, work // max(1, captured)))
    parts = _parts(task, chosen)
    return Plan(
        parts,
        (edges1, edges2),
        panel,
        batch,
        min(_ROOM[task.machine.kind], int(work / 2)),
        tuple(line for part in parts for line in _lines(task, part, edge)),
    )


def possible_ways(layer: LayerJacobian, outputs: Outputs) -> list[Way]:
    """All ways that apply to a layer."""
    ways: list[Way] = [Formed(outputs, layer.shape.numel())]
    if isinstance(layer, Outer):
        few = replace(layer, source=layer.source[:1], d=layer.d[:1])
        if layer.d.shape[3] == 1:
            return [*ways, Product(outputs, few)]
        ways += [Forming(outputs, few), Locations(outputs, few)]
        if is_plain_convolution(layer):
            ways.append(Pixels(outputs, few))
    elif isinstance(layer, Lookup):
        ways.append(Tokens(outputs, replace(layer, index=layer.index[:1], d=layer.d[:1])))
    return ways


def _choose(task: Task, layer: LayerJacobian, name: str | None, margin: float) -> Way:
    """The way that keeps least among those predicted to take at most `margin` times as long as the fastest.

    A way that does not fit into memory even for one sample is taken only if there is no other.
    """
    ways = possible_ways(layer, task.outputs)
    if name is not None:
        return next(way for way in ways if way.name == name)
    most = _SHARE * (task.budget - task.result) / (4 * task.precision.held.itemsize)
    ways = [way for way in ways if way.cost().opened + way.cost().least <= most] or ways
    seconds = {way: task.seconds(way, layer, task.edge) for way in ways}
    near = [way for way in ways if seconds[way] <= margin * min(seconds.values())]
    return min(near, key=lambda way: way.cost().held)


def _parts(task: Task, chosen: Mapping[str, Way]) -> tuple[Part, ...]:
    """Group parameters: a bias goes with its weight, all others whose J is kept form one part.

    If each parameter's kernel is wanted, every parameter is a part of its own.
    """
    if task.separate:
        return tuple(Part((name,), (way,)) for name, way in chosen.items())
    formed = {name: way for name, way in chosen.items() if isinstance(way, Formed)}
    scaled = task.precision.held == torch.float16  # then a is scaled, and a_n·a_m + 1 would add an unscaled 1
    parts = []
    for name, way in chosen.items():
        if isinstance(way, Product) and not scaled:
            biases = [bias for bias in formed if is_bias_of(task.layers[bias], task.layers[name])]
            way = replace(way, bias=bool(biases))
            parts.append(Part((name, *biases), (way, *(formed.pop(bias) for bias in biases))))
        elif not isinstance(way, Formed):
            parts.append(Part((name,), (way,)))
    if formed:
        parts.append(Part(tuple(formed), tuple(formed.values())))
    return tuple(parts)


def _lines(task: Task, part: Part, edge: int) -> Iterator[tuple[str, str, int, int, float]]:
    """The lines of the printed table; a bias that goes with its weight costs nothing."""
    for i, (name, way) in enumerate(zip(part.names, part.ways, strict=True)):
        if i and not isinstance(part.way, Formed):
            yield name, part.way.name, 0, 0, 0.0
        else:
            cost, seconds = way.cost(), task.seconds(way, task.layers[name], edge)
            yield name, way.name, cost.pair * task.pairs, cost.held * task.precision.held.itemsize, seconds


def _bytes(task: Task, ways: Sequence[Way]) -> tuple[int, int]:
    """Bytes per sample: those kept by all ways, and the most that one way needs while a block is computed."""
    item = task.precision.held.itemsize
    costs = [way.cost() for way in ways]
    opened = max(c.opened + c.least for c in costs)
    if task.precision.half and task.machine.kind == "cpu":
        opened += 2 * max(c.held for c in costs)  # products are computed from float32 copies
    return item * sum(c.held for c in costs), item * opened


def _least_work(captured: int, opened: int, tile: int) -> int:
    """The fewest bytes with which one sample can be captured and one pair contracted."""
    return max(captured, 2 * (tile + 2 * opened))


def _cut(task: Task, edge: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where tiles begin and end along both axes."""
    n, m = task.samples
    rows = _edges(n, edge)
    return rows, rows if m is None else _edges(m, edge)


def _edges(n: int, edge: int) -> tuple[int, ...]:
    """Where tiles begin and end along one axis: nearly equal sizes, aligned if there are several."""
    tiles = math.ceil(n / edge)
    step = math.ceil(n / tiles)
    if tiles > 1 and step > ALIGN:
        step = min(edge, aligned(step))
    return (*range(0, n, step), n)
