"""``FakeTensorMode`` of a GPU on a machine without one."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensor, fake_tensor

from ..._common.patches import Patches
from ..dispatch.fake_tensors import BUILD_HAS_CUDA
from ..machine.machine import Machine


def install(_machine: Machine, patches: Patches) -> None:
    """Let PyTorch make fake tensors of a GPU on a machine without one, until undone.

    Where ``torch.cuda.is_available()`` says yes, it makes a tensor on the GPU first, and leaves
    out the guard that autograd needs in a build with CUDA (from torch 2.5 on), which stays.
    """
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()
    for name in ("init_gpu_context", "init_cuda_context"):
        if hasattr(fake_tensor, name):
            patches.set(fake_tensor, name, lambda *_device: None)
    if not BUILD_HAS_CUDA:
        patches.set(FakeTensor, "copy_", _copy)


def _copy(self: FakeTensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The op: ``Tensor.copy_`` asks for CUDA's device guard before it comes to the op."""
    result: torch.Tensor = torch.ops.aten.copy_.default(self, src, non_blocking)
    return result
