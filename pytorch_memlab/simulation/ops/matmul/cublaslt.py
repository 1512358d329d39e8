"""cuBLASLt's workspace: whose it is depends on PyTorch's release, and on the environment.

Until release 2.8 every call allocates one and frees it. Releases 2.9 to 2.11 keep one for each
handle and stream (pull request 156495). From 2.12 on it is that of cuBLAS (168175, 175879). With
``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` 1 stands for the last, from 2.8 on, and 0 for the former.
From 2.15 on every call allocates one again, unless the workspaces of cuBLAS are kept (194311).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

import torch

from ...machine import cublas_workspaces
from ...machine.simulated_gpu import SimulatedGPU
from ...machine.torch_release import RELEASE
from ..core.op_call import OpCall

_BARE_HANDLE_SINCE: Final = (2, 13)
"""Release in which asking for cuBLASLt's handle makes no workspace (pull request 179022)."""

_SHARED_ON_REQUEST_SINCE: Final = (2, 8)
_KEPT_SINCE: Final = (2, 9)
_SHARED_SINCE: Final = (2, 12)
_ROWS_COUNT_SINCE: Final = (2, 10)
"""Release from which also the first matrix must have more than one row."""

_DEFAULT: Final = 1024
"""KiB of a separate workspace."""

_DTYPES: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Workspace(Enum):
    """The origins of cuBLASLt's workspace."""

    SHARED = "the workspace of cuBLAS"
    KEPT = "one for each thread and stream"
    PASSING = "one for each call"


def _workspace(environment: Mapping[str, str]) -> Workspace:
    """The origin of the workspace in this release and environment."""
    if not cublas_workspaces.are_kept(environment):
        return Workspace.PASSING
    shares = {"0": False, "1": True}.get(environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", ""))
    if shares is None or RELEASE < _SHARED_ON_REQUEST_SINCE:
        shares = RELEASE >= _SHARED_SINCE
    if shares:
        return Workspace.SHARED
    return Workspace.KEPT if RELEASE >= _KEPT_SINCE else Workspace.PASSING


def _workspace_size(environment: Mapping[str, str]) -> int:
    """Bytes of a separate workspace, from CUBLASLT_WORKSPACE_SIZE (in KiB) or by default."""
    match = re.match(r"\s*\+?(\d+)", environment.get("CUBLASLT_WORKSPACE_SIZE", ""))
    return 1024 * (int(match[1]) if match else _DEFAULT)


def need(call: OpCall) -> None:
    """Allocate the workspace of cuBLASLt, and what its handle brings with it."""
    workspaces = call.machine.workspaces
    source = _workspace(workspaces.environment)
    if source is Workspace.PASSING:
        call.alloc_temp(_separate_size(workspaces))
    if source is Workspace.SHARED or handle_needs_cublas():
        call.ensure_cublas_workspace()
    if source is Workspace.KEPT:
        call.ensure_cublaslt_workspace(_separate_size(workspaces))


def workspace_size(workspaces: cublas_workspaces.Workspaces, gpu: SimulatedGPU) -> int:
    """Bytes of the workspace of a call, as ``torch.backends.cuda`` tells them."""
    if _workspace(workspaces.environment) is Workspace.SHARED:
        return workspaces.size(gpu)
    return _separate_size(workspaces)


def _separate_size(workspaces: cublas_workspaces.Workspaces) -> int:
    chosen = workspaces.chosen_lt_size
    return _workspace_size(workspaces.environment) if chosen is None else chosen


def handle_needs_cublas() -> bool:
    """True if a handle of cuBLASLt comes with the workspace of cuBLAS."""
    return RELEASE < _BARE_HANDLE_SINCE


def adds_bias(call: OpCall) -> bool:
    """True if ``addmm`` runs on cuBLASLt, which adds the bias itself."""
    # The rule is that of ``aten/src/ATen/native/cuda/Blas.cpp`` for builds with CUDA 12.1 or later.
    bias, first, second = call.args[:3]
    result = call.result
    return (
        call.machine.workspaces.environment.get("DISABLE_ADDMM_CUDA_LT") != "1"
        and call.argument("beta") == 1
        and bias.dim() == 1
        and bias.shape[0] == second.shape[1]
        and bias.is_contiguous()
        and result.is_contiguous()
        and first.dtype in _DTYPES
        and min(second.shape) > 1
        and (first.shape[0] > 1 or RELEASE < _ROWS_COUNT_SINCE)
    )
