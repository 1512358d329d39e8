"""Ops that make the CPU wait for the GPU: they copy values or sizes to it."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..machine.captures import Capture
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, is_mask, tensors_in
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.torch_release import RELEASE
from ..ops.core.op_info import op_info

_CHECKS_PINNED: Final = (2, 9)
"""Release from which ``aten/src/ATen/native/cuda/Copy.cu`` looks at the memory of the CPU."""

_aten = torch.ops.aten
_VALUES_REACH_THE_CPU = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def wait(machine: Machine, op: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
    """Wait for the current stream of the GPU, if CUDA's op does."""
    gpu = _gpu_waited_for(machine, op, args, kwargs, result)
    if gpu is not None:
        machine.synchronize_stream(gpu.index, machine.current_stream(gpu.index))


def refuse_in_capture(
    machine: Machine, capture: Capture, op: Any, args: Args, kwargs: Kwargs, result: Any
) -> None:
    """Refuse what copies from or to memory that is not pinned, or waits for the GPU."""
    # Raises RuntimeError: that of PyTorch's check, or that of CUDA, which ends the capture.
    if op in (_aten._to_copy.default, _aten.copy_.default):
        source, target = (args[0], result) if op is _aten._to_copy.default else (args[1], args[0])
        hosts = [tensor for tensor in (source, target) if machine.gpu_of(tensor) is None]
        if len(hosts) == 1 and RELEASE >= _CHECKS_PINNED and not machine.is_pinned(hosts[0]):
            raise RuntimeError(
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU "
                "tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with "
                "pin_memory=True."
            )
    if _gpu_waited_for(machine, op, args, kwargs, result) is not None:
        raise capture.fail("cudaErrorStreamCaptureUnsupported")


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
    gpu, other = machine.gpu_of(source), machine.gpu_of(target)
    return gpu or other if gpu is None or other is None else None
