"""Names whose memory grows with every iteration of a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeAlias, TypeVar

from .._common.text.displayed import Displayed
from .._common.text.prose_size import prose_size
from ..tensors.lines import SourceLine
from ..tensors.live_objects import live_objects
from .memory_snapshot import MemorySnapshot, TensorRow, sizes_by
from .names import names_of_variables

T = TypeVar("T")

_NAMED = 3

_INDEX = re.compile(r"""\[(?:\d+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|<\w+>)\]""")
_ONE_OF_MANY = re.compile(r"#\d+(?=\.|$)")
_NUMBER = re.compile(r"^([A-Z]\w*?)\d+(?![^.])")
_ALL = "all tensors"

_Kind: TypeAlias = tuple[str, str]
"""A device, as text, and a kind of name."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Tensors of one kind of name that take more memory after every iteration."""

    device: str  # as text
    # with ``[*]`` for the indices of containers, ``Tensor*`` for tensors without a name; what
    # autograd saved for a variable is ``graph of`` it
    name: str
    sizes: tuple[int, ...]  # bytes at the end of each iteration
    # that allocated the newest of them, or made the node that saved it, where it is known
    line: SourceLine | None = None

    @property
    def per_iteration(self) -> float:
        """Bytes that one iteration adds, on average."""
        return (self.sizes[-1] - self.sizes[0]) / (len(self.sizes) - 1)


class LeakWatch(Displayed, Generic[T]):
    """A loop that looks at the memory after each iteration. ``str`` says what it found.

    Args:
        items: what to iterate over.
        look: takes a snapshot.

    Attributes:
        fewest: iterations that are needed to tell a leak.
    """

    fewest = 3

    def __init__(self, items: Iterable[T], look: Callable[[], MemorySnapshot]) -> None:
        self._items = items
        self._look = look
        self._iterations = 0
        self._kinds: dict[_Kind, tuple[int, ...]] = {}  # that grew with every iteration so far
        self._devices: dict[_Kind, tuple[int, ...]] = {}
        self._lines: dict[_Kind, SourceLine] = {}

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            yield item
            del item
            self.look()

    def look(self) -> None:
        """Look at the memory: what the end of each iteration calls.

        Once no name and no device has grown with every iteration, none ever will have: then this
        counts the iteration, and looks at nothing.
        """
        self._iterations += 1
        if self._iterations > 1 and not self._kinds and not self._devices:
            return
        snapshot = self._look()
        kinds = sizes_by(_kind_of_row, snapshot)
        self._kinds = self._that_grew(self._kinds, kinds)
        self._devices = self._that_grew(self._devices, _of_devices(kinds))
        # Of a graph, the line that saved most.
        self._lines = {
            key: row.line
            for row in sorted(snapshot.rows, key=lambda row: row.nbytes if row.holder else 0)
            if row.line and row.nbytes
            if (key := (str(row.device), _kind_of_row(row))) in self._kinds
        }

    def _that_grew(
        self, before: Mapping[_Kind, tuple[int, ...]], now: Mapping[_Kind, int]
    ) -> dict[_Kind, tuple[int, ...]]:
        """The sizes after each iteration of what has grown with all of them, this one included."""
        if self._iterations == 1:
            return {key: (size,) for key, size in now.items()}
        # What the second iteration has first took nothing before: later it is too late to come.
        first = (0,) if self._iterations == 2 else ()
        return {
            key: (*sizes, size)
            for key, size in now.items()
            if (sizes := before.get(key, first)) and size > sizes[-1]
        }

    @property
    def iterations(self) -> int:
        """The number of iterations so far."""
        return self._iterations

    @property
    def growing(self) -> tuple[Growth, ...]:
        """Names that grew with every iteration, the fastest first; empty before three are done.

        The first iteration is where the others start from: it makes gradients and optimizer state.
        Where no name grew but the memory of a device did, as each iteration makes new names, there
        is one entry ``all tensors`` for the device.
        """
        if self._iterations < self.fewest:
            return ()
        growing = [Growth(*key, sizes, self._lines.get(key)) for key, sizes in self._kinds.items()]
        growing = growing or [Growth(*key, sizes) for key, sizes in self._devices.items()]
        return tuple(sorted(growing, key=lambda growth: -growth.per_iteration))

    def __repr__(self) -> str:
        """The names that grew, in a few words."""
        growing = self.growing
        if not growing:
            return f"<{type(self).__name__}: {self}>"
        names = ", ".join(growth.name for growth in growing[:_NAMED])
        if len(growing) > _NAMED:
            names += f" and {len(growing) - _NAMED} more"
        each_time = prose_size(round(sum(growth.per_iteration for growth in growing)))
        growth_text = f"{names} grew by {each_time} with each of {self.iterations} iterations"
        return f"<{type(self).__name__}: {growth_text}>"


def kind_of(name: str) -> str:
    """A name without the indices that distinguish the tensors of one container.

    >>> kind_of("losses[17]"), kind_of("seen['step 3'].grad"), kind_of("Tensor12")
    ('losses[*]', 'seen[*].grad', 'Tensor*')
    >>> kind_of("layers.3.weight"), kind_of("Tensor12.grad"), kind_of("seen[<tuple>]#2")
    ('layers.3.weight', 'Tensor*.grad', 'seen[*]')
    """
    return _NUMBER.sub(r"\1*", _ONE_OF_MANY.sub("", _INDEX.sub("[*]", name)))


def _kind_of_row(row: TensorRow) -> str:
    return kind_of(row.name) if row.holder is None else f"graph of {kind_of(row.holder)}"


def held_in_containers(frame: FrameType | None) -> Counter[str]:
    """The number of tensors on GPUs in each container of the program, by its variable."""
    tensors = {id(tensor) for tensor in live_objects().tensors if tensor.is_cuda}
    kinds = map(kind_of, names_of_variables(frame, tensors).values())
    return Counter(kind.partition("[*]")[0] for kind in kinds if "[*]" in kind)


def _of_devices(sizes: Mapping[_Kind, int]) -> Mapping[_Kind, int]:
    sums = Counter[_Kind]()
    for (device, _), nbytes in sizes.items():
        sums[device, _ALL] += nbytes
    return sums
