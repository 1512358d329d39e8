"""Outputs that a simulated GPU cannot hold: refused before they fill host memory."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..machine.op_arguments import Args, Kwargs
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import uncommitted
from ..ops.meta_results import MetaResults, TensorMeta, tensors_of
from ..ops.op_info import OpInfo

_LARGEST_ELEMENT = 16
"""Bytes of a complex number of two doubles."""


class LargeOutputs:
    """Foresees the outputs of ops that are too large."""

    def __init__(self) -> None:
        self._results = MetaResults()

    def of(self, func: Any, info: OpInfo, gpu: SimulatedGPU, args: Args, kwargs: Kwargs) -> Any:
        """The outputs of a call, without values, if no more fits on a GPU; None otherwise."""
        if info.is_foreach or info.data_dependence is not None:
            return None
        try:
            if _most_elements(info, args) * _LARGEST_ELEMENT <= gpu.model.total_memory:
                return None
            result = self._results.of(info, func, args, kwargs).result
        except Exception:  # tensors without one storage, or a call that the op itself refuses
            return None
        new = {one.fresh: one.numel * one.dtype.itemsize for one in _new_tensors(result)}
        return _made(result) if sum(new.values()) > gpu.room() else None


def _most_elements(info: OpInfo, args: Args) -> float:
    """A number that the elements of an op's outputs do not exceed, as far as sizes decide it.

    Outputs are as large as one argument, all pairs of elements of two, or what numbers say.
    """
    if info.is_factory and not any(isinstance(value, (list, tuple)) for value in args):
        return math.inf  # as for ``arange``, whose step may be small
    most = 1.0
    for value in args:
        if isinstance(value, torch.Tensor):
            most *= value.nbytes // value.itemsize + 1  # ``torch.jit.trace`` does not see these
        elif isinstance(value, (list, tuple)):
            sizes = [abs(one) + 1 for one in value if isinstance(one, (int, float))]
            numel = sum(one.nbytes for one in value if isinstance(one, torch.Tensor))
            most *= math.prod(sizes, start=float(numel + 1))
    return most


def _new_tensors(result: Any) -> list[TensorMeta]:
    return [one for one in tensors_of(result) if one.argument < 0]


def _made(result: Any) -> Any:
    if isinstance(result, TensorMeta):
        return uncommitted(result.size, result.stride, result.dtype)
    return [_made(one) for one in result] if isinstance(result, list) else result
