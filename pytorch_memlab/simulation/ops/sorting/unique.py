"""Unique elements: CUDA returns them in memory that all elements would fill.

``compute_unique`` of ``aten/src/ATen/native/cuda/UniqueCub.cu`` makes results for the case that
all are distinct, and shortens them when it knows how many are. Those of rows are as large as they
show (``Unique.cu``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from .. import cub
from ..data_dependence import DISTINCT, DataDependence, options_after_first
from ..registry import estimated

if TYPE_CHECKING:
    from ...machine.tensor_values import TensorValues
    from ..op_call import OpCall

    Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_SOURCE: Final = "aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu"
_INDEX: Final = 8
_BOOLS: Final = 2
"""Distinct elements that CUDA has room for when it looks for those of a mask."""

_aten: Final = torch.ops.aten


def _unique2(
    tensor: torch.Tensor,
    is_sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensors:
    is_mask = tensor.dtype == torch.bool
    wants_counts = return_counts or is_mask
    found = _aten._unique2.default(tensor, True, return_inverse, wants_counts)
    return _shortened(tensor, found, _BOOLS if is_mask else tensor.numel())


def _unique_consecutive(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Tensors:
    if dim is not None:
        found = _aten.unique_dim_consecutive.default(tensor, dim, return_inverse, return_counts)
        return _wanted(found, return_inverse, return_counts)
    found = _aten.unique_consecutive.default(tensor, return_inverse, return_counts)
    return _shortened(tensor, found, tensor.numel())


def _wanted(found: Tensors, inverse: bool, counts: bool) -> Tensors:
    """Results of their own size, without elements where CUDA makes none."""
    result, inverse_indices, counts_of_rows = found
    return (
        result,
        inverse_indices if inverse else inverse_indices.new_empty(0),
        counts_of_rows.clone() if counts else counts_of_rows.new_empty(0),
    )


def _shortened(tensor: torch.Tensor, found: Tensors, room: int) -> Tensors:
    result, inverse, counts = found
    if not tensor.numel():
        return found
    return _in_room(result, room), inverse, _in_room(counts, room) if counts.numel() else counts


def _in_room(result: torch.Tensor, room: int) -> torch.Tensor:
    """A result in memory for more elements."""
    count = result.numel()
    whole = result.new_empty(room)
    whole[:count] = result
    return whole.resize_(count)


def _all_distinct(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    _, inverse, counts = options_after_first(
        args, kwargs, ("sorted", "return_inverse", "return_counts")
    )
    if tensor.dtype == torch.bool:
        return _make_unique(values, tensor, inverse, True, min(tensor.numel(), _BOOLS))
    return _make_unique(values, tensor, inverse, counts, tensor.numel())


def _all_change(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    inverse, counts, dim = options_after_first(
        args, kwargs, ("return_inverse", "return_counts", "dim")
    )
    if dim is not None:
        return _make_unique_rows(values, tensor, dim, inverse, counts)
    return _make_unique(values, tensor, inverse, counts, tensor.numel())


def _make_unique(
    values: TensorValues, tensor: torch.Tensor, inverse: Any, counts: Any, number: int
) -> Any:
    return (
        values.make((number,), tensor.dtype),
        values.make(tuple(tensor.shape) if inverse else (0,), torch.int64),
        values.make((number if counts else 0,), torch.int64),
    )


def _make_unique_rows(
    values: TensorValues, tensor: torch.Tensor, dim: int, inverse: Any, counts: Any
) -> Any:
    number = tensor.shape[dim]
    numbers = (values.make((number if wanted else 0,), torch.int64) for wanted in (inverse, counts))
    return values.make(tuple(tensor.shape), tensor.dtype), *numbers


@estimated(
    "aten::_unique2",
    source=_SOURCE,
    reference=_unique2,
    data_dependence=DataDependence("unique", DISTINCT, _all_distinct),
)
def _unique_memory(call: OpCall) -> None:
    """Elements are sorted first, those of a mask are counted."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.alloc_contiguous(source)
    if source.dtype == torch.bool:
        call.alloc_temp(4)
        call.alloc_and_free(cub.reduce(call.model, source.numel(), 4))
        result, inverse, *counts = call.result
        call.alloc_outputs(result, *counts, inverse)
        return
    inverse = call.argument(2, "return_inverse", False)
    call.alloc_copy(source)
    _sort(call, source, with_order=inverse)
    counts = call.argument(3, "return_counts", False)
    _compare(call, is_sorted=True, inverse=inverse, counts=counts)


