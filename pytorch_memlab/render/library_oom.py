"""The report of an error of a library that found no GPU memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._common.text.prose_size import prose_size
from ..devices.free_memory import FreeMemory

_SHARE = 0.9


def text(library: str, gpus: Sequence[FreeMemory]) -> str:
    """Say who found no memory, what the GPUs have, and what would help, as lines."""
    return "".join(f"{line}\n" for line in _lines(library, gpus))


def _lines(library: str, gpus: Sequence[FreeMemory]) -> Iterator[str]:
    yield f"{library} found no GPU memory: it asks the driver, not PyTorch's allocator."
    for gpu in gpus:
        held = prose_size(gpu.reserved)
        cached = f", {prose_size(gpu.cached)} of it cached" if gpu.cached else ""
        free = f"{prose_size(gpu.free)} of {prose_size(gpu.capacity)} free"
        yield f"  cuda:{gpu.device}  {free}, PyTorch holds {held}{cached}"
    if library in ("CUDA", "HIP"):
        yield "CUDA may tell late: CUDA_LAUNCH_BLOCKING=1 makes the line that failed raise it."
    yield "What may help:"
    cached_bytes = sum(gpu.cached for gpu in gpus)
    if cached_bytes:
        most = prose_size(cached_bytes)
        yield f"  torch.cuda.empty_cache() before this line gives back at most {most}"
    for gpu in gpus:
        left = prose_size(int(gpu.capacity * (1 - _SHARE)))
        call = f"torch.cuda.set_per_process_memory_fraction({_SHARE}, {gpu.device})"
        yield f"  {call} at the start leaves {left} to others"
    if library == "NCCL":
        yield "  NCCL_BUFFSIZE=1048576 makes its buffers smaller than the usual 4 MiB"
