"""Pointwise and foreach ops, logsigmoid, quantization: partial results, buffers, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..machine.simulated_gpu import SimulatedGPU
from ..machine.torch_release import RELEASE
from .core.cuda_dispatch import overload_named
from .core.low_precision import in_complex_single
from .core.memory_formats import acc_type, is_dense, laid_out_as, made_contiguous
from .core.op_call import OpCall
from .core.reduction_workspace import alloc_extremes_workspace, alloc_sum_workspace
from .core.registry import define, op
from .pooling import formatted_inputs
from .sparse import sparse_difference, sparse_product, sparse_sum

_CHUNK: Final = 65536
"""Elements that a block of threads takes: ``kChunkSize`` in ``cuda/MultiTensorApply.cuh``."""

_COMPACT_SINCE: Final = (2, 15)
"""Release in which sums of chunks lie side by side (pull request 190549)."""

_OFFSET: Final = 8
"""Bytes of an offset, from that release on."""

_NORMS: Final = ("aten::_foreach_norm.Scalar", "aten::_foreach_powsum.Scalar")
_SOURCE: Final = "aten/src/ATen/native/cuda/ForeachReduceOp.cu"


@op(*(_NORMS if hasattr(torch.ops.aten, "_foreach_powsum") else _NORMS[:1]), source=_SOURCE)
def _norms(call: OpCall) -> None:
    """Sums of chunks; tensors that differ in kind come one after another."""
    together = _norms_together(call)
    if together:
        dtype = call.argument("dtype") or call.args[0][0].dtype
        _collect(call, acc_type(dtype).itemsize)
    call.alloc_outputs()
    if not together:
        for tensor in call.args[0]:
            alloc_sum_workspace(call, tensor)


@op("aten::_foreach_max", source=_SOURCE)
def _max(call: OpCall) -> None:
    """The largest of each chunk; tensors that differ in kind come one after another."""
    together = _are_alike(call.args[0])
    if together:
        _collect(call, call.args[0][0].element_size())
    call.alloc_outputs()
    if not together:
        for tensor in call.args[0]:
            alloc_extremes_workspace(call, tensor)


def _collect(call: OpCall, width: int) -> None:
    """Allocate a partial result for each chunk."""
    # Until torch 2.14 every tensor has as many as the largest. Since then each has its own number,
    # and offsets tell where those of a tensor begin.
    chunks = [-(-tensor.numel() // _CHUNK) for tensor in call.args[0]]
    if RELEASE < _COMPACT_SINCE:
        call.alloc_temp(len(chunks) * max(chunks) * width)
        return
    call.alloc_temp((sum(map(bool, chunks)) + 1) * _OFFSET)
    call.alloc_temp(sum(chunks) * width)


def _norms_together(call: OpCall) -> bool:
    tensors: list[torch.Tensor] = call.args[0]
    order = call.argument("ord")
    return (
        order in (1, 2, float("inf"))
        and _are_alike(tensors)
        and all(tensor.is_floating_point() for tensor in tensors)
    )


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    first = tensors[0]
    return all(tensor.dtype == first.dtype and is_dense(tensor) for tensor in tensors)


_BOUNDS: Final = "aten/src/ATen/native/TensorCompare.cpp"


@op("aten::clamp", "aten::clamp_min", "aten::clamp_max", source=_BOUNDS)
def _clamp(call: OpCall) -> None:
    """Integers between bounds that are no integers are converted first."""
    dtype = call.result.dtype
    if call.args[0].dtype != dtype:
        call.alloc_temp(call.args[0].numel() * dtype.itemsize)
    call.alloc_outputs()


_aten: Final = torch.ops.aten
_MULTIPLIED: Final = frozenset(
    {"BinaryCrossEntropyBackward", "BinaryCrossEntropyWithLogitsBackward"}
)
_COMPARED: Final = frozenset({"MaxBackward", "MinBackward", "MedianBackward", "NanmedianBackward"})
# Equal bounds share a gradient from 2.14 on, and masks are read again after they were combined.
_CLAMPED: Final = frozenset({"ClampBackward"} if RELEASE < (2, 14) else ())


def _absolute(tensor: torch.Tensor) -> torch.Tensor:
    """Of masks too, which the CPU's kernel refuses."""
    return tensor.clone() if tensor.dtype is torch.bool else torch.abs(tensor)


define("aten::abs", reference=_absolute)


def _in_complex_single(op: Any) -> Callable[..., Any]:
    """The reference of an op of two operands, where their result is of complex half precision."""
    widening = in_complex_single(op)

    def compute(*args: Any, **kwargs: Any) -> Any:
        is_half = torch.result_type(*args[:2]) is torch.complex32
        return (widening if is_half else op)(*args, **kwargs)

    return compute


