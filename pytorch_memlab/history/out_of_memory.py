"""The facts of an out-of-memory error, as plain data."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from .._common.process.ipython import file_name
from .._common.text.prose_size import prose_size
from ..simulation.allocator.out_of_memory import FailedRequest
from .model import Category


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A line of the program."""

    file: str
    line: int
    function: str
    source: str  # text of the line, empty if there is none


@dataclass(frozen=True, slots=True)
class ProgramFrame:
    """A function of the program that was running."""

    place: ProgramLine
    names: frozenset[str]
    calls_with: frozenset[str]
    source: dict[int, str]  # the lines of the whole function, by number


class BlockInUse(NamedTuple):
    """A block in use."""

    size: int
    category: Category
    place: ProgramLine | None  # the line that allocated it; None if that is not known
    name: str = ""  # of the variable that leads to it; empty for none
    shape: tuple[int, ...] = ()  # of its tensor; empty if it is not known
    dtype: str = ""
    node: str = ""  # of autograd that saved it for backward; empty for none
    is_in_repeated: bool = False


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that one variable leads to, such as all in a list."""

    name: str  # of the variable, without an index
    tensors: int
    own: int  # bytes of the blocks that they look at
    graphs: int  # bytes that autograd keeps for them alone
    shared: int = 0  # bytes that it keeps for them and for variables, but for no other container
    running_sums: int = 0
    is_variable: bool = False
    elements: int = 0  # of the largest of the tensors
    # bytes that autograd keeps for them and not for the first of them, whatever else leads there
    after_first: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer that is alive."""

    name: str
    parameters: int  # bytes of its parameters on the GPU
    uses_foreach: bool
    factored: int  # bytes that Adafactor would keep for them


@dataclass(frozen=True, slots=True)
class UntrainedModelFacts:
    """A module of which gradients are computed that no optimizer takes."""

    name: str  # of the variable that it is in
    parameters: int  # bytes of those that require gradients, and that no optimizer has
    gradients: int  # bytes of those gradients that are there
    is_partly_trained: bool  # whether an optimizer has others of its parameters


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The modules that are alive."""

    parameters: int = 0  # bytes of all parameters, on any device
    float32: int = 0  # those of them that are float32
    name: str = ""  # of the variable that leads to the largest module; empty for none
    repeated: str = ""  # attribute of the repeated modules that saved the most, such as ``blocks``
    repeats: int = 0
    is_evaluating: bool = False
    frozen: int = 0  # bytes of float32 parameters on the GPU that are not trained
    # the largest first, if there is an optimizer at all
    untrained: tuple[UntrainedModelFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """The recorded requests, made again under other settings."""

    settings: str  # as PYTORCH_CUDA_ALLOC_CONF has them; empty for one stream in place of several
    requests: int
    fits: bool
    is_whole: bool


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A moment at which a GPU ran out of memory."""

    request: FailedRequest
    gpu: str
    is_simulated: bool
    frames: tuple[ProgramFrame, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    node: str = ""  # of autograd that was running; empty outside of a backward pass
    blocks: tuple[BlockInUse, ...] = ()  # in use; their sizes add up to what is in use
    groups: tuple[TensorGroup, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    model: ModelFacts = ModelFacts()
    attention: tuple[ProgramLine, ...] = ()  # lines that call it with three dimensions
    softmaxes: tuple[ProgramLine, ...] = ()  # lines that take one, next to a product of matrices
    checks: tuple[SettingsCheck, ...] = ()
    unchecked: str = ""  # why settings were not checked; empty if they were or nothing is cached
    missing: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # files of the user that are imported
    arguments: tuple[str, ...] = ()  # of the program, without its name

    def __repr__(self) -> str:
        """The GPU that had no room, the request, and its line."""
        request = self.request
        place = self.frames[0].place if self.frames else None
        where = f" at {file_name(place.file)}:{place.line}" if place else ""
        return (
            f"<{type(self).__name__} on cuda:{request.device}{where}: asked for"
            f" {prose_size(request.requested)}, {prose_size(self.in_use)} in use>"
        )

    @property
    def in_use(self) -> int:
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
        """Bytes that the allocator keeps free for all code."""
        return self.request.reserved - self.in_use - self.request.private.unused

    def of_category(self, *categories: Category) -> int:
        return sum(block.size for block in self.blocks if block.category in categories)

    def by_category(self) -> list[tuple[Category, int]]:
        """Bytes by category, the largest first; they add up to what is in use."""
        sizes = Counter[Category]()
        for block in self.blocks:
            sizes[block.category] += block.size
        return sizes.most_common()

    def by_line(self) -> list[LineHolder]:
        """The blocks in use by the line that allocated them, the largest first."""
        lines: defaultdict[tuple[str, int], list[BlockInUse]] = defaultdict(list)
        for block in self.blocks:
            place = block.place
            lines[("", 0) if place is None else (place.file, place.line)].append(block)
        for blocks in lines.values():
            blocks.sort(key=lambda block: -block.size)
        holders = [
            LineHolder(
                blocks[0].place,
                sum(block.size for block in blocks),
                len(blocks),
                tuple(dict.fromkeys(block.name for block in blocks if block.name)),
                tuple(dict.fromkeys(block.category for block in blocks)),
                sum(block.size for block in blocks if block.name),
                blocks[0].size,
            )
            for blocks in lines.values()
        ]
        return sorted(holders, key=lambda holder: -holder.size)


@dataclass(frozen=True, slots=True)
class LineHolder:
    """A line, and what it allocated that is in use."""

    place: ProgramLine | None  # the line; None for what is not known
    size: int
    blocks: int
    names: tuple[str, ...]
    categories: tuple[Category, ...]
    named: int  # bytes of the blocks that a variable leads to
    largest: int  # bytes of its largest block
