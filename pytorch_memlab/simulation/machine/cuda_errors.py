"""CUDA's errors, in the words of PyTorch's checks of its calls."""

from __future__ import annotations

from typing import Final

import torch

_HELP: Final = (
    "Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

_CAPTURE_ERRORS: Final = {
    "cudaErrorStreamCaptureUnsupported": "operation not permitted when stream is capturing",
    "cudaErrorStreamCaptureInvalidated": "operation failed due to a previous error during capture",
    "cudaErrorStreamCaptureMerge": (
        "operation would result in a merge of separate capture sequences"
    ),
    "cudaErrorStreamCaptureUnjoined": "capturing stream has unjoined work",
    "cudaErrorStreamCaptureIsolation": "dependency created on uncaptured work in another stream",
    "cudaErrorStreamCaptureImplicit": (
        "operation would make the legacy stream depend on a capturing blocking stream"
    ),
    "cudaErrorCapturedEvent": (
        "operation not permitted on an event last recorded in a capturing stream"
    ),
    "cudaErrorStreamCaptureWrongThread": (
        "attempt to terminate a thread-local capture sequence from another thread"
    ),
    "cudaErrorIllegalState": "the operation cannot be performed in the present state",
}
"""The texts of ``cudaGetErrorString``, by the names in ``cudaError_t``."""


def cuda_error(name: str) -> RuntimeError:
    """The error that PyTorch raises where a call of CUDA returns one, by its name."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)  # from torch 2.8 on
    error: RuntimeError = kind(f"CUDA error: {_CAPTURE_ERRORS[name]}\n{_HELP.format(name=name)}")
    return error
