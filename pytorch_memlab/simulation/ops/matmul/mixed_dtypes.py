"""Products of matrices in another dtype than theirs, which only CUDA has, or restricts.

``aten/src/ATen/native/cuda/Blas.cpp``: float32 products of half precision, int32 of int8, float8.
``torch.nn.functional.grouped_mm`` multiplies matrices of many experts in one call. Its memory is
pointers and sizes of the groups, and CUTLASS's descriptors of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..core.memory_formats import LOW_PRECISION
from ..core.op_call import FLOAT, OpCall
from ..core.registry import estimated, op
from . import cublaslt
from .cublas import SOURCE, addmm_memory, batched_memory, copy_unreadable, mm_memory

_aten: Final = torch.ops.aten


def _widened(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product of tensors that are converted first, on the CPU or the meta device."""

    def compute(*args: Any, **factors: float) -> torch.Tensor:
        *tensors, dtype = args
        factor_dtype = tensors[-2].dtype
        if dtype != factor_dtype and not (factor_dtype in LOW_PRECISION and dtype == torch.float32):
            raise RuntimeError(
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
            )
        return product(*(tensor.to(dtype) for tensor in tensors), **factors)

    return compute


def _baddbmm(bias: torch.Tensor, *args: Any, **factors: float) -> torch.Tensor:
    result = _widened(torch.baddbmm)(bias, *args, **factors)
    if bias.shape != result.shape:
        raise RuntimeError("self must have the same shape as the output")
    return torch.empty_like(bias, dtype=result.dtype).copy_(result)


def _into_out(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The overload with ``out=``, on the CPU or the meta device."""

    def write(*args: Any, out: torch.Tensor, **factors: float) -> torch.Tensor:
        dtype = args[-1]
        if dtype != out.dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        result = product(*args, **factors)
        return out.resize_(result.shape).copy_(result)

    return write


def _int_mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of the sizes, types and layouts that CUDA takes."""
    _check_sizes(first, second)
    _check_layout(first, second)
    product: torch.Tensor = _aten._int_mm.default(first, second)
    return product


def _check_sizes(first: torch.Tensor, second: torch.Tensor) -> None:
    for name, tensor in (("self", first), ("mat2", second)):
        if tensor.dim() != 2:
            raise RuntimeError(f"Expected {name} to be of dimension 2 but got {tensor.dim()}")
    rows, inner = first.shape
    if rows <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {rows}")
    for name, size in (("self", inner), ("mat2", second.shape[1])):
        if name == "mat2" and inner != second.shape[0]:
            raise RuntimeError(
                f"self.size(1) needs to match mat2.size(0) but got {inner} and {second.shape[0]}"
            )
        if not size or size % 8:
            raise RuntimeError(
                f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
            )


def _check_layout(first: torch.Tensor, second: torch.Tensor) -> None:
    """CuBLASLt reads no transposed first matrix of integers."""
    for tensor in (first, second):
        if tensor.dtype != torch.int8:
            dtype_name = _SCALAR_TYPES.get(tensor.dtype, str(tensor.dtype))
            raise RuntimeError(f"expected scalar type Char but found {dtype_name}")
    if not first.is_contiguous() and first.t().is_contiguous():
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul with "
            f"transpose_mat1 {int(second.t().is_contiguous())} transpose_mat2 1"
        )


_SCALAR_TYPES: Final = {
    torch.uint8: "Byte",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
}
"""PyTorch's names of types of numbers, in errors."""


def _int_mm_into(first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    _check_sizes(first, second)
    if out.dtype != torch.int32:
        raise RuntimeError(f"Expected result dtype to be of type kInt but got {_c_name(out.dtype)}")
    for dim, size in enumerate((first.shape[0], second.shape[1])):
        if out.shape[dim] != size:
            raise RuntimeError(f"Expected result.size({dim}) to be {size} but got {out.shape[dim]}")
    if not out.is_contiguous():
        raise RuntimeError("Expected result to be contiguous.")
    return out.copy_(_int_mm(first, second))


def _c_name(dtype: torch.dtype) -> str:
    """The name of a type in C++, such as ``float`` or ``signed char``."""
    names = {torch.float32: "float", torch.float64: "double", torch.int64: "long"}
    names |= {torch.int8: "signed char", torch.uint8: "unsigned char"}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def _addmm_memory(call: OpCall) -> None:
    """The output has the size of the bias first, and is resized to that of the product."""
    bias: torch.Tensor = call.args[0]
    result: torch.Tensor = call.result
    if bias.shape != result.shape:
        first = call.alloc_temp(bias.numel() * result.element_size())
        call.alloc_outputs(result)
        call.free_temp(first)
    addmm_memory(call)


def _baddbmm_memory(call: OpCall) -> None:
    """The output is a converted copy of a copy of the bias."""
    bias: torch.Tensor = call.args[0]
    if bias.dtype != call.result.dtype:
        copy = call.alloc_copy(bias)
        call.alloc_outputs(call.result)
        call.free_temp(copy)
    batched_memory(call)


for _name, _product, _memory, _out_memory in (
    ("mm", _widened(torch.mm), mm_memory, mm_memory),
    ("bmm", _widened(torch.bmm), batched_memory, batched_memory),
    ("addmm", _widened(torch.addmm), _addmm_memory, addmm_memory),
    ("baddbmm", _baddbmm, _baddbmm_memory, batched_memory),
):
    _write = _into_out(_product)
    op(f"aten::{_name}.dtype", source=SOURCE, reference=_product, meta=_product)(_memory)
    op(f"aten::{_name}.dtype_out", source=SOURCE, reference=_write, meta=_write)(_out_memory)


@op("aten::_int_mm.out", source=SOURCE, reference=_int_mm_into, meta=_int_mm_into)
@op("aten::_int_mm", source=SOURCE, reference=_int_mm, meta=_int_mm)
def _int_mm_memory(call: OpCall) -> None:
    """CuBLASLt is given no workspace, but its handle may come with that of cuBLAS."""
    call.alloc_outputs()
    copy_unreadable(call, *call.args[:2])
    if cublaslt.handle_needs_cublas():
        call.ensure_cublas_workspace()


_OLDEST: Final = (8, 9)
_ROW_WISE: Final = 1
_BLOCKS_OF_32: Final = 3
"""Codes of ``torch.nn.functional.ScalingType``."""


@estimated(
    "aten::_scaled_mm",
    "aten::_scaled_mm_v2",
    source="aten/src/ATen/native/cuda/ScaledBlas.cpp, aten/src/ATen/cuda/CUDABlas.cpp",
)
def _scaled_mm_memory(call: OpCall) -> None:
    """The workspace of cuBLASLt, and the product of two scales of whole matrices."""
    # The operands are never copied: one that is not row-major, or column-major in the second's
    # case, is an error. With a scale for each row, or with numbers of 4 bits in blocks of 32,
    # another library may multiply, whose workspace only it knows.
    if (call.model.major, call.model.minor) < _OLDEST:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 "
            "or 8.9, or ROCm MI300+"
        )
    call.alloc_outputs()
    first, second = call.args[:2]
    if not first.numel() or not second.numel():
        return
    scales, recipes = call.argument("scale_a"), call.argument("recipe_a")
    if recipes is not None and len(scales) > 1:
        call.alloc_temp(FLOAT)
    cublaslt.need(call)
    if recipes is None:
        recipes = [_ROW_WISE if scales.numel() > 1 else None]
    if recipes[0] == _ROW_WISE:
        call.leave_out("workspaces of row-wise scaled products")
    elif recipes[0] == _BLOCKS_OF_32 and "float4" in str(first.dtype):
        call.leave_out("workspaces of MSLK")


