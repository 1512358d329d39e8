"""Unique elements: CUDA returns them in memory that all elements would fill.

``compute_unique`` of ``aten/src/ATen/native/cuda/UniqueCub.cu`` makes results for the case that
all are distinct, and shortens them when it knows how many are. Those of rows are as large as they
show (``Unique.cu``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ...machine.tensor_values import Bound, TensorValues
from ..core import cub
from ..core.op_call import INDEX, OpCall, named_arguments
from ..core.registry import DISTINCT, AssumedSize, DataDependence, estimated

_SOURCE: Final = "aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu"
_BOOLS: Final = 2
"""Distinct elements that CUDA has room for when it looks for those of a mask."""

_aten: Final = torch.ops.aten


class _Unique(NamedTuple):
    """A call: of elements if it has no dimension, else of rows; neighbours only, or sorted all."""

    tensor: torch.Tensor
    dim: int | None
    is_sorted: bool
    inverse: bool
    counts: bool

    @property
    def is_mask(self) -> bool:
        """True if elements are counted, not sorted."""
        return self.tensor.dtype == torch.bool and self.is_sorted and self.dim is None


def _unique(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Unique:
    arguments = named_arguments(op, args, kwargs)
    dim, is_sorted = arguments.get("dim"), "sorted" in arguments
    counts = arguments.get("return_counts", False)
    call = _Unique(arguments["self"], dim, is_sorted, arguments["return_inverse"], counts)
    return call._replace(counts=counts or call.is_mask)


def _found(call: _Unique) -> tuple[torch.Tensor, ...]:
    tensor, dim, is_sorted, *wanted = call
    options = [True, *wanted] if is_sorted else wanted
    if dim is not None:
        of_rows = _aten.unique_dim if is_sorted else _aten.unique_dim_consecutive
        result, inverse, counts = of_rows(tensor, dim, *options)
        return (
            result,
            inverse if call.inverse else inverse.new_empty(0),
            counts.clone() if call.counts else counts.new_empty(0),
        )
    of_elements = _aten._unique2 if is_sorted else _aten.unique_consecutive
    result, inverse, counts = of_elements(tensor, *options)
    if not tensor.numel():
        return result, inverse, counts
    room = _BOOLS if call.is_mask else tensor.numel()
    return _in_room(result, room), inverse, _in_room(counts, room) if counts.numel() else counts


def _in_room(result: torch.Tensor, room: int) -> torch.Tensor:
    """A result in memory for more elements."""
    count = result.numel()
    whole = result.new_empty(room)
    whole[:count] = result
    return whole.resize_(count)


def _all_distinct(
    values: TensorValues, name: str, size: AssumedSize, call: _Unique
) -> tuple[torch.Tensor, ...]:
    tensor, dim = call.tensor, call.dim
    whole = tensor.numel() if dim is None else tensor.shape[dim]
    room = min(whole, _BOOLS) if call.is_mask else whole
    number = size.of(values, f"aten::{name}", whole, room) if whole else 0
    of_each = tuple(tensor.shape) if dim is None else (whole,)
    inverse = values.make(of_each if call.inverse else (0,), torch.int64)
    if dim is None:
        counts = values.make((room if call.counts else 0,), torch.int64)
        distinct = values.make((room,), tensor.dtype).resize_(number)
        return distinct, inverse, counts.resize_(number if call.counts else 0)
    shape = [*tensor.shape]
    shape[dim] = number
    distinct = values.make(tuple(shape), tensor.dtype)
    return distinct, inverse, values.make((number if call.counts else 0,), torch.int64)


def _memory(call: OpCall, unique: _Unique) -> None:
    source = unique.tensor
    if not source.numel():
        return
    if unique.dim is not None:
        _compare_rows(call, unique)
        return
    call.alloc_contiguous(source)
    if unique.is_mask:
        call.alloc_temp(4)
        call.alloc_and_free(cub.reduce(call.model, source.numel(), 4))
        result, inverse, *counts = call.result
        call.alloc_outputs(result, *counts, inverse)
        return
    if unique.is_sorted:
        call.alloc_copy(source)
        _sort(call, source, with_order=unique.inverse)
    _compare(call, unique)


def _sort(call: OpCall, source: torch.Tensor, *, with_order: bool) -> None:
    """The order of the sorted elements if it is needed, and what sorting takes."""
    count, width = source.numel(), source.element_size()
    if not with_order:
        is_float = source.is_floating_point()
        call.alloc_and_free(cub.radix_sort(call.model, count, width, is_float=is_float))
        return
    numbers, _order = call.alloc_temps([count * INDEX] * 2)
    call.alloc_and_free(cub.radix_sort(call.model, count, width, INDEX))
    call.free_temp(numbers)


def _compare(call: OpCall, unique: _Unique) -> None:
    """The outputs, of full length, and what finding them takes: ``UniqueCub.cu``."""
    count, width = unique.tensor.numel(), unique.tensor.element_size()
    if unique.inverse:
        call.alloc_outputs(call.result[1])
        with call.scope():
            call.alloc_temps([count * (INDEX if unique.is_sorted else 4), cub.scan(count, 4)])
    call.alloc_outputs(call.result[0])
    with call.scope():
        call.alloc_temp(INDEX)
        if unique.counts:
            call.alloc_outputs(call.result[2])
            call.alloc_temp(cub.run_lengths(count, width))
        else:
            call.alloc_temp(cub.select(count, width))


def _compare_rows(call: OpCall, unique: _Unique) -> None:
    """Rows side by side, and their numbers; what Thrust takes to sort and compare is not known."""
    call.leave_out("memory of Thrust")
    rows = unique.tensor.moveaxis(unique.dim or 0, 0)
    call.alloc_contiguous(rows)
    call.alloc_temp(len(rows) * INDEX)
    if unique.inverse:
        with call.scope():
            call.alloc_temp(len(rows) * INDEX)
            call.alloc_outputs(call.result[1])
    if unique.counts:
        with call.scope():
            call.alloc_temp((len(rows) + 1) * INDEX)
            call.alloc_outputs(call.result[2])
    call.alloc_outputs(call.result[0])


def _register(name: str, called: str) -> None:
    op = getattr(_aten, name).default
    count = len(op._schema.returns)
    size = AssumedSize(called, DISTINCT, Bound.AT_MOST, called)

    def reference(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return _found(_unique(op, args, kwargs))[:count]

    def all_distinct(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _all_distinct(values, name, size, _unique(op, args, kwargs))[:count]

    estimated(
        f"aten::{name}",
        source=_SOURCE,
        reference=reference,
        data_dependence=DataDependence(outputs=all_distinct, size=size),
    )(lambda call: _memory(call, _unique(op, call.args, call.kwargs)))


_register("_unique", "unique")
_register("_unique2", "unique")
_register("unique_dim", "unique")
_register("unique_consecutive", "unique_consecutive")
_register("unique_dim_consecutive", "unique_consecutive")
