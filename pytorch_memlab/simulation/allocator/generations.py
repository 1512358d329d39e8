"""The bytes in use of one allocator by the time of their allocation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter


class Generation:
    """The blocks that were allocated after one moment, until the next generation begins."""

    __slots__ = ("after", "size")

    def __init__(self, after: int) -> None:
        self.after = after  # number of the last block before it
        self.size = 0  # bytes of its blocks that are in use


_after = attrgetter("after")


class Generations:
    """Tells how much of the memory in use was allocated since a moment.

    A reader begins a generation and ends it. One that ends is merged into the one before, so there
    is one for each reader, and one more. An interrupt may come at any call: sizes are moved by
    statements that call nothing.
    """

    __slots__ = ("_all", "_blocks")

    def __init__(self) -> None:
        self._blocks = 0
        self._all = [Generation(0)]

    def allocated(self, size: int) -> int:
        """Count a block, and return its number."""
        self._all[-1].size += size
        self._blocks += 1
        return self._blocks

    def freed(self, number: int, size: int) -> None:
        """Count a block, by its number, as in use no more."""
        newest = self._all[-1]
        if number > newest.after:  # mostly
            newest.size -= size
        else:
            self._of(number).size -= size

    def recount(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Count the blocks in use, by their numbers and sizes, and no other."""
        for generation in self._all:
            generation.size = 0
        for number, size in blocks:
            self._of(number).size += size

    def _of(self, number: int) -> Generation:
        newest = self._all[-1]
        if number > newest.after:
            return newest
        return self._all[bisect_left(self._all, number, key=_after) - 1]

    def begin(self) -> Generation:
        """Begin a generation now."""
        generation = Generation(self._blocks)
        self._all.append(generation)
        return generation

    def begin_from_first_block(self) -> Generation:
        """Begin a generation that has every block, also those from before."""
        first, generation = self._all[0], Generation(0)
        generation.size, first.size = first.size, 0
        self._all.insert(1, generation)
        return generation

    def restart(self, generation: Generation) -> int:
        """Begin a generation again, and return the bytes in use that were allocated since."""
        generations = self._all
        if generation is generations[-1]:
            size = generation.size
            generations[-2].size += size
            generation.size = 0
            generation.after = self._blocks
            return size
        size = self.end(generation)
        generation.size, generation.after = 0, self._blocks
        generations.append(generation)
        return size

    def end(self, generation: Generation) -> int:
        """End a generation, and return the bytes in use that were allocated since it began."""
        generations = self._all
        if generation not in generations:  # an interrupt came after it had ended
            return 0
        place = generations.index(generation)
        size = sum([generation.size for generation in generations[place:]])
        before = generations[place - 1]
        before.size += generation.size
        del generations[place]
        return size
