"""What is known of a moment at which a GPU ran out of memory, as plain data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .._common.prose_size import prose_size
from ..simulation.allocator.failed_request import FailedRequest
from .category import Category


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the program.

    Args:
        file: of the source.
        line: its number.
        function: its function.
        source: text of the line, empty if there is none.
    """

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class ProgramFrame:
    """A function of the program that was running.

    Args:
        place: the line.
        names: that its code mentions.
        calls_with: names of the keyword arguments that its code passes.
        source: the lines of the whole function, by number.
    """

    place: Place
    names: frozenset[str]
    calls_with: frozenset[str]
    source: dict[int, str]


class HeldBlock(NamedTuple):
    """A block in use.

    Args:
        size: its bytes.
        category: what it is to the program.
        place: the line that allocated it; None if that is not known.
        name: of the variable that leads to it; empty for none.
        shape: of its tensor; empty if it is not known.
        dtype: of its tensor.
        node: of autograd that saved it for backward; empty for none.
        has_graph: whether autograd made its tensor.
        is_in_repeated: whether one of the repeated modules allocated it.
        order: how many allocations came before it; -1 if that is not known.
    """

    size: int
    category: Category
    place: Place | None
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    node: str = ""
    has_graph: bool = False
    is_in_repeated: bool = False
    order: int = -1


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that one variable leads to, such as all in a list.

    Args:
        name: of the variable, without an index.
        tensors: how many they are.
        own: bytes of the blocks that they look at.
        graphs: bytes that autograd keeps for them alone.
        running_sums: how many additions made the first of them, one upon the other.
        is_variable: whether it is one tensor, not a container of them.
    """

    name: str
    tensors: int
    own: int
    graphs: int
    running_sums: int = 0
    is_variable: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer that is alive.

    Args:
        name: of its class.
        parameters: bytes of its parameters on the GPU.
        state: bytes of its state on the GPU.
        elements: number of elements of its parameters on the GPU.
        rows: sum of all lengths of the parameters with two dimensions or more.
        uses_foreach: whether its step makes lists of temporaries.
        has_adafactor: whether this PyTorch has that optimizer, from 2.5 on.
    """

    name: str
    parameters: int
    state: int
    elements: int
    rows: int
    uses_foreach: bool
    has_adafactor: bool = True


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The modules that are alive.

    Args:
        parameters: bytes of all parameters, on any device.
        float32: those of them that are float32.
        name: of the variable that leads to the largest module; empty for none.
        repeated: attribute of the repeated modules that saved the most, such as ``blocks``.
        repeats: how many they are.
        is_evaluating: whether every module is in evaluation mode.
    """

    parameters: int = 0
    float32: int = 0
    name: str = ""
    repeated: str = ""
    repeats: int = 0
    is_evaluating: bool = False


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of ``scaled_dot_product_attention`` in the program.

    Args:
        place: of the call.
        dimensions: of its first argument; 0 if they are not known.
    """

    place: Place
    dimensions: int


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """The recorded requests, made again under other settings.

    Args:
        settings: as PYTORCH_CUDA_ALLOC_CONF has them; empty for one stream in place of several.
        requests: how many allocations were made again.
        fits: whether the request that failed is served.
        is_whole: whether requests of blocks that were freed long ago are among them.
    """

    settings: str
    requests: int
    fits: bool
    is_whole: bool


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A moment at which a GPU ran out of memory.

    Args:
        request: that failed, and the state of the GPU.
        gpu: what the GPU is.
        is_simulated: whether there is no such GPU.
        frames: functions of the program that were running, innermost first.
        functions: names and files of all functions that were running, innermost first.
        node: of autograd that was running; empty outside of a backward pass.
        blocks: in use; their sizes add up to what is in use.
        groups: variables that lead to tensors with graphs, or to several tensors.
        optimizers: that are alive.
        model: the modules.
        attention: calls of attention in running functions and lines that hold memory.
        checks: requests made again under other settings.
        unchecked: why settings were not checked; empty if they were, or if nothing is cached.
        missing: which parts of this could not be found out, and why.
    """

    request: FailedRequest
    gpu: str
    is_simulated: bool
    frames: tuple[ProgramFrame, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    node: str = ""
    blocks: tuple[HeldBlock, ...] = ()
    groups: tuple[TensorGroup, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    model: ModelFacts = ModelFacts()
    attention: tuple[AttentionCall, ...] = ()
    checks: tuple[SettingsCheck, ...] = ()
    unchecked: str = ""
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Which GPU had no room, for how much, and where."""
        request = self.request
        place = self.frames[0].place if self.frames else None
        where = f" at {os.path.basename(place.file)}:{place.line}" if place else ""
        return (
            f"<{type(self).__name__} on cuda:{request.device}{where}: asked for"
            f" {prose_size(request.requested)}, {prose_size(self.in_use)} in use>"
        )

    @property
    def in_use(self) -> int:
        """Bytes of all blocks in use."""
        return sum(self.request.blocks.values())

    @property
    def shortage(self) -> int:
        """Bytes that the GPU has too few for the request."""
        request = self.request
        free = request.free
        if request.allowed is not None:
            free = min(free, max(0, request.allowed - request.reserved))
        return max(0, request.segment - free)

    @property
    def cached(self) -> int:
        """Bytes that the allocator keeps free."""
        return self.request.reserved - self.in_use

    def of_category(self, *categories: Category) -> int:
        """Bytes of the blocks of some categories."""
        return sum(block.size for block in self.blocks if block.category in categories)

    def by_category(self) -> list[tuple[Category, int]]:
        """Bytes by category, the largest first; they add up to what is in use."""
        sizes: dict[Category, int] = {}
        for block in self.blocks:
            sizes[block.category] = sizes.get(block.category, 0) + block.size
        return sorted(sizes.items(), key=lambda item: -item[1])

    def by_line(self) -> list[LineHolder]:
        """What is in use by the line that allocated it, the largest first."""
        lines: dict[tuple[str, int], list[HeldBlock]] = {}
        for block in self.blocks:
            place = block.place
            key = ("", 0) if place is None else (place.file, place.line)
            lines.setdefault(key, []).append(block)
        holders = map(LineHolder.of, lines.values())
        return sorted(holders, key=lambda holder: -holder.size)


@dataclass(frozen=True, slots=True)
class LineHolder:
    """A line, and what it allocated that is in use.

    Args:
        place: the line; None for what is not known.
        size: bytes.
        blocks: how many they are.
        names: of the variables that lead to them, the largest first.
        categories: of the blocks, the largest first.
    """

    place: Place | None
    size: int
    blocks: int
    names: tuple[str, ...]
    categories: tuple[Category, ...]

    @classmethod
    def of(cls, blocks: Iterable[HeldBlock]) -> LineHolder:
        """The blocks of one line."""
        found = sorted(blocks, key=lambda block: -block.size)
        names = dict.fromkeys(block.name for block in found if block.name)
        categories = dict.fromkeys(block.category for block in found)
        size = sum(block.size for block in found)
        return cls(found[0].place, size, len(found), tuple(names), tuple(categories))
