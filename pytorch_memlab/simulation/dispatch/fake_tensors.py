"""PyTorch's fake tensors (``torch.export``, DTensor's propagation of shapes) inside a simulation.

They are of no simulated GPU: ops on them take no memory, and PyTorch alone runs them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves

from ...errors import UnsupportedCUDACallError
from ..machine.op_arguments import Args, Kwargs

BUILD_HAS_CUDA = torch.version.cuda is not None
mode_of_kind = torch._C._get_dispatch_mode
FAKE = torch._C._TorchDispatchModeKey.FAKE


def are_on() -> bool:
    """True if the ops of this thread run on fake tensors now."""
    return mode_of_kind(FAKE) is not None


_GRADIENTS = "fake tensors of a GPU with gradients (torch.export, aot_function, FakeTensorMode)"


def check(args: Args, kwargs: Kwargs) -> None:
    """Refuse what ends the process in a build without CUDA: gradients of a GPU's fake tensors."""
    if BUILD_HAS_CUDA or not torch.is_grad_enabled():
        return
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, FakeTensor) and leaf.requires_grad and leaf.device.type == "cuda":
            raise UnsupportedCUDACallError(
                f"{_GRADIENTS} need a build of PyTorch with CUDA; trace them under "
                "torch.no_grad(), or on the CPU"
            )


def run(op: Any, args: Args, kwargs: Kwargs) -> Any:
    """An op of PyTorch on fake tensors."""
    # Zeros that a node makes in a backward pass are on the CPU, as C++ has all tensors there.
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if torch._C._current_autograd_node() is None or "at least two devices" not in str(error):
            raise
        raise UnsupportedCUDACallError(
            f"{_GRADIENTS} are not covered where a backward pass makes zeros; trace them with "
            "torch.compile, under torch.no_grad(), or on the CPU"
        ) from None
