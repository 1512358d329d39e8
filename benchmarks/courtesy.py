"""The speed of copies to host memory and back, by the courtesy and from pinned memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.timing import arguments, heading, row, row_at_least
from pytorch_memlab.courtesy.host_blocks import free_host_memory

GIB = 2**30
MOST = 16 * GIB
PIECES = {256: 80.0, 16: 80.0, 1: None}
"""MiB of a tensor -> the least per cent of pinned memory's rate that we aim at."""
TURNS = 5


def timed(work: Callable[[], object]) -> float:
    """Seconds of some work, that of the GPU included."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def pinned_rates() -> tuple[float, float]:
    """GiB/s to the host and back: the best of one large copy of pinned memory."""
    on_gpu = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    on_host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    to_host = min(timed(lambda: on_host.copy_(on_gpu, non_blocking=True)) for _ in range(TURNS))
    to_gpu = min(timed(lambda: on_gpu.copy_(on_host, non_blocking=True)) for _ in range(TURNS))
    return 1 / to_host, 1 / to_gpu


def measure(piece: int, total: int, rates: tuple[float, float], target: float | None) -> None:
    """Lend ``total`` bytes in tensors of ``piece`` bytes, and print how fast that was."""
    from pytorch_memlab import Courtesy

    tensors = [torch.zeros(piece, dtype=torch.uint8, device="cuda") for _ in range(total // piece)]
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    lender = Courtesy()
    first = timed(lender.yield_memory), timed(lender.restore)
    again = [(timed(lender.yield_memory), timed(lender.restore)) for _ in range(TURNS)]
    best = [min(times) for times in zip(*again, strict=True)]
    size = total / GIB
    row(
        "    the first time, pinned memory still to be made: yield_memory", size / first[0], "GiB/s"
    )
    for name, seconds, rate in zip(("yield_memory", "restore"), best, rates, strict=True):
        row(f"    {name}", size / seconds, "GiB/s")
        share = 100 * size / seconds / rate
        what = "        of the rate of pinned memory"
        if target is None:
            row(what, share, "%")
        else:
            row_at_least(what, share, "%", target)
    extra = (torch.cuda.max_memory_allocated() - held) / 2**20
    row("    GPU memory on top, at the peak", extra, "MiB", 64)
    assert len(tensors) == total // piece


def main() -> None:
    heading("Courtesy: everything to the host, and back")
    if not torch.cuda.is_available():
        print("  not measured: this machine has no CUDA GPU")
        return
    rates = pinned_rates()
    row("a copy of pinned memory, GPU to host", rates[0], "GiB/s")
    row("a copy of pinned memory, host to GPU", rates[1], "GiB/s")
    torch.cuda.empty_cache()
    total = min(MOST, torch.cuda.mem_get_info()[0] // 2, free_host_memory() // 2) // GIB * GIB
    for piece, target in PIECES.items():
        print(f"  {total // GIB} GiB in tensors of {piece} MiB")
        measure(piece * 2**20, total, rates, target)


if __name__ == "__main__":
    arguments(__doc__)
    main()
