"""Copies between CPU and GPU, ops that read values, and ops that change how a storage is seen."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import TensorValues
from .core.memory_formats import is_dense
from .core.op_call import OpCall
from .core.registry import ZERO, DataDependence, define, op
from .sparse import written

_SOURCE: Final = "aten/src/ATen/native/cuda/Copy.cu"


@op("aten::_to_copy", source=_SOURCE, takes_cpu_tensors=True, may_leave_gpu=True)
def _to_copy(call: OpCall) -> None:
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    _alloc_staging(call, call.result, source, call.argument("non_blocking"))


@op("aten::copy_", source=_SOURCE, takes_cpu_tensors=True, sparse=written)
def _overwrite(call: OpCall) -> None:
    target, source = call.args[:2]
    _alloc_staging(call, target, source, call.argument("non_blocking"))


def _alloc_staging(
    call: OpCall, target: torch.Tensor, source: torch.Tensor, non_blocking: bool
) -> None:
    """The copies that ``copy_kernel_cuda`` stages on the GPU; the CPU stages the rest."""
    # A copy converts on the GPU if it need not wait.
    from_host = call.is_on_cpu(source)
    if from_host == call.is_on_cpu(target):
        return
    same = source.dtype == target.dtype
    if not source.numel() or (same and _are_laid_out_alike(target, source)):
        return
    count = target.numel()
    if from_host and non_blocking:
        if not (target.is_contiguous() and same):
            call.alloc_temp(count * source.element_size())
    elif from_host:
        if not target.is_contiguous():
            call.alloc_temp(count * target.element_size())
    elif non_blocking:
        converted = source
        if not same:
            converted = torch.empty_like(source, dtype=target.dtype, device="meta")
            call.alloc_copy(converted)
        if not (converted.is_contiguous() and source.shape == target.shape):
            call.alloc_temp(count * target.element_size())
    elif not (source.is_contiguous() and source.shape == target.shape):
        call.alloc_temp(count * source.element_size())


def _are_laid_out_alike(target: torch.Tensor, source: torch.Tensor) -> bool:
    """True if one copy of memory does: elements lie side by side, in the same order."""
    if target.is_contiguous() and source.is_contiguous():
        return target.shape == source.shape or target.numel() == 1
    if target.shape != source.shape or not is_dense(target):
        return False
    steps = zip(target.shape, target.stride(), source.stride(), strict=True)
    return all(size == 1 or stride == other for size, stride, other in steps)


define(
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::fill_.Tensor",
    "aten::to.*",
    takes_cpu_tensors=True,
)


def _scalar(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if tensor.dtype is torch.bool and values.answers:
        return values.answers.pop()
    _ITEM.count(values, "aten::_local_scalar_dense")
    if values.is_readable(tensor):
        return torch.ops.aten._local_scalar_dense.default(tensor)
    return torch.zeros((), dtype=tensor.dtype).item()


def _equal(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].dtype is torch.bool and not args[0].dim() and values.answers:
        return values.answers.pop()  # C++ compares a truth with a truth to read it
    _EQUAL.count(values, "aten::equal")
    return args[0].shape == args[1].shape


def _close(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].shape == args[1].shape


_ITEM: Final = DataDependence("Tensor.item", ZERO, _scalar, counts_itself=True)
_EQUAL: Final = DataDependence("equal", "equal", _equal, counts_itself=True)

define("aten::_local_scalar_dense", data_dependence=_ITEM)
define("aten::equal", data_dependence=_EQUAL)
define("aten::allclose", data_dependence=DataDependence("allclose", "equal", _close))


define("aten::_unsafe_view", "aten::lift", "aten::lift_fresh", touches_no_element=True)


@op("aten::_efficientzerotensor", source="aten/src/ATen/native/TensorFactories.cpp")
def _zeros_without_memory(call: OpCall) -> None:
    call.machine.label(call.result.untyped_storage(), call.gpu)


define("aten::resize_", resizes=True)
define("aten::resize_as_", "aten::set_.*", resizes=True, takes_cpu_tensors=True)
define(
    "aten::_has_same_storage_numel",
    "aten::is_same_size",
    "aten::is_set_to",
    "aten::tensor_split.*",
    takes_cpu_tensors=True,
)


def _check_is_on_cpu(
    _gpu: SimulatedGPU, _tensor: torch.Tensor, places: torch.Tensor, *_dim: int
) -> Any:
    """Composite: C++ reads the places that a tensor is split at."""
    if places.is_cuda:
        raise RuntimeError(
            "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
            f"{places.device}"
        )
    return NotImplemented


define("aten::tensor_split.tensor_indices_or_sections", cuda_dispatch=_check_is_on_cpu)
