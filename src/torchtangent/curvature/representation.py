"""The interface of representations of a Fisher matrix, and how several are mixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.select import matches
from torchtangent.notice import listed
from torchtangent.operators import Operator, Place, Segment, Space

Layers = Mapping[str, LayerJacobian]
Blocks = list[tuple[Place, Operator]]


class Accumulator(ABC):
    """Sums over the data for some of the parameters; normalization is in `finish` and nowhere else."""

    sweeps = 1  # how many passes over the data it needs

    @abstractmethod
    def update(self, layers: Layers) -> None:
        """Add the layer Jacobians of some samples."""

    def again(self, layers: Layers) -> None:
        """Add those of further cotangents of the same samples. What depends on samples alone is not added again."""
        self.update(layers)

    def end_sweep(self) -> None:  # noqa: B027 (most need only one)
        """Called after each pass over the data."""

    @abstractmethod
    def finish(self, n: int) -> Blocks:
        """The operator of each block, as a mean over the n samples."""


@dataclass(frozen=True)
class Scope:
    """The parameters that a representation is to cover.

    Args:
        space: The space of all parameters.
        names: The parameters to cover.
        tied: Parameters that several modules share.
    """

    space: Space
    names: Sequence[str]
    tied: Set[str]

    def modules(self) -> dict[str, list[str]]:
        """The names, grouped by the module that holds them; a tied parameter is a group of its own."""
        groups: dict[str, list[str]] = {}
        for name in self.names:
            groups.setdefault(name if name in self.tied else module_of(name), []).append(name)
        return groups

    def part(self, names: Sequence[str]) -> Scope:
        """The same scope with only some of the names."""
        return replace(self, names=names)


class Representation(ABC):
    """How a Fisher matrix is stored. An instance carries options; the class itself stands for the defaults."""

    @abstractmethod
    def start(self, scope: Scope) -> Accumulator:
        """An empty accumulator for the parameters in scope."""


Choice = type[Representation] | Representation | Mapping[str, type[Representation] | Representation]


def resolve(choice: Choice) -> Representation:
    """The representation given by a class, an instance or a mapping from name patterns."""
    if isinstance(choice, Mapping):
        return Mixed({pattern: resolve(r) for pattern, r in choice.items()})
    if isinstance(choice, type) and issubclass(choice, Representation):
        return choice()
    if isinstance(choice, Representation):
        return choice
    said = repr(choice) if isinstance(choice, str) else f"a {type(choice).__name__}"
    raise TypeError(f"Expected a representation such as tt.KFAC or tt.KFAC(...) after the data, got {said}.")


@dataclass(frozen=True)
class Mixed(Representation):
    """Different representations for different modules; the first pattern that matches applies.

    The name of a module stands for all that is in it, as in `params=`.
    """

    parts: Mapping[str, Representation]

    def start(self, scope: Scope) -> Accumulator:
        chosen: dict[str, list[str]] = {pattern: [] for pattern in self.parts}
        for name in scope.names:
            for pattern in self.parts:
                if fnmatchcase(module_of(name), pattern) or matches(name, pattern, scope.names):
                    chosen[pattern].append(name)
                    break
            else:
                raise ValueError(
                    f"No representation is given for parameter '{name}': none of the patterns "
                    f"{', '.join(map(repr, self.parts))} matches module '{module_of(name)}'. Add '*' for the rest."
                )
        for pattern, own in chosen.items():
            if not own:
                names = listed(list(dict.fromkeys(map(module_of, scope.names))))
                raise ValueError(
                    f"The pattern {pattern!r} matches no parameter that an earlier one has not taken. Modules: {names}."
                )
        return Side([self.parts[p].start(scope.part(own)) for p, own in chosen.items()])


class Side(Accumulator):
    """Accumulators of disjoint sets of parameters, side by side."""

    def __init__(self, parts: Sequence[Accumulator]) -> None:
        self.parts = parts
        self.sweeps = max(part.sweeps for part in parts)
        self._sweep = 0

    def update(self, layers: Layers) -> None:
        for part in self._unfinished:
            part.update(layers)

    def again(self, layers: Layers) -> None:
        for part in self._unfinished:
            part.again(layers)

    def end_sweep(self) -> None:
        for part in self._unfinished:
            part.end_sweep()
        self._sweep += 1

    def finish(self, n: int) -> Blocks:
        return [block for part in self.parts for block in part.finish(n)]

    @property
    def _unfinished(self) -> list[Accumulator]:
        """Those that need this pass over the data."""
        return [part for part in self.parts if self._sweep < part.sweeps]


def module_of(name: str) -> str:
    """The path of the module that holds a parameter."""
    return name.rpartition(".")[0]


def in_a_row(space: Space, names: Sequence[str]) -> Place:
    """The place of some parameters, each flattened, one after the other."""
    sizes = {name: shape.numel() for name, shape in zip(space.names, space.shapes, strict=True)}
    return Place(tuple(Segment(space.offsets[name], (1, sizes[name]), (0, 1)) for name in names))
