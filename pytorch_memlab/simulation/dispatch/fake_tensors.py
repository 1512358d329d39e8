"""PyTorch's fake tensors (``torch.export``, DTensor's propagation of shapes) inside a simulation.

They are of no simulated GPU: ops on them take no memory, and PyTorch alone runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor, fake_tensor
from torch.utils._pytree import tree_leaves

from ...errors import UnsupportedCUDACallError

if TYPE_CHECKING:
    from ..._common.patches import Patches

_BUILD_HAS_CUDA = torch.version.cuda is not None
_KEY = torch._C._TorchDispatchModeKey.FAKE


def are_on() -> bool:
    """Whether the ops of this thread run on fake tensors now."""
    return torch._C._get_dispatch_mode(_KEY) is not None


def install(patches: Patches) -> None:
    """Let PyTorch make fake tensors of a GPU on a machine without one, until undone.

    Where ``torch.cuda.is_available()`` says yes, it makes a tensor on the GPU first, and leaves
    out the guard that autograd needs in a build with CUDA (from torch 2.5 on), which stays.

    Args:
        patches: who puts the originals back.
    """
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()
    for name in ("init_gpu_context", "init_cuda_context"):
        if hasattr(fake_tensor, name):
            patches.set(fake_tensor, name, lambda *_device: None)
    if not _BUILD_HAS_CUDA:
        patches.set(FakeTensor, "copy_", _copy)


def _copy(self: FakeTensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The op: ``Tensor.copy_`` asks for CUDA's device guard before it comes to the op."""
    result: torch.Tensor = torch.ops.aten.copy_.default(self, src, non_blocking)
    return result


def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what ends the process in a build without CUDA: gradients of a GPU's fake tensors.

    Args:
        args: of a call while fake tensors are on.
        kwargs: its keyword arguments.

    Raises:
        UnsupportedCUDACallError: PyTorch's autograd would abort.
    """
    if _BUILD_HAS_CUDA or not torch.is_grad_enabled():
        return
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, FakeTensor) and leaf.requires_grad and leaf.device.type == "cuda":
            raise UnsupportedCUDACallError(
                "fake tensors of a GPU with gradients (torch.export, FakeTensorMode) need a build "
                "of PyTorch with CUDA; trace them under torch.no_grad(), or on the CPU"
            )
