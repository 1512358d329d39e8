"""PyTorch's samples of its operators on a simulated GPU, with and without values.

All runs must ask the allocator for the same bytes, in the same order, and their results must lie
in memory alike. A dry run that met values that it does not have says so: such a sample is counted
by itself where it differs.
"""

from __future__ import annotations

import enum
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.opinfo_samples import REFUSALS, SEED, name_of, placed_arguments, samples_of, summary
from pytorch_memlab import simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.machine import tensor_values
from pytorch_memlab.simulation.machine.machine import Machine
from pytorch_memlab.simulation.machine.tensor_values import TensorValues


class Values(enum.Enum):
    """The values of a sample's tensors."""

    ALL = "values"
    ZEROS = "zeros for values"
    NONE = "no values"


class Verdict(enum.Enum):
    """The outcome of one sample."""

    EQUAL = "equal"
    MARKED = "differ, marked as assumed"
    DIFFERS = "differ"
    REFUSED = "refused by name"
    RAISED = "raised in a dry run only"
    NO_REFERENCE = "raised with values"


@dataclass(frozen=True, slots=True)
class Event:
    """One request to the allocator.

    Args:
        op: that ran last when it was made; empty before the first.
        change: bytes that were asked for, or given back as a negative number.
        block: number of the allocation, in the order of the sample; -1: made before it.
    """

    op: str
    change: int
    block: int

    def __str__(self) -> str:
        """As tests of ops list it, with the op."""
        return f"{self.change:+,} in {self.op or 'no op'}"


