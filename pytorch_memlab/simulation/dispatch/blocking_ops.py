"""Ops after which the host has waited for the GPU: they bring values or sizes to it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..machine.machine import HOST
from ..machine.op_arguments import tensors_in

if TYPE_CHECKING:
    from ..machine.machine import Machine

_aten = torch.ops.aten
_VALUES_REACH_THE_HOST = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_BY_INDEX = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
)


def wait(
    machine: Machine, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Wait for the current stream of the GPU, if CUDA's op does.

    Args:
        machine: the simulated machine.
        op: that ran.
        args: its arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    index = _gpu_waited_for(machine, op, args, kwargs, result)
    if index != HOST:
        machine.synchronize_stream(index, machine.current_stream(index))


def _gpu_waited_for(
    machine: Machine, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> int:
    if op is _aten._to_copy.default:
        is_blocking = not kwargs.get("non_blocking")
        return _gpu_of_copy(machine, args[0], result) if is_blocking else HOST
    if op is _aten.copy_.default:
        target, source = args[:2]
        index = _gpu_of_copy(machine, source, target)
        is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        is_pageable = machine.place_of(target) == HOST and machine.pinned.find(target) is None
        return index if is_blocking or is_pageable else HOST
    if _brings_values(op) and (op._schema.name not in _BY_INDEX or _is_masked(args)):
        places = map(machine.place_of, tensors_in(args, kwargs))
        return next((place for place in places if place != HOST), HOST)
    return HOST


def _gpu_of_copy(machine: Machine, source: torch.Tensor, target: torch.Tensor) -> int:
    """The GPU of a copy to or from the host; ``HOST`` for a copy that stays where it is."""
    places = machine.place_of(source), machine.place_of(target)
    return max(places) if HOST in places else HOST


@functools.cache
def _brings_values(op: Any) -> bool:
    return op._schema.name in _BY_INDEX or not _VALUES_REACH_THE_HOST.isdisjoint(op.tags)


def _is_masked(args: tuple[Any, ...]) -> bool:
    """Whether indices are masks, whose elements are counted first."""
    return any(
        isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1]
    )
