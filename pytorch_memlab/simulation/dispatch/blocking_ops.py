"""Ops that make the CPU wait for the GPU: they copy values or sizes to it."""

from __future__ import annotations

from typing import Any

import torch

from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, is_mask, tensors_in
from ..machine.simulated_gpu import SimulatedGPU
from ..ops.op_info import op_info

_aten = torch.ops.aten
_VALUES_REACH_THE_CPU = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def wait(machine: Machine, op: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
    """Wait for the current stream of the GPU, if CUDA's op does."""
    gpu = _gpu_waited_for(machine, op, args, kwargs, result)
    if gpu is not None:
        machine.synchronize_stream(gpu.index, machine.current_stream(gpu.index))


def _gpu_waited_for(
    machine: Machine, op: Any, args: Args, kwargs: Kwargs, result: Any
) -> SimulatedGPU | None:
    if op is _aten._to_copy.default:
        is_blocking = not kwargs.get("non_blocking")
        return _gpu_of_copy(machine, args[0], result) if is_blocking else None
    if op is _aten.copy_.default:
        target, source = args[:2]
        gpu = _gpu_of_copy(machine, source, target)
        is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        is_pageable = machine.gpu_of(target) is None and not machine.is_pinned(target)
        return gpu if is_blocking or is_pageable else None
    if op_info(op).takes_masks:
        waits = any(map(is_mask, args[1]))  # their elements are counted first
    else:
        waits = not _VALUES_REACH_THE_CPU.isdisjoint(op.tags)
    if waits:
        gpus = map(machine.gpu_of, tensors_in(args, kwargs))
        return next((gpu for gpu in gpus if gpu is not None), None)
    return None


def _gpu_of_copy(
    machine: Machine, source: torch.Tensor, target: torch.Tensor
) -> SimulatedGPU | None:
    """The GPU of a copy to or from the CPU, None for any other copy."""
    one, other = machine.gpu_of(source), machine.gpu_of(target)
    return one or other if one is None or other is None else None
