"""Outputs that a simulated GPU cannot hold: refused before they fill host memory.

Asking PyTorch for the shape of an op's outputs takes time, and imports much at first. So a call is
asked about only where the sizes of its arguments allow outputs as large as the whole GPU.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..machine.op_arguments import Args
from ..machine.simulated_gpu import SimulatedGPU
from ..ops.core.meta_results import MetaResults, TensorMeta, tensors_of
from ..ops.core.op_info import OpInfo
from .dispatched_call import DispatchedCall

_LARGEST_ELEMENT = 16  # bytes of a complex number of two doubles


class LargeOutputs:
    """Foresees the outputs of ops that are too large, and refuses them."""

    def __init__(self) -> None:
        self._results = MetaResults()

    def refuse(self, call: DispatchedCall, gpu: SimulatedGPU) -> None:
        """Fail for lack of memory before host memory is full."""
        if not _are_possible(call, gpu):
            return
        outputs = self._of(call, gpu)
        if outputs is not None:
            refused = call.again()
            refused.outputs_on = gpu
            refused.allocate(gpu, outputs)

    def _of(self, call: DispatchedCall, gpu: SimulatedGPU) -> Any:
        """The outputs of a call, without values, if no more fits on a GPU; None otherwise."""
        info = call.info
        try:
            most = _most_elements(call.op, info, call.args)
            if most * _LARGEST_ELEMENT <= gpu.model.total_memory:
                return None
            result = self._results.of(info, call.op, call.args, call.kwargs).result
        except Exception:  # tensors without one storage, or a call that the op itself refuses
            return None
        new = [output for output in tensors_of(result) if output.argument < 0]
        nbytes = {output.fresh: output.numel * output.dtype.itemsize for output in new}
        return _made(result) if sum(nbytes.values()) > gpu.room() else None


def _are_possible(call: DispatchedCall, gpu: SimulatedGPU) -> bool:
    """False if the arguments of an op are too small: the first question, asked at every call."""
    info, most = call.info, _LARGEST_ELEMENT
    for value in call.args:
        if isinstance(value, torch.Tensor):
            most *= value.numel() + 1
        elif info.sizes and isinstance(value, (list, tuple)):
            for extent in value:
                most *= abs(extent) + 1
        elif info.is_factory and value:
            return True  # ``arange``, whose step may be small
    return most > gpu.model.total_memory


def _most_elements(func: Any, info: OpInfo, args: Args) -> float:
    """The most elements that the outputs may have, as far as sizes of arguments tell it."""
    most = 1.0
    if info.sizes:
        sizes = [args[place] or () for place in info.sizes if place < len(args)]
        most = math.prod((abs(extent) + 1 for size in sizes for extent in size), start=most)
    elif info.is_factory:
        # The step of ``arange`` may be small.
        numbers = [abs(value) for value in args if isinstance(value, (int, float)) and value]
        most = math.prod((max(number + 1, 1 / number) for number in numbers), start=most)
        return most**2 if func is torch.ops.aten.eye.default else most
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if not tensors:
        return most
    first, last = tensors[0], tensors[-1]
    if info.is_pointwise:
        if all(tensor.shape == first.shape for tensor in tensors):
            return most * first.numel()
        return float(math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors))))
    most *= first.numel()
    if len(tensors) > 1 and first.dim() and last.dim():
        left = tensors[-2]
        if left.dim() == last.dim() > 1 and left.shape[-1] == last.shape[-2]:  # a product
            most = max(most, left.numel() // max(left.shape[-1], 1) * last.shape[-1])
        if not last.is_floating_point():  # indices of rows
            most = max(most, last.numel() * first.shape[-1])
    return most


def _made(result: Any) -> Any:
    if isinstance(result, TensorMeta):
        return torch.empty_strided(result.size, result.stride, dtype=result.dtype, device="meta")
    return [_made(output) for output in result] if isinstance(result, list) else result
