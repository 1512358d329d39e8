"""Reductions: the buffer in which blocks of threads stage partial results, and its semaphores."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from .launch_config import reduction_of, staging_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..gpus import GPU
    from .launch import Launch

_INT32_INDEXING = 2**31 - 1

_ACCUMULATED_IN = {
    torch.float16: 4,
    torch.bfloat16: 4,
    torch.float32: 4,
    torch.float64: 8,
    torch.complex64: 8,
    torch.complex128: 16,
}
"""Bytes of the type that a sum of each dtype is accumulated in; integers take 8."""

_VALUE_AND_INDEX = 16
"""Bytes of a pair of a value of up to 8 bytes and its index."""


def sums(dim_position: int | None, dtype_position: int | None = None) -> Callable[[Launch], None]:
    """``sum``, ``mean``, ``prod``, norms: an accumulator of the type's own width or 4 bytes.

    Args:
        dim_position: of the reduced dimensions among the op's arguments, None if it has none.
        dtype_position: of the ``dtype`` argument, None if there is none.

    Returns:
        the entry's function.
    """

    def take(launch: Launch) -> None:
        result = launch.result
        source: torch.Tensor = launch.args[0]
        if dtype_position is not None and _is_cast_first(source.dtype, result.dtype):
            launch.borrow(source.numel() * result.element_size())
        _stage(launch, dim_position, _ACCUMULATED_IN.get(result.dtype, 8))

    return take


def values_and_indices(dim_position: int) -> Callable[[Launch], None]:
    """``max``, ``min``, ``argmax`` of a dimension: the accumulator is a value and its index.

    Args:
        dim_position: of the reduced dimension among the op's arguments.

    Returns:
        the entry's function.
    """
    return lambda launch: _stage(launch, dim_position, _VALUE_AND_INDEX)


def values(dim_position: int | None) -> Callable[[Launch], None]:
    """``amax``, ``amin``, ``all``, ``any``: the accumulator is an element of the result.

    Args:
        dim_position: of the reduced dimensions among the op's arguments, None if it has none.

    Returns:
        the entry's function.
    """
    return lambda launch: _stage(launch, dim_position, launch.result.element_size())


def moments(dim_position: int | None) -> Callable[[Launch], None]:
    """``var`` and ``std``: the accumulator is a mean, a sum of squares and two counts.

    Args:
        dim_position: of the reduced dimensions among the op's arguments, None if it has none.

    Returns:
        the entry's function.
    """

    def take(launch: Launch) -> None:
        size = 32 if launch.args[0].dtype == torch.float64 else 16
        _stage(launch, dim_position, size, vector=2)

    return take


def _is_cast_first(source: torch.dtype, result: torch.dtype) -> bool:
    """Whether a sum's input is copied to the result's dtype: not for half to float."""
    if source == result:
        return False
    return not (result == torch.float32 and source in (torch.float16, torch.bfloat16))


def _stage(launch: Launch, dim_position: int | None, size: int, vector: int = 4) -> None:
    source: torch.Tensor = launch.args[0]
    if not 0 < source.numel() <= _INT32_INDEXING:
        return
    dims = None if dim_position is None else launch.argument(dim_position, "dim")
    reduced = _reduced(dims, source.dim())
    threads = 256 if source.dtype == torch.complex128 else 512
    staging = _staging(
        tuple(source.shape), source.stride(), reduced, launch.gpu.model, (size, threads, vector)
    )
    if staging is not None:
        buffer, semaphores = staging
        launch.borrow(buffer)
        launch.borrow(semaphores)


@lru_cache(4096)
def _staging(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
    gpu: GPU,
    kernel: tuple[int, int, int],
) -> tuple[int, int] | None:
    return staging_of(reduction_of(sizes, strides, reduced), gpu, *kernel)


def _reduced(dims: int | list[int] | None, count: int) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(count))
    if isinstance(dims, int):
        dims = [dims]
    return tuple(dim % count if count else 0 for dim in dims)
