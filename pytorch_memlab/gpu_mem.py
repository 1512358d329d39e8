"""``gpu_mem_get`` and its siblings: the memory of whole GPUs, in MB.

MB are 2**20 bytes here, rounded down. Used and free are those of the whole GPU, all
processes included; for allocated bytes of this process see ``GPUMemTrace`` and
``PeakScope``.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NamedTuple

from ._common.text.quoted import quoted
from .devices import get_device
from .devices.allocations import count_gpus, current_gpu, driver_memory, empty_caches
from .errors import UnknownDeviceError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = [
    "GPUMemory",
    "b2mb",
    "gpu_mem_allocate_mbs",
    "gpu_mem_get",
    "gpu_mem_get_all",
    "gpu_mem_get_free",
    "gpu_mem_get_free_mbs",
    "gpu_mem_get_free_no_cache",
    "gpu_mem_get_free_no_cache_mbs",
    "gpu_mem_get_mbs",
    "gpu_mem_get_total_mbs",
    "gpu_mem_get_used",
    "gpu_mem_get_used_fast",
    "gpu_mem_get_used_mbs",
    "gpu_mem_get_used_no_cache",
    "gpu_mem_get_used_no_cache_mbs",
    "gpu_mem_leave_free_mbs",
    "gpu_with_max_free_mem",
    "preload_pytorch",
    "reduce_mem_usage",
]

_MB = 2**20


class GPUMemory(NamedTuple):
    """Memory of a GPU in MB.

    Args:
        total: of the GPU.
        free: not used by any process.
        used: total less free, in bytes, then rounded down.
    """

    total: int
    free: int
    used: int


_NONE = GPUMemory(0, 0, 0)


def b2mb(num: float) -> int:
    """Bytes as whole MB.

    Args:
        num: bytes.

    Returns:
        ``int(num / 2**20)``.

    >>> b2mb(3 * 2**20 - 1)
    2
    """
    return int(num / _MB)


def preload_pytorch(device_id: int | None = None) -> None:
    """Make the CUDA context now, so that no measurement has to pay for it; nothing without a GPU.

    Args:
        device_id: index of the GPU; the current one if None.

    Raises:
        UnknownDeviceError: there are GPUs, and not this one.
    """
    __tracebackhide__ = True  # IPython leaves this frame out of an error, such as on a full GPU
    if count_gpus():
        import torch

        if device_id is not None:
            get_device(device_id)

        torch.ones((1, 1)).cuda(device_id)


def gpu_mem_get(id: int | str | torch.device | None = None) -> GPUMemory:
    """Total, free and used memory of a GPU in MB.

    Args:
        id: index of the GPU, ``"cuda:1"`` or a ``torch.device``; the current one if None.

    Returns:
        ``GPUMemory(0, 0, 0)`` without a GPU, and for one that does not exist.

    >>> gpu_mem_get(99)
    GPUMemory(total=0, free=0, used=0)
    """
    index = current_gpu() if id is None else _index_of(id)
    if index is None:
        return _NONE
    free, total = driver_memory(index)
    return GPUMemory(b2mb(total), b2mb(free), b2mb(total - free))


def gpu_mem_get_all() -> list[GPUMemory]:
    """Total, free and used memory in MB of every GPU; empty without any."""
    return [gpu_mem_get(index) for index in range(count_gpus())]


def gpu_mem_get_free() -> int:
    """Free MB of the current GPU; what the allocator has cached counts as used."""
    return gpu_mem_get().free


def gpu_mem_get_free_no_cache() -> int:
    """Free MB of the current GPU after the allocator's cache was emptied."""
    _reclaim()
    return gpu_mem_get().free


def gpu_mem_get_used() -> int:
    """Used MB of the current GPU; what the allocator has cached counts as used."""
    return gpu_mem_get().used


def gpu_mem_get_used_no_cache() -> int:
    """Used MB of the current GPU after the allocator's cache was emptied."""
    _reclaim()
    return gpu_mem_get().used


def gpu_mem_get_used_fast(gpu_handle: Any) -> int:
    """Used MB of a GPU, asked of NVML with a handle that the caller has already.

    Args:
        gpu_handle: result of ``pynvml.nvmlDeviceGetHandleByIndex``; for an index of a CUDA device
            or None the driver is asked, as ``gpu_mem_get`` does.

    Returns:
        used MB.

    Raises:
        UsageError: it is a handle, and ``nvidia-ml-py`` is not installed.
    """
    if gpu_handle is None or isinstance(gpu_handle, int):
        return gpu_mem_get(gpu_handle).used
    try:
        import pynvml
    except ImportError:
        raise UsageError(
            "an NVML handle needs the package nvidia-ml-py: pip install nvidia-ml-py, "
            "or give the index of a CUDA device"
        ) from None
    return b2mb(pynvml.nvmlDeviceGetMemoryInfo(gpu_handle).used)


