"""Errors of libraries that found no GPU memory: they ask the driver, not PyTorch's allocator."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

_NO_ROOM: Final = r"out of memory|failed to (?:CUDA|HIP) (?:m|c)alloc"

_LIBRARIES: Final = (
    ("NCCL", rf"(?s)\bR?NCCL (?:error|Error)\b.*(?:{_NO_ROOM})"),
    ("cuBLAS", r"\b(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b|\brocblas_status_memory_error\b"),
    ("cuDNN", r"\bCUDNN_STATUS_ALLOC_FAILED\b|\bmiopenStatusAllocFailed\b"),
    ("cuSOLVER", r"\bCUSOLVER_STATUS_ALLOC_FAILED\b"),
    ("cuSPARSE", r"\bCUSPARSE_STATUS_ALLOC_FAILED\b"),
    ("cuFFT", r"\bCUFFT_ALLOC_FAILED\b"),
    ("Triton", r"\bTriton Error \[(?:CUDA|HIP)\]: out of memory"),
    ("CuPy", r"\AOut of memory allocating [\d,]+ bytes"),
    ("CUDA", r"\bCUDA(?: driver)? error: out of memory|\bcudaErrorMemoryAllocation\b"),
    ("CUDA", r"\bCUDA_ERROR_OUT_OF_MEMORY\b"),
    ("HIP", r"\bHIP error: out of memory|\bhipErrorOutOfMemory\b"),
)
"""Names, and what the messages of PyTorch and of the libraries say (``CUDAException.h``,
``cublas_api.h``, ``cudnn_graph.h``, NCCL's ``alloc.h``)."""

_PATTERNS: Final = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _LIBRARIES]


def library_without_memory(error: BaseException) -> str | None:
    """The library whose error says that the GPU is full; None if it says something else.

    >>> library_without_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    'cuBLAS'
    >>> library_without_memory(RuntimeError("CUDA error: an illegal memory access"))
    """
    if not isinstance(error, (RuntimeError, MemoryError)):
        return None
    with suppress(Exception):  # the error of a program may fail to be a text
        text = str(error)
        return next((name for name, pattern in _PATTERNS if pattern.search(text)), None)
    return None
