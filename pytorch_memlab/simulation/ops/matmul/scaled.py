"""Products of float8 matrices: which GPUs have them, and cuBLASLt's workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry
from . import cublaslt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_OLDEST: Final = (8, 9)


def check_capability(call: OpCall) -> None:
    """Fail where the GPU has no float8 units, in PyTorch's words."""
    if (call.model.major, call.model.minor) < _OLDEST:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 "
            "or 8.9, or ROCm MI300+"
        )


def scaled(call: OpCall) -> None:
    """``_scaled_mm``: the workspace of cuBLASLt.

    The operands are never copied: one that is not row-major, or column-major in the second's case,
    is an error. With a scale for each row another library may multiply, whose workspace only it
    knows.
    """
    if call.result.numel() == 0:
        return
    cublaslt.need(call)
    scale = call.argument(2, "scale_a")
    if scale.numel() > 1:
        call.unknown_workspace = "workspaces of row-wise scaled products"


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_scaled_mm": Entry(
        scaled,
        "aten/src/ATen/native/cuda/ScaledBlas.cpp, aten/src/ATen/cuda/CUDABlas.cpp",
        Basis.ESTIMATE,
        prepare=check_capability,
    ),
}