estimated("aten::_unique", source=_SOURCE, reference=lambda *args: _unique2(*args)[:2])(
    _unique_memory
)


@estimated(
    "aten::unique_consecutive",
    source=_SOURCE,
    reference=_unique_consecutive,
    data_dependence=DataDependence("unique_consecutive", DISTINCT, _all_change),
)
def _unique_consecutive_memory(call: OpCall) -> None:
    """Elements are compared as they lie."""
    source: torch.Tensor = call.args[0]
    inverse = call.argument(1, "return_inverse", False)
    counts = call.argument(2, "return_counts", False)
    dim = call.argument(3, "dim")
    if dim is not None:
        _compare_rows(call, dim, inverse=inverse, counts=counts)
    elif source.numel():
        call.alloc_contiguous(source)
        _compare(call, is_sorted=False, inverse=inverse, counts=counts)


def _register_rows(name: str, called: str, options: tuple[str, ...]) -> None:
    """Distinct rows: they are sorted by their numbers, or compared as they lie."""
    run = getattr(_aten, name).default

    def reference(*args: Any, **kwargs: Any) -> Tensors:
        return _wanted(run(*args, **kwargs), *_inverse_and_counts(args, kwargs))

    def all_distinct(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = _inverse_and_counts(args, kwargs)
        return _make_unique_rows(values, args[0], args[1], *wanted)

    def memory(call: OpCall) -> None:
        inverse, counts = _inverse_and_counts(call.args, call.kwargs)
        _compare_rows(call, call.args[1], inverse=inverse, counts=counts)

    def _inverse_and_counts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return options_after_first(args[1:], kwargs, options)[-2:]

    estimated(
        f"aten::{name}",
        source=_SOURCE,
        reference=reference,
        data_dependence=DataDependence(called, DISTINCT, all_distinct),
    )(memory)


_register_rows("unique_dim", "unique", ("sorted", "return_inverse", "return_counts"))
_register_rows("unique_dim_consecutive", "unique_consecutive", ("return_inverse", "return_counts"))


def _sort(call: OpCall, source: torch.Tensor, *, with_order: bool) -> None:
    """The order of the sorted elements if it is needed, and what sorting takes."""
    count, width = source.numel(), source.element_size()
    is_float = source.is_floating_point()
    if not with_order:
        call.alloc_and_free(cub.radix_sort(call.model, count, width, is_float=is_float))
        return
    numbers = call.alloc_temp(count * _INDEX)
    call.alloc_temp(count * _INDEX)
    call.alloc_and_free(cub.radix_sort(call.model, count, width, _INDEX))
    call.free_temp(numbers)


def _compare(call: OpCall, *, is_sorted: bool, inverse: bool, counts: bool) -> None:
    """The outputs, of full length, and what finding them takes: ``UniqueCub.cu``."""
    source: torch.Tensor = call.args[0]
    count, width = source.numel(), source.element_size()
    if inverse:
        call.alloc_outputs(call.result[1])
        with call.scope():
            call.alloc_temps([count * (_INDEX if is_sorted else 4), cub.scan(count, 4)])
    call.alloc_outputs(call.result[0])
    with call.scope():
        call.alloc_temp(_INDEX)
        if counts:
            call.alloc_outputs(call.result[2])
            call.alloc_temp(cub.run_lengths(count, width))
        else:
            call.alloc_temp(cub.select(count, width))


def _compare_rows(call: OpCall, dim: int, *, inverse: bool, counts: bool) -> None:
    """Rows side by side, and their numbers; what Thrust takes to sort and compare is not known."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.unknown_workspace = "memory of Thrust"
    call.alloc_contiguous(source.moveaxis(dim, 0))
    rows = source.shape[dim]
    call.alloc_temp(rows * _INDEX)
    if inverse:
        with call.scope():
            call.alloc_temp(rows * _INDEX)
            call.alloc_outputs(call.result[1])
    if counts:
        with call.scope():
            call.alloc_temp((rows + 1) * _INDEX)
            call.alloc_outputs(call.result[2])
    call.alloc_outputs(call.result[0])
