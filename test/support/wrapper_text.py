"""Inductor's wrapper as text, and what a simulation does when it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import pytest
import torch

from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.compiled import wrapper

_ALLOCATION = re.compile(r"(\w+) = empty_strided_cuda\(\(([^)]*)\), \(([^)]*)\), torch\.(\w+)\)")
_ALIAS = re.compile(r"(\w+) = reinterpret_tensor\((\w+), ")
_INPUTS = re.compile(r"^ *([\w, ]+) = args$")
_SYMBOL = re.compile(r"^ *(\w+) = (\w+)$")
_RENAMING = re.compile(r"(\w+) = (\w+); +del (\w+)")
_DELETION = re.compile(r"\bdel (\w+)")
_RETURN = re.compile(r"return \((.*)\)")


def events_of_text(text: str, lengths_of_inputs: dict[int, int] | None = None) -> list[int]:
    """Bytes of each buffer that a wrapper allocates, and negative, of each that it frees.

    It reads lines, and knows nothing of Python but names, ``del`` and arithmetic.

    Args:
        text: of the wrapper.
        lengths_of_inputs: the inputs that are numbers, by their position.
    """
    symbols: dict[str, int] = {}
    events: list[int] = []
    storages: dict[str, int] = {}  # by the name of a tensor
    sizes: dict[int, int] = {}
    lines = text.partition("    def call(self, args):")[2].splitlines()
    for line in lines:
        if line.strip().startswith("#"):
            continue
        if found := _INPUTS.search(line):
            names = [name.strip() for name in found[1].split(",")]
            symbols = {names[place]: value for place, value in (lengths_of_inputs or {}).items()}
        elif (found := _SYMBOL.search(line)) and found[2] in symbols:
            symbols[found[1]] = symbols[found[2]]
        elif found := _ALLOCATION.search(line):
            name, size, stride, dtype = found.groups()
            lengths, steps = (
                [eval(number, {}, symbols) for number in numbers.split(",") if number.strip()]
                for numbers in (size, stride)
            )
            last = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
            nbytes = (last + 1) * getattr(torch, dtype).itemsize if prod(lengths) else 0
            _forget(name, storages, sizes, events)
            storages[name] = len(sizes)
            sizes[len(sizes)] = nbytes
            events += [nbytes] if nbytes else []
        elif (found := _ALIAS.search(line) or _RENAMING.search(line)) and found[2] in storages:
            storages[found[1]] = storages[found[2]]
        for name in _DELETION.findall(line):
            _forget(name, storages, sizes, events)
        if found := _RETURN.search(line):
            returned = {storages.get(name) for name in re.findall(r"\w+", found[1])}
            left = {name: one for name, one in storages.items() if one not in returned}
            for name in left:
                _forget(name, left, sizes, events)
            return events
    raise AssertionError("the wrapper returns nothing")


def _forget(name: str, storages: dict[str, int], sizes: dict[int, int], events: list[int]) -> None:
    storage = storages.pop(name, None)
    if storage is not None and storage not in storages.values() and sizes[storage]:
        events.append(-sizes[storage])


@contextmanager
def recorded_graphs() -> Iterator[list[tuple[list[int], list[int]]]]:
    """For each graph that runs, the events that its text has, and those of the allocator."""
    graphs: list[tuple[list[int], list[int]]] = []
    running: list[list[int]] = []
    sizes: dict[int, int] = {}
    malloc, free, load = CachingAllocator.malloc, CachingAllocator.free, wrapper.load

    def spied_malloc(self: CachingAllocator, size: int, stream: int = 0) -> int:
        address = malloc(self, size, stream)
        if running and size and _is_of_wrapper():
            sizes[address] = size
            running[-1].append(size)
        return address

    def spied_free(self: CachingAllocator, address: int) -> None:
        if running and address in sizes:
            running[-1].append(-sizes.pop(address))
        free(self, address)

    def spied_load(machine: Any, text: str, *args: Any) -> Callable[[list[Any]], Any]:
        call = load(machine, text, *args)

        def run(inputs: list[Any]) -> Any:
            sizes.clear()  # of other graphs
            running.append([])
            numbers = {place: one for place, one in enumerate(inputs) if isinstance(one, int)}
            try:
                return call(inputs)
            finally:
                graphs.append((events_of_text(text, numbers), running.pop()))

        return run

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(CachingAllocator, "malloc", spied_malloc)
        patches.setattr(CachingAllocator, "free", spied_free)
        patches.setattr(wrapper, "load", spied_load)
        yield graphs


def _is_of_wrapper() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code is wrapper._Allocation.empty_strided.__code__:
            return True
        frame = frame.f_back
    return False