_ALIGNMENT: Final = 16
"""Bytes that the rows of the result are aligned to (aten/src/ATen/native/GroupedMMUtils.h)."""

_POINTER: Final = 8
_SIZES: Final = 12
"""Bytes of a group's sizes: three integers of 32 bits."""

_DESCRIPTOR: Final = 128
"""Bytes of a ``CUtensorMap``."""

_DESCRIPTORS: Final = {9: 5, 10: 4}
"""By major compute capability, how many each multiprocessor has: two operands, and two or three for
the result (CUTLASS: ``get_workspace_size`` of the mainloops and epilogues of pointer arrays)."""


def grouped_mm_meta(
    left: torch.Tensor,
    right: torch.Tensor,
    ends: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Of all dtypes: PyTorch's own meta kernel refuses all but bfloat16.

    >>> left, right = torch.empty(10, 8, device="meta"), torch.empty(2, 6, 8, device="meta").mT
    >>> product = grouped_mm_meta(left, right, torch.empty(2, device="meta"))
    >>> product.shape, product.stride()
    (torch.Size([10, 6]), (8, 1))
    """
    if (left.dim() == 3 or right.dim() == 3) and left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    for matrix in (left, right):
        _check_strides(matrix)
    dtype = dtype or left.dtype
    rows, columns = left.shape[-2], right.shape[-1]
    if left.dim() == right.dim():
        groups = left.shape[0] if ends is None else ends.shape[0]
        size: tuple[int, ...] = (groups, rows, columns)
    else:
        size = (rows, columns)
    padded = -(-columns * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT // dtype.itemsize
    stride = (rows * padded, padded, 1)[-len(size) :]
    return torch.empty_strided(size, stride, dtype=dtype, device=left.device)


def _check_strides(matrix: torch.Tensor) -> None:
    """Refuse what the kernels cannot read, such as the expanded gradient of a sum."""
    for along, across in ((-2, -1), (-1, -2)):
        step = matrix.stride(across)
        if matrix.stride(along) == 1 and step >= max(1, matrix.shape[along]):
            if step * matrix.element_size() % _ALIGNMENT:
                raise RuntimeError("strides should be multiple of 16 bytes")
            return
    raise RuntimeError(
        f"Invalid strides/sizes, got {list(matrix.stride())} for strides and "
        f"{list(matrix.shape)} for sizes"
    )


@estimated(
    "aten::_grouped_mm",
    source="aten/src/ATen/native/cuda/GroupMM.cu, GroupedBlas.cpp",
    meta=grouped_mm_meta,
)
def _grouped_mm_memory(call: OpCall) -> None:
    """One kernel for bfloat16 on GPUs that have it, otherwise a product per group."""
    call.alloc_outputs()
    left: torch.Tensor = call.args[0]
    right: torch.Tensor = call.args[1]
    descriptors = _DESCRIPTORS.get(call.model.major)
    if descriptors is None or {left.dtype, right.dtype} != {torch.bfloat16}:
        call.ensure_cublas_workspace()
        return
    ends = call.argument("offs")
    call.alloc_temp(arguments_size(left.shape[0] if ends is None else ends.shape[0]))
    call.alloc_temp(descriptors * _DESCRIPTOR * call.model.multi_processor_count)


def arguments_size(groups: int) -> int:
    """Bytes of what tells the kernel where its groups are: pointers, strides and sizes.

    >>> arguments_size(8), arguments_size(3)
    (480, 204)
    """
    even = groups + groups % 2
    return 3 * even * _POINTER + groups * _SIZES + 3 * groups * _POINTER
