"""Inductor's wrapper as text, and what a simulation asks its allocator for when the wrapper runs.

Kernels that are timed at their first launch take memory of which the text tells nothing. It counts
as a difference unless all of it is freed before the kernel runs.

The text is read line by line. Nothing is used of Python but names, ``del``, arithmetic, and which
line runs: a name holds a block from the line that binds it until the last name of it is deleted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.compiled import wrapper
from pytorch_memlab.simulation.compiled.kernel_timing import KernelTiming

Event = tuple[int, int]
"""Address of a block, and its bytes; negative where it is freed."""

_START = re.compile(r" *def call\((?:self, )?args\):")
_INPUTS = re.compile(r"([\w, ]+) = args$")
_ALLOCATION = re.compile(r"(\w+) = empty_strided_cuda\((.*, torch\.\w+)\)")
_SHAPE = re.compile(r"assert_(?:size_stride|tensor_metadata)\((\w+), (.*), '(?!input')")
_ALIAS = re.compile(r"(\w+) = (?:reinterpret_tensor\((\w+), |(\w+)(?:;|$| +#))")
_ELEMENT = re.compile(r"(\w+) = (\w+)\[\d+\]$")
_NUMBER = re.compile(r"(\w+) = ([\w*+/() ,-]+)$")
_DELETION = re.compile(r"\bdel (\w+)")
_RETURN = re.compile(r"return \((.*)\)")
_CALL = re.compile(r"(?:(\w+) = )?([\w.]+)\((.*)\)")
_TAKES_NOTHING = re.compile(
    r"assert_\w+|args\.clear|torch\.cuda\.\w+|get_raw_stream|copy_if_misaligned|\w+\.run|"
    r"empty_strided_cpu\w*|cpp_fused_\w+|\w+\.append"
)
_ITEM_SIZES = (4, 2, 8, 1, 16)
"""Of numbers, in bytes, the usual ones first: another result may be a multiple of this one."""


@dataclass
class Graph:
    """One run of a compiled graph.

    Args:
        text: of its wrapper.
        inputs: numbers of elements where an input is an integer, otherwise None.
        addresses: of the blocks of inputs, 0 without one.
        events: what the allocator was asked for, by the line of the text that ran.
        workspaces: addresses of those of cuBLAS, when it has run.
    """

    text: str
    inputs: list[int | None]
    addresses: list[int]
    events: dict[int, list[Event]] = field(default_factory=dict)
    workspaces: set[int] = field(default_factory=set)

    @property
    def length(self) -> int:
        """The number of requests to the allocator."""
        return sum(map(len, self.events.values()))

    def differences(self) -> list[str]:
        """Lines of the text which ask for something else than the simulation did, in words."""
        return _Reader(self).differences


@dataclass(eq=False)
class _Block:
    """Memory that names of a wrapper hold.

    Args:
        addresses: of its block, or of all results of a call that have its size.
        is_own: whether only this graph's names can hold it.
        tuple_: of results that it is one of, which holds it as long as a name holds the tuple.
    """

    addresses: list[int]
    is_own: bool = True
    tuple_: _Outputs | None = None


@dataclass(eq=False)
class _Outputs:
    """The blocks that a library call left, before names show which is which."""

    blocks: dict[int, int]  # bytes by address, of those that no name has yet
    left_behind: list[_Block] = field(default_factory=list)  # that only the tuple holds again
    alike: list[int] = field(default_factory=list)  # addresses of which the text tells nothing more

    def __post_init__(self) -> None:
        self.of_size = self.by_size()

    def by_size(self) -> dict[int, list[int]]:
        """The addresses of blocks by their bytes."""
        sizes: dict[int, list[int]] = {}
        for address, nbytes in self.blocks.items():
            sizes.setdefault(nbytes, []).append(address)
        return sizes


class _Reader:
    """Reads the text of a graph beside its events."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names: dict[str, _Block | _Outputs] = {}
        self._elements: set[str] = set()  # names of one result each, which do not hold the others
        self._numbers: dict[str, int] = {}
        self._viewed: set[int] = set()  # addresses that a library may have made views of
        self.differences: list[str] = []
        lines = graph.text.splitlines()
        start = next(number for number, line in enumerate(lines) if _START.fullmatch(line))
        for number, line in enumerate(lines[start + 1 :], start + 2):
            statement = line.strip()
            if statement.startswith("#"):
                continue
            events = graph.events.get(number, [])
            expected = self._read(statement, events)
            if expected is not None:
                self.differences.append(f"line {number}: {statement}: {expected}; {events}")
            if statement.startswith("return"):
                return
        raise AssertionError("the wrapper returns nothing")

    def _read(self, statement: str, events: list[Event]) -> str | None:
        """A description of a statement's requests that did not happen; None: all is right."""
        taken = {address: size for address, size in events if size > 0}
        freed = [address for address, size in events if size < 0]
        deleted: set[str] = set(_DELETION.findall(statement))
        if match := _INPUTS.match(statement):
            self._bind_inputs([name.strip() for name in match[1].split(",") if name.strip()])
        elif match := _ALLOCATION.match(statement):
            size, stride, dtype = _items(match[2])
            nbytes = self._nbytes(size, stride)
            nbytes = nbytes and nbytes * _dtype(dtype).itemsize
            if list(taken.values()) != ([nbytes] if nbytes else []) and nbytes is not None:
                return f"{nbytes} bytes"
            left = self._rebind(match[1], _Block(list(taken)))
            return self._check_frees(freed, left)
        elif match := _SHAPE.match(statement):
            size, stride, *dtypes = _items(match[2])
            problem = self._resolve(match[1], size, stride, *map(_dtype, dtypes))
            if problem is not None:
                return problem
        elif (match := _ALIAS.match(statement)) and (match[2] or match[3]) in self._names:
            self._names[match[1]] = self._names[match[2] or match[3]]
            if (match[2] or match[3]) in self._elements:
                self._elements.add(match[1])
        elif (match := _ELEMENT.match(statement)) and match[2] in self._names:
            self._names[match[1]] = self._names[match[2]]
            self._elements.add(match[1])
        elif match := _RETURN.match(statement):
            deleted = set(self._names) - set(re.findall(r"\w+", match[1]))
        elif (match := _CALL.match(statement)) and not _TAKES_NOTHING.fullmatch(match[2]):
            return self._call(match[1], match[3], events)
        elif match := _NUMBER.match(statement):
            self._count(match[1], match[2])
        if taken:
            return "no allocation"
        return self._check_frees(freed, [self._names.pop(name, None) for name in deleted])

    def _bind_inputs(self, names: Sequence[str]) -> None:
        blocks: dict[int, _Block] = {}
        graph = self._graph
        for name, number, address in zip(names, graph.inputs, graph.addresses, strict=True):
            if number is not None:
                self._numbers[name] = number
            else:
                self._names[name] = blocks.setdefault(address, _Block([address], is_own=False))

    def _rebind(self, name: str, value: _Block | _Outputs) -> list[_Block | _Outputs | None]:
        before = self._names.get(name)
        self._names[name] = value
        return [before]

    def _count(self, name: str, expression: str) -> None:
        try:
            self._numbers[name] = self._number(expression)
        except (NameError, TypeError, SyntaxError):
            return

    def _number(self, expression: str) -> int:
        number: int = eval(expression, {"max": max, "min": min}, dict(self._numbers))  # noqa: S307 - PyTorch wrote it
        return number

    def _nbytes(self, size: str, stride: str) -> int | None:
        """Elements from the first to the last one of a tensor; None: the text does not say."""
        try:
            lengths, steps = (
                [self._number(number) for number in _items(text.strip()[1:-1])]
                for text in (size, stride)
            )
        except NameError:  # a number that the graph itself counts
            return None
        if not prod(lengths):
            return 0
        return 1 + sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))

    def _call(self, name: str | None, arguments: str, events: list[Event]) -> str | None:
        """Let a library call take what it wants; what it does not free is its result.

        Workspaces of cuBLAS stay too, and no name holds them.
        """
        left: dict[int, int] = {}
        for address, size in events:
            if size > 0 and address not in self._graph.workspaces:
                left[address] = size
            elif size < 0 and left.pop(address, None) is None:
                return "no block freed that was there before"
        if name is None:
            return None
        self._elements.discard(name)
        if left:
            self._names[name] = _Outputs(left)
        else:  # it may be a view of an argument
            for argument in re.findall(r"\w+", arguments):
                value = self._names.get(argument)
                if isinstance(value, _Block):
                    self._viewed.update(value.addresses)
        return None

    def _resolve(
        self, name: str, size: str, stride: str, dtype: torch.dtype | None = None
    ) -> str | None:
        """Find the block of a library's result by its size; texts of older torch have no dtype."""
        outputs = self._names.get(name)
        if not isinstance(outputs, _Outputs):
            return None
        length = self._nbytes(size, stride)
        sizes = outputs.by_size()
        item_sizes = _ITEM_SIZES if dtype is None else (dtype.itemsize,)
        likely = [(length or 0) * item for item in item_sizes]
        for nbytes in sorted(
            sizes, key=lambda size: (size not in likely, *map(size.__ne__, likely))
        ):
            is_sole = len(outputs.blocks) == 1 and nbytes >= (length or 0)
            if length is None or (length and (is_sole or nbytes in likely)):
                del outputs.blocks[sizes[nbytes][0]]
                # Without a dtype, results with as many numbers of another size may be it.
                alike = [outputs.of_size[size] for size in likely if size in outputs.of_size]
                joined = [address for addresses in alike for address in addresses]
                addresses = alike[0] if len(alike) == 1 else joined
                if len(alike) > 1:
                    outputs.alike.extend(one for one in joined if one not in outputs.alike)
                block = _Block(addresses or outputs.of_size[nbytes], tuple_=outputs)
                self._names[name] = block
                return None
        if not length or size == "()":  # seeds of random numbers are on the CPU
            self._names[name] = _Block([])
            return None
        return f"a result of {length} elements among {list(outputs.blocks.values())}"

    def _is_held(self, outputs: _Outputs) -> bool:
        """True if a name holds all results of a call, or may hold one that no name has yet."""
        return any(
            value is outputs and (bool(outputs.blocks) or name not in self._elements)
            for name, value in self._names.items()
        )

    def _check_frees(
        self, freed: list[int], dropped: Sequence[_Block | _Outputs | None]
    ) -> str | None:
        """A description of the blocks that should have been freed with names, and were not."""
        held = {id(value) for value in self._names.values()}
        left = list(freed)
        missing: list[int] = []
        for value in dropped:
            if value is None or id(value) in held:
                continue
            if isinstance(value, _Outputs):
                sizes = value.blocks.values()
                missing += [
                    size
                    for size in sizes
                    if not _take(left, value.of_size[size]) and not _take(left, value.alike)
                ]
                for block in value.left_behind:
                    if not _take(left, block.addresses):
                        missing += block.addresses[:1]
            elif value.tuple_ is not None and self._is_held(value.tuple_):
                value.tuple_.left_behind.append(value)
            elif not _take(left, value.addresses) and value.is_own:
                missing += [one for one in value.addresses[:1] if one not in self._viewed]
        left = [address for address in left if address not in self._viewed]
        if missing or left:
            return f"missing frees {missing}, and too many of {left}"
        return None


