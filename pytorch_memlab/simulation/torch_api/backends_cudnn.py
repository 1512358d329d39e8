"""``torch.backends.cudnn`` and recurrent modules answer as with CUDA."""

from __future__ import annotations

import torch
import torch.backends.cudnn.rnn

from ..._common.patches import Patches
from ..machine.machine import Machine
from ..ops.attention.backends import cudnn_version
from ..ops.rnn.layout import MODES, flatten

_BENCHMARK_LIMIT = 10
"""Plans that cuDNN tries by default when it benchmarks (``aten/src/ATen/Context.h``)."""


def install(_machine: Machine, patches: Patches) -> None:
    """Have cuDNN until undone.

    ``enabled``, ``benchmark``, ``deterministic`` and ``allow_tf32`` of ``torch.backends.cudnn``
    are PyTorch's own, and decide here as on CUDA. The version is that
    of the cuDNN which the release of PyTorch is installed with.
    """
    limit = [_BENCHMARK_LIMIT]
    patches.set(torch._C, "_has_cudnn", True)
    patches.set(torch._C, "_cuda_get_cudnn_benchmark_limit", lambda: limit[0])
    patches.set(torch._C, "_cuda_set_cudnn_benchmark_limit", lambda n: limit.__setitem__(0, n))
    patches.set(torch.backends.cudnn, "is_acceptable", _is_acceptable)
    patches.set(torch.backends.cudnn, "version", cudnn_version)
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", MODES.index)
    patches.set(torch, "_cudnn_rnn_flatten_weight", flatten)


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """True if cuDNN would take a tensor: the rule of ``torch.backends.cudnn.is_acceptable``."""
    return (
        torch._C._get_cudnn_enabled()
        and tensor.is_cuda
        and tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    )
