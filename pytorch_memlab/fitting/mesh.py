"""The mesh of a job's ranks, as ``init_device_mesh`` numbers them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import UsageError

_STAGES: Final = frozenset({"pp", "pipe", "pipeline", "stage", "stages", "rank"})
"""Names of dimensions along which every rank runs."""

_EXPERTS: Final = ("ep", "expert", "experts")
"""Names of a dimension whose ranks share the experts of a layer."""

MOST_BESIDE: Final = 64
"""Ranks that run at the same time."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Dimensions by name, the outermost first: the last one numbers neighbours."""

    sizes: Mapping[str, int]

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def stages(self) -> tuple[str, ...]:
        """Dimensions along which ranks differ, such as the stages of a pipeline."""
        return tuple(name for name in self.sizes if name in _STAGES)

    @property
    def replicas(self) -> tuple[str, ...]:
        """The other dimensions of several ranks, which differ by uneven shards alone."""
        return tuple(name for name, size in self.sizes.items() if name not in _STAGES and size > 1)

    @property
    def experts(self) -> tuple[str, ...]:
        """The dimension whose ranks share experts, if it is named."""
        return tuple(name for name in _EXPERTS if self.sizes.get(name, 1) > 1)

    def rank(self, place: Mapping[str, int]) -> int:
        """The rank at a place; a dimension that is not named is at 0.

        >>> Mesh({"pp": 4, "dp": 8, "tp": 2}).rank({"pp": 1, "tp": 1})
        17
        """
        rank = 0
        for name, size in self.sizes.items():
            rank = rank * size + place.get(name, 0)
        return rank

    def place(self, rank: int) -> dict[str, int]:
        """The place of a rank.

        >>> Mesh({"pp": 4, "dp": 8, "tp": 2}).place(17)
        {'pp': 1, 'dp': 0, 'tp': 1}
        """
        place: dict[str, int] = {}
        for name, size in reversed(tuple(self.sizes.items())):
            rank, place[name] = divmod(rank, size)
        return {name: place[name] for name in self.sizes}

    def line(self, place: Mapping[str, int]) -> list[int]:
        """The ranks of all stages at one place of the other dimensions."""
        ranges = [range(self.sizes[name]) for name in self.stages]
        return [
            self.rank({**place, **dict(zip(self.stages, stage, strict=True))})
            for stage in itertools.product(*ranges)
        ]

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.sizes.items())


_DIMENSION: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d*)\s*")


def read_mesh(text: str | None, world_size: str | None, option: str = "--ranks") -> Mesh:
    """The mesh of ``--mesh``, or of ``WORLD_SIZE`` ranks, each of which may differ."""
    if text is None:
        if not world_size or not world_size.isdecimal() or int(world_size) < 1:
            raise UsageError(
                f"{option} needs the number of ranks: give --mesh, such as --mesh pp=4,dp=2 for"
                " init_device_mesh('cuda', (4, 2)), or set WORLD_SIZE"
            )
        return checked(Mesh({"rank": int(world_size)}))
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = _DIMENSION.fullmatch(part)
        if match is None:
            raise UsageError(
                f"--mesh has names and sizes, such as pp=4,dp=8,tp=2, and not {part.strip()!r}"
            )
        if match[1] in sizes:
            raise UsageError(f"--mesh has {match[1]} twice")
        sizes[match[1]] = int(match[2])
    mesh = Mesh(sizes)
    if world_size and world_size.isdecimal() and int(world_size) != mesh.world_size:
        raise UsageError(
            f"--mesh {text} has {mesh.world_size} ranks, and WORLD_SIZE is {world_size}"
        )
    return checked(mesh)


def checked(mesh: Mesh) -> Mesh:
    count = len(mesh.line({}))
    if count > MOST_BESIDE:
        raise UsageError(
            f"{count} ranks would run at the same time, {MOST_BESIDE} is the most: name the"
            " dimensions of the ranks (--mesh pp=4,dp=64), of which those that are alike run once"
        )
    return mesh


def read_ranks(text: str, mesh: Mesh) -> tuple[int, ...] | None:
    """The ranks of ``--ranks``; None for all that differ."""
    if text == "all":
        return None
    ranks: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise UsageError(
                f"--ranks is all, or numbers such as 0,3,8-11, and not {part.strip()!r}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < mesh.world_size:
            raise UsageError(
                f"--ranks {part.strip()}: the ranks are 0 to {mesh.world_size - 1} ({mesh})"
            )
        ranks.update(dict.fromkeys(range(first, last + 1)))
    if len(ranks) > MOST_BESIDE:
        raise UsageError(f"{len(ranks)} ranks are too many at a time, {MOST_BESIDE} is the most")
    return tuple(sorted(ranks))


def span(names: Iterable[tuple[str, int, int]]) -> str:
    """Ranges of dimensions.

    >>> span([("pp", 0, 0), ("dp", 1, 7)])
    'pp 0, dp 1-7'
    """
    return ", ".join(f"{n} {a}" if a == b else f"{n} {a}-{b}" for n, a, b in names)