@dataclass(slots=True)
class Trace:
    """One sample in one mode.

    Args:
        events: requests to the allocator, in order.
        layouts: of outputs and gradients: name, dtype, sizes and strides in elements.
        error: that it raised.
        is_marked: it read values that are not there.
    """

    events: list[Event] = field(default_factory=list)
    layouts: list[tuple[Any, ...]] = field(default_factory=list)
    error: Exception | None = None
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One sample in both modes.

    Args:
        name: of the operator, with its variant.
        dtype: of the sample.
        position: of the sample among the operator's.
        values: of the run that is compared with the one with all values.
        verdict: what came of it.
        detail: what differs first, or the error; empty when there is nothing to say.
    """

    name: str
    dtype: torch.dtype
    position: int
    values: Values
    verdict: Verdict
    detail: str = ""

    def __str__(self) -> str:
        """One line of the report."""
        dtype = str(self.dtype).removeprefix("torch.")
        sample = f"{self.name}, {dtype}, sample {self.position}, {self.values.value}"
        return f"{sample}: {self.verdict.value}: {self.detail}"


def findings(op: Any, dtype: torch.dtype) -> Iterator[Finding]:
    """Run all samples of one operator with and without values.

    Args:
        op: its ``OpInfo``.
        dtype: of the samples.

    Yields:
        what came of each sample.
    """
    samples = samples_of(op, dtype)
    computed = traces(op, samples, Values.ALL)
    for values in (Values.NONE, Values.ZEROS):
        dry = traces(op, samples, values)
        for position, sides in enumerate(zip(dry, computed, strict=True)):
            verdict, detail = _verdict(*sides)
            yield Finding(name_of(op), dtype, position, values, verdict, detail)


def _verdict(dry: Trace, computed: Trace) -> tuple[Verdict, str]:
    if computed.error is not None:
        if type(dry.error) is type(computed.error):
            return Verdict.EQUAL, ""
        kind = Verdict.REFUSED if isinstance(computed.error, REFUSALS) else Verdict.NO_REFERENCE
        return kind, summary(computed.error)
    if dry.error is not None:
        kind = Verdict.REFUSED if isinstance(dry.error, REFUSALS) else Verdict.RAISED
        return kind, summary(dry.error)
    difference = _difference(dry, computed)
    if not difference:
        return Verdict.EQUAL, ""
    return (Verdict.MARKED, "") if dry.is_marked else (Verdict.DIFFERS, difference)


def _difference(dry: Trace, computed: Trace) -> str:
    """The first difference, in words; empty if there is none."""
    for position in range(max(len(dry.events), len(computed.events))):
        without, with_values = _at(dry.events, position), _at(computed.events, position)
        if without is None or with_values is None or not _alike(without, with_values):
            return f"event {position}: {without or 'none'} instead of {with_values or 'none'}"
    for layout, expected in zip(dry.layouts, computed.layouts, strict=False):
        if layout != expected:
            return f"{layout} instead of {expected}"
    return ""


def _at(events: Sequence[Event], position: int) -> Event | None:
    return events[position] if position < len(events) else None


def _alike(one: Event, other: Event) -> bool:
    return (one.change, one.block) == (other.change, other.block)


def traces(op: Any, samples: Sequence[Any], values: Values) -> list[Trace]:
    """Run samples of one operator on a simulated GPU.

    Args:
        op: its ``OpInfo``.
        samples: to run.
        values: of their tensors. Without any, they run as large tensors do; with zeros, as small
            ones, which a dry run computes with.
    """
    with ExitStack() as stack:
        if values is Values.NONE:
            for limit in ("_MOST_INTEGERS", "_MOST_OTHERS"):
                stack.enter_context(patch.object(tensor_values, limit, 0))
        machine = stack.enter_context(simulate("h100", compute=values is Values.ALL))
        return [_traced(machine, op, sample) for sample in samples]


def _traced(machine: Machine, op: Any, sample: Any) -> Trace:
    trace = Trace()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        args, kwargs = placed_arguments(op, sample, "cuda")
        values = machine.values
        if values is not None:
            for tensor in tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    _forget(values, tensor)
        torch.manual_seed(SEED)
        reads = 0 if values is None else values.reads.events
        with _events(machine, trace.events):
            result = op(*args, **kwargs)
            outputs = tree_leaves(sample.output_process_fn_grad(result))
            roots = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
            leaves = [
                one
                for one in tree_leaves((args, kwargs))
                if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad
            ]
            if roots and leaves:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        results = [(f"output {i}", one) for i, one in enumerate(tree_leaves(result))]
        results += [(f"gradient {i}", one.grad) for i, one in enumerate(leaves)]
        trace.layouts = [_layout(name, one) for name, one in results]
        trace.is_marked = values is not None and values.reads.events > reads
    except Exception as error:
        trace.error = error.with_traceback(None)
    return trace


def _forget(values: TensorValues, tensor: torch.Tensor) -> None:
    """Take the values from a tensor of a GPU."""
    if tensor.is_cuda and values.is_known(tensor):
        with torch.no_grad():
            tensor.zero_()
        values.forget_values(tensor)


def _layout(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor):
        return name, type(value).__name__
    facts = (name, value.dtype, tuple(value.shape), value.device)
    if value.layout is not torch.strided or not value.numel():
        return facts
    steps = zip(value.shape, value.stride(), strict=True)
    return (*facts, tuple(step for size, step in steps if size > 1))


@contextmanager
def _events(machine: Machine, events: list[Event]) -> Iterator[None]:
    """Within: requests to the allocator are appended to a list."""
    malloc, free = CachingAllocator.malloc, CachingAllocator.free
    blocks: dict[int, tuple[int, int]] = {}
    running = ""

    def observe(op: Any) -> None:
        nonlocal running
        running = str(op)

    def spied_malloc(self: CachingAllocator, size: int, *place: Any) -> int:
        address = malloc(self, size, *place)
        if size:
            number = len(events)
            blocks[address] = size, number
            events.append(Event(running, size, number))
        return address

    def spied_free(self: CachingAllocator, address: int) -> None:
        size, number = blocks.pop(address, (0, -1))
        events.append(Event(running, -size, number))
        free(self, address)

    observers = machine.op_observers
    machine.op_observers = (*observers, observe)
    gc.disable()  # when it runs depends on how many objects each mode makes
    machine.allocations.sweep_at_once()
    try:
        with (
            patch.object(CachingAllocator, "malloc", spied_malloc),
            patch.object(CachingAllocator, "free", spied_free),
        ):
            yield
    finally:
        machine.allocations.sweep_later()
        gc.enable()
        machine.op_observers = observers
