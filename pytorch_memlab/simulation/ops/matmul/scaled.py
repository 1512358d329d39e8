"""Products of float8 matrices: which GPUs have them, and the workspace of cuBLASLt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..registry import Provenance, op
from . import cublaslt

if TYPE_CHECKING:
    from ..op_call import OpCall

_OLDEST: Final = (8, 9)


@op(
    "aten::_scaled_mm",
    provenance=Provenance.ESTIMATE,
    source="aten/src/ATen/native/cuda/ScaledBlas.cpp, aten/src/ATen/cuda/CUDABlas.cpp",
)
def _memory(call: OpCall) -> None:
    """The workspace of cuBLASLt.

    The operands are never copied: one that is not row-major, or column-major in the second's case,
    is an error. With a scale for each row another library may multiply, whose workspace only it
    knows.
    """
    if (call.model.major, call.model.minor) < _OLDEST:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 "
            "or 8.9, or ROCm MI300+"
        )
    call.alloc_outputs()
    if call.result.numel() == 0:
        return
    cublaslt.need(call)
    scale = call.argument(2, "scale_a")
    if scale.numel() > 1:
        call.unknown_workspace = "workspaces of row-wise scaled products"