def gpu_mem_get_mbs(id: int | str | torch.device | None = None) -> GPUMemory:
    """Total, free and used memory of a GPU in MB: ``gpu_mem_get`` as ipyexperiments calls it.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    return gpu_mem_get(id)


def gpu_mem_get_total_mbs(id: int | str | torch.device | None = None) -> int:
    """MB of a GPU.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    return gpu_mem_get(id).total


def gpu_mem_get_free_mbs(id: int | str | torch.device | None = None) -> int:
    """Free MB of a GPU; what the allocator has cached counts as used.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    return gpu_mem_get(id).free


def gpu_mem_get_free_no_cache_mbs(id: int | str | torch.device | None = None) -> int:
    """Free MB of a GPU after the allocator's cache was emptied.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    _reclaim()
    return gpu_mem_get(id).free


def gpu_mem_get_used_mbs(id: int | str | torch.device | None = None) -> int:
    """Used MB of a GPU; what the allocator has cached counts as used.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    return gpu_mem_get(id).used


def gpu_mem_get_used_no_cache_mbs(id: int | str | torch.device | None = None) -> int:
    """Used MB of a GPU after the allocator's cache was emptied.

    Args:
        id: as ``gpu_mem_get`` takes it.
    """
    _reclaim()
    return gpu_mem_get(id).used


def gpu_with_max_free_mem() -> tuple[int | None, int]:
    """The first of the GPUs with the most free memory.

    Returns:
        its index and its free MB; ``(None, 0)`` without a GPU.
    """
    free = [memory.free for memory in gpu_mem_get_all()]
    if not free:
        return None, 0
    return free.index(max(free)), max(free)


def gpu_mem_allocate_mbs(n: float, fatal: bool = False) -> torch.Tensor | None:
    """Take memory of the current GPU, for as long as the result lives.

    Args:
        n: MB.
        fatal: raises the error if the memory does not suffice.

    Returns:
        a tensor of that size, None if it did not fit.

    Raises:
        UsageError: there is no GPU, or that is no number of MB.
        torch.OutOfMemoryError: it did not fit, and ``fatal``.
    """
    import torch

    nbytes = int(_checked_mbs("gpu_mem_allocate_mbs", n) * _MB)
    if not count_gpus():
        raise UsageError("there is no GPU to take memory of: use it inside simulate(...)")
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        if fatal:
            raise
        return None


def gpu_mem_leave_free_mbs(n: float) -> torch.Tensor | None:
    """Take so much memory of the current GPU that some is left, to run out of memory on purpose.

    Args:
        n: MB to leave free.

    Returns:
        the tensor that holds the memory, None if no more than that was free already.

    Raises:
        UsageError: there is no GPU, or that is no number of MB.
    """
    to_take = gpu_mem_get_free_no_cache() - _checked_mbs("gpu_mem_leave_free_mbs", n)
    return gpu_mem_allocate_mbs(to_take, fatal=True) if to_take > 0 else None


def reduce_mem_usage(df: pd.DataFrame) -> pd.DataFrame:
    """Give the columns of a table the smallest types that hold the same values.

    Integers get the narrowest type. Floats become ``float32`` where none of them changes by that.
    Texts become categories.

    Args:
        df: the table, which stays as it is.

    Returns:
        a table with equal values.
    """
    import pandas as pd

    def reduced(column: pd.Series[Any]) -> pd.Series[Any]:
        if pd.api.types.is_bool_dtype(column) or not len(column):
            return column
        if pd.api.types.is_integer_dtype(column):
            return pd.to_numeric(column, downcast="integer")
        if pd.api.types.is_float_dtype(column):
            narrow = column.astype("float32")
            same = narrow.astype(column.dtype).equals(column)
            return narrow if same else column
        if pd.api.types.infer_dtype(column, skipna=True) == "string":
            return column.astype("category")
        return column

    before = df.memory_usage(deep=True).sum()
    narrow = df.apply(reduced)
    after = narrow.memory_usage(deep=True).sum()
    print(f"{b2mb(before)} MB of a table became {b2mb(after)} MB")
    return narrow


def _index_of(id: int | str | torch.device) -> int | None:
    """Index of a GPU however it was named, None if there is no such GPU."""
    try:
        kind, _, index = get_device(id).name.partition(":")
    except UnknownDeviceError:
        return None
    return int(index) if kind == "cuda" else None


def _checked_mbs(function: str, n: float) -> float:
    if isinstance(n, bool) or not isinstance(n, (int, float)) or n < 0:
        raise UsageError(f"{function} takes a number of MB, not {quoted(n)}")
    return n


def _reclaim() -> None:
    if count_gpus():
        gc.collect()
        empty_caches()
