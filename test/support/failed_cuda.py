"""A GPU that has failed: CUDA is asynchronous, and after such an error every call of it fails."""

from __future__ import annotations

import pytest
import torch

ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
"""The head of what PyTorch raises, at a call of any kind, after a kernel has failed."""

_ASKS_THE_DRIVER = (
    "_cuda_emptyCache",
    "_cuda_exchangeDevice",
    "_cuda_getDevice",
    "_cuda_maybeExchangeDevice",
    "_cuda_setDevice",
    "_cuda_synchronize",
)
"""The allocator's counters and snapshots are PyTorch's own, and are still there."""


def fail_cuda(patch: pytest.MonkeyPatch, text: str = ILLEGAL_ACCESS) -> None:
    """Let all calls of the driver fail from now on, as they do for the rest of the process."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)  # not in torch 2.6 and 2.7

    def fail(*_arguments: object) -> None:
        raise kind(text)

    for name in _ASKS_THE_DRIVER:
        patch.setattr(torch._C, name, fail)
    patch.setattr(torch.cuda, "mem_get_info", fail)
    patch.setattr(torch.cuda, "_get_device_properties", fail)
    patch.setattr(torch.cuda, "current_device", fail)