def _angle(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not torch.complex32:
        return torch.angle(tensor)
    return torch.angle(tensor.to(torch.complex64)).half()


_OF_COMPLEX_HALF: Final = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "rsqrt"),
    *("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
"""Ops that take complex half precision on CUDA (``Unary*.cu``)."""

for _name in _OF_COMPLEX_HALF:
    for _variant in (_name, f"{_name}_"):
        define(f"aten::{_variant}", reference=in_complex_single(getattr(_aten, _variant).default))
    define(f"aten::{_name}.out")  # the CPU's

_OF_TWO_COMPLEX_HALVES: Final = (
    *("div.Tensor", "div_.Tensor", "lerp.Scalar", "lerp_.Scalar", "lerp.Tensor", "lerp_.Tensor"),
    *("logaddexp", "pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Tensor", "pow_.Tensor"),
)
"""The same of ops of two operands (``Binary*.cu``, ``PowKernel.cu``, ``Lerp.cu``)."""

for _name in _OF_TWO_COMPLEX_HALVES:
    define(f"aten::{_name}", reference=_in_complex_single(overload_named(_name)))
define("aten::angle", reference=_angle)
define(  # the CPU's
    *("aten::angle.out", "aten::div.out", "aten::lerp.Scalar_out", "aten::lerp.Tensor_out"),
    *("aten::logaddexp.out", "aten::pow.Scalar_out", "aten::pow.Tensor_Scalar_out"),
    "aten::pow.Tensor_Tensor_out",
)
define(
    "aten::copysign.Tensor",
    "aten::div.Tensor_mode",
    "aten::floor_divide",
    "aten::hardsigmoid_backward",
    "aten::hardswish_backward",
    "aten::hardtanh_backward",
    "aten::logit_backward",
    "aten::native_dropout_backward",
    "aten::softplus_backward",
    "aten::xlogy.Tensor",
    corrects_meta=laid_out_as(0, 1),
)
define("aten::elu_backward", corrects_meta=laid_out_as(0, 5))
define(
    "aten::pow.Scalar",
    corrects_meta=made_contiguous,
    reference=_in_complex_single(_aten.pow.Scalar),
)
define("aten::add.Tensor", in_place_in=frozenset(), composite_of_sparse=sparse_sum)
define("aten::sub.Tensor", in_place_in=_MULTIPLIED, composite_of_sparse=sparse_difference)
define("aten::mul.Tensor", in_place_in=_MULTIPLIED, composite_of_sparse=sparse_product)
define("aten::logical_and", in_place_in=_CLAMPED | _COMPARED)
define("aten::logical_or", in_place_in=_CLAMPED)
define("aten::_fused_adam_.tensor_lr", "aten::_fused_adamw_.tensor_lr", takes_cpu_tensors=True)


def _reference(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result, _ = torch.ops.aten.log_sigmoid_forward.default(tensor)
    return torch.empty_like(tensor).copy_(result), tensor.new_empty(0)


def _backward_reference(
    grad_output: torch.Tensor, tensor: torch.Tensor, _buffer: torch.Tensor
) -> Any:
    _, buffer = torch.ops.aten.log_sigmoid_forward.default(tensor)
    return torch.ops.aten.log_sigmoid_backward.default(grad_output, tensor, buffer)


define("aten::log_sigmoid_forward", values=_reference)
define("aten::log_sigmoid_backward", reference=_backward_reference)


def _meta(tensor: torch.Tensor, *_others: object) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch has no meta kernel: a rounded tensor, and a mask of what was not clamped."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


op(
    "aten::quantize_per_tensor",
    "aten::dequantize.self",
    source="aten/src/ATen/quantized/Quantizer.cpp",
)(formatted_inputs(0))

define(
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    meta=_meta,
)


@op(
    "aten::fake_quantize_per_channel_affine_cachemask",
    source="aten/src/ATen/native/quantized/FakeQuantPerChannelAffine.cpp",
    meta=_meta,
)
def _check_zero_points(call: OpCall) -> None:
    """The CPU reads the smallest and the largest zero point, to check them."""
    zero_point: torch.Tensor = call.args[2]
    if zero_point.is_floating_point():
        return
    with call.scope():
        for _smallest_and_largest in range(2):
            call.alloc_temp(zero_point.element_size())
            alloc_extremes_workspace(call, zero_point)


def _refuse_scalars(gpu: SimulatedGPU, *_args: Any, **_kwargs: Any) -> Any:
    """``convert_tensor_to_scalar_list`` of ``ForeachUtils.h``, which reads numbers on the CPU."""
    raise RuntimeError(f"Expected scalars to be on CPU, got {gpu.device} instead.")


define(
    "aten::_foreach_addcdiv.Tensor",
    "aten::_foreach_addcdiv_.Tensor",
    "aten::_foreach_addcmul.Tensor",
    "aten::_foreach_addcmul_.Tensor",
    composite=_refuse_scalars,
)
