"""Products of matrices in another dtype than theirs, which CUDA alone has or restricts.

``aten/src/ATen/native/cuda/Blas.cpp``: float32 products of half precision, and int32 of int8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..memory_formats import LOW_PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable

_aten: Final = torch.ops.aten


def mm(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``mm.dtype`` computed on the host."""
    _check(first, dtype)
    return torch.mm(first.to(dtype), second.to(dtype))


def bmm(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``bmm.dtype`` computed on the host."""
    _check(first, dtype)
    return torch.bmm(first.to(dtype), second.to(dtype))


def addmm(
    bias: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """``addmm.dtype`` computed on the host."""
    _check(first, dtype)
    wide = (one.to(dtype) for one in (bias, first, second))
    return torch.addmm(*wide, beta=beta, alpha=alpha)


def addmm_shape(
    _bias: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    dtype: torch.dtype,
    **_factors: float,
) -> torch.Tensor:
    """Shape of what ``addmm`` returns: a tensor without contents."""
    result: torch.Tensor = _aten.mm.dtype(first, second, dtype)
    return result


def baddbmm(
    bias: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """``baddbmm.dtype`` computed on the host."""
    _check(first, dtype)
    wide = (one.to(dtype) for one in (bias, first, second))
    found = torch.baddbmm(*wide, beta=beta, alpha=alpha)
    _check_bias(bias, found)
    return torch.empty_like(bias, dtype=dtype).copy_(found)


def baddbmm_shape(
    bias: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    dtype: torch.dtype,
    **_factors: float,
) -> torch.Tensor:
    """Shape of what ``baddbmm`` returns: PyTorch's own meta kernel fails."""
    _check_bias(bias, _aten.bmm.dtype(first, second, dtype))
    return torch.empty_like(bias, dtype=dtype)


def into_out(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The variant with ``out=`` of one of these products, on the host or the meta device."""

    def write(*args: Any, out: torch.Tensor, **factors: float) -> torch.Tensor:
        dtype = args[-1]
        if dtype != out.dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        found = product(*args, **factors)
        return out.resize_(found.shape).copy_(found)

    return write


def int_mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """``_int_mm``, on the host or the meta device, of the sizes that CUDA takes."""
    if first.dim() == second.dim() == 2:
        if first.shape[0] <= 16:
            raise RuntimeError(
                f"self.size(0) needs to be greater than 16, but got {first.shape[0]}"
            )
        for name, size in (("self", first.shape[1]), ("mat2", second.shape[1])):
            if not size or size % 8:
                raise RuntimeError(
                    f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
                )
    product: torch.Tensor = _aten._int_mm.default(first, second)
    return product


def _check(matrix: torch.Tensor, dtype: torch.dtype) -> None:
    widens = matrix.dtype in LOW_PRECISION and dtype == torch.float32
    if dtype != matrix.dtype and not widens:
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")


def _check_bias(bias: torch.Tensor, product: torch.Tensor) -> None:
    if bias.shape != product.shape:
        raise RuntimeError("self must have the same shape as the output")
