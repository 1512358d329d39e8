"""The timing of kernels and products by PyTorch 2.6 and 2.7, when they compile a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def timed_as_published() -> Iterator[None]:
    """Within: time with Triton's benchmark, and each product whose sides are no multiples of 8.

    Triton writes 256 MiB between two calls, where later releases write the size of the L2 cache
    (``torch/_inductor/runtime/benchmarking.py``, line 205 of 2.6.0 and 288 of 2.7.1). A product is
    timed if it waits for the arithmetic rather than for the memory. What a GPU computes in a second
    came out a thousand times too low, so that each product seemed to: ``max_clock_rate``
    (``torch/_utils_internal.py``) gives MHz, and ``get_max_tensorcore_tflops`` of Triton 3.2 and
    3.3 (``triton/testing.py``) takes kHz.
    """
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime import benchmarking

    with (
        patch.object(benchmarking, "benchmarker", benchmarking.TritonBenchmarker()),
        patch.object(pad_mm, "is_mm_compute_bound", lambda *_: True),
    ):
        yield
