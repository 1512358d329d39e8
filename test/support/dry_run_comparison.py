"""Runs a program on a simulated GPU with arithmetic and without, and tells what it did there."""

from __future__ import annotations

import gc
import runpy
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.inspect import active

EXAMPLES = Path(__file__).parents[2] / "examples"

# torch loads its compiler for the first step of a process, and its frames keep the tensors.
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()


@contextmanager
def allocator_events():
    """A list of all that is asked of allocators that begin here, in order, with the addresses."""
    events = []
    begun = []
    malloc, free = CachingAllocator.malloc, CachingAllocator.free

    def spied_malloc(self, size, stream=0):
        address = malloc(self, size, stream)
        if not any(self is one for one in begun):
            begun.append(self)
        events.append(("malloc", size, address))
        return address

    def spied_free(self, address):
        # What an earlier test left may be freed now.
        if any(self is one for one in begun):
            events.append(("free", address))
        return free(self, address)

    def free_at_once(machine, is_on):
        if is_on:
            machine.allocations.sweep_at_once()

    # Their frames must not be taken for the program's, which holds the memory.
    for spy in (spied_malloc, spied_free):
        spy.__code__ = spy.__code__.replace(co_filename=malloc.__code__.co_filename)
    gc.disable()  # cycles of the program are freed whenever it runs
    machine = active.machine
    free_at_once(machine, machine is not None)
    active.observers.append(free_at_once)
    try:
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(CachingAllocator, "malloc", spied_malloc)
            patches.setattr(CachingAllocator, "free", spied_free)
            yield events
    finally:
        active.observers.remove(free_at_once)
        if machine is not None:
            machine.allocations.sweep_later()
        gc.enable()


def events_of(program, compute):
    """All that a program asks of the allocator."""
    with allocator_events() as events, simulate("80GiB", compute=compute):
        program()
    return events


def lines_of_both_runs(program, functions):
    """Run a program both ways, profiled, and assert that the memory is the same.

    Args:
        program: takes nothing.
        functions: those whose lines are profiled.

    Returns:
        a row for each line, as ``LineRecords.to_dataframe`` has them.
    """
    recorded = []
    for compute in (True, False):
        with (
            allocator_events() as events,
            simulate("80GiB", compute=compute) as machine,
            LineProfiler(*functions) as profiler,
        ):
            program()
            holders = checked_holders(profiler, machine)
        lines = profiler.records().to_dataframe()
        memory = [name for name in lines.columns if "." in name]
        table = lines[["function", "line", "code", "hits", "delta", *memory]]
        recorded.append((events, table, holders))
    (computed, lines, holders), (shaped, shaped_lines, shaped_holders) = recorded
    assert len(computed) > 10
    assert shaped_holders == holders
    assert shaped == computed
    pd.testing.assert_frame_equal(shaped_lines, lines)
    return lines


def checked_holders(profiler, machine):
    """The holders at the peak: every way to add them up gives what the allocator counted.

    Args:
        profiler: that was on from the beginning of the simulation.
        machine: the simulated GPUs.

    Returns:
        The shares of lines, modules and categories.
    """
    holders = profiler.peak_holders()
    peak, _ = machine.gpus[0].peak_share()
    by_line, by_module, by_category = (
        holders.by_line(),
        holders.by_module(),
        holders.by_category(),
    )
    for rows in (by_line, by_module, by_category, holders.by_function()):
        assert sum(row.size for row in rows) == peak
    assert sum(size for _, size in holders.by_stack()) == holders.module_tree().total == peak
    return by_line, by_module, by_category


def kept_by(lines, code):
    """Bytes that lines with some code asked for and kept; their hits must free equally much."""
    rows = lines[lines["code"].str.contains(code, regex=False)]
    asked, freed = (rows[f"requested_bytes.all.{way}"].sum() for way in ("allocated", "freed"))
    return int(asked - freed)


class Example:
    """A program of ``examples/``.

    Args:
        name: of its file, without the ending.
    """

    def __init__(self, name):
        self.names = runpy.run_path(str(EXAMPLES / f"{name}.py"))

    def functions(self):
        """All functions and classes that it defines."""
        return [
            one
            for one in self.names.values()
            if callable(one) and getattr(one, "__module__", None) == "<run_path>"
        ]


def bytes_of(tensors):
    """The bytes that tensors ask of a GPU together."""
    return sum(tensor.nbytes for tensor in tensors)