def _take(addresses: list[int], candidates: list[int]) -> bool:
    """Take one of the candidates out of both lists, if it is there."""
    for address in candidates:
        if address in addresses:
            addresses.remove(address)
            candidates.remove(address)
            return True
    return False


def _dtype(text: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, text.removeprefix("torch."))
    return dtype


def _items(text: str) -> list[str]:
    """The parts of a text between commas, but those in parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


@contextmanager
def recorded_graphs() -> Iterator[list[Graph]]:
    """Within: the runs of compiled graphs are appended to a list."""
    graphs: list[Graph] = []
    running: list[list[Event]] = []
    sizes: dict[int, int] = {}
    malloc, free, load = CachingAllocator.malloc, CachingAllocator.free, wrapper.load
    take = KernelTiming.take

    def spied_malloc(self: CachingAllocator, size: int, *place: Any) -> int:
        address = malloc(self, size, *place)
        sizes[address] = size
        if running and size:
            running[-1].append((address, size))
        return address

    def spied_free(self: CachingAllocator, address: int) -> None:
        size = sizes.pop(address, 0)
        if running and address:
            running[-1].append((address, -size))
        free(self, address)

    def spied_take(self: KernelTiming, *args: Any) -> None:
        gpus = self.machine.gpus
        _settle(gpus)
        start = len(running[-1]) if running else 0
        try:
            take(self, *args)
        finally:
            _settle(gpus)
            if running and not sum(size for _, size in running[-1][start:]):
                del running[-1][start:]

    def spied_load(machine: Any, text: str, *args: Any) -> Callable[[list[Any]], Any]:
        call = load(machine, text, *args)

        def run(inputs: list[Any]) -> Any:
            numbers = [value if isinstance(value, int) else None for value in inputs]
            graph = Graph(text, numbers, [_address(value) for value in inputs])
            lines: list[tuple[int, int]] = []
            events: list[Event] = []

            def trace(frame: FrameType, event: str, _: Any) -> Any:
                if frame.f_code.co_filename != wrapper.__file__ or frame.f_code.co_name != "call":
                    return None
                if event == "line":
                    _settle(machine.gpus)
                    lines.append((frame.f_lineno, len(events)))
                return trace

            _settle(machine.gpus)
            running.append(events)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                result = call(inputs)
            finally:
                sys.settrace(before)
                _settle(machine.gpus)
                running.pop()
            ends = [start for _, start in lines[1:]] + [len(events)]
            for (line, start), end in zip(lines, ends, strict=True):
                graph.events.setdefault(line, []).extend(events[start:end])
            made = machine.workspaces.living()
            graph.workspaces = {workspace.address for workspace in made}
            graphs.append(graph)
            return result

        return run

    with (
        patch.object(CachingAllocator, "malloc", spied_malloc),
        patch.object(CachingAllocator, "free", spied_free),
        patch.object(wrapper, "load", spied_load),
        patch.object(KernelTiming, "take", spied_take),
    ):
        yield graphs


def _settle(gpus: Iterable[Any]) -> None:
    """Let each GPU free what died."""
    for gpu in gpus:
        gpu.locked(_nothing)


def _nothing() -> None: ...


def _address(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return 0
    return int(value.untyped_storage().data_ptr())
