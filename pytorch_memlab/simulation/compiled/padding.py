"""Padded products: Inductor measures on the GPU whether it pads one, and here a rule decides.

cuBLAS reads 16 bytes at once, so its kernels for tensor cores need rows of whole multiples of them
(NVIDIA, "Matrix Multiplication Background", section 3). A product in half precision whose rows
have another length is several times slower, and Inductor pads it. It pads none that waits for the
memory anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import utils
from torch._inductor.fx_passes import pad_mm

from ..._common.patching.patches import Patches

_STAND_IN = "NVIDIA A100"
"""A GPU without a data sheet in PyTorch has this one's balance of cores and memory."""


def install(patches: Patches) -> None:
    """Let the rule decide for simulated GPUs, until undone; on a real one Triton is there."""
    if not hasattr(pad_mm, "_should_pad"):  # an older release compares times in one function
        patches.set(pad_mm, "should_pad_bench", lambda *args, **kwargs: False)
        return
    from torch._inductor.analysis import device_info

    def data_sheet() -> Any:
        name = torch.cuda.get_device_name().upper()
        sheets = device_info._device_mapping.items()
        own_sheets = [sheet for gpu, sheet in sheets if name.startswith(gpu)]
        return own_sheets[0] if own_sheets else device_info.lookup_device_info(_STAND_IN)

    def dense_speed(dtype: torch.dtype) -> float:
        sheet = data_sheet()
        speed: float = sheet.tops[dtype] / sheet.tops_sparsity_factor
        return speed

    patches.set(utils, "get_device_tflops", dense_speed)
    patches.set(utils, "get_gpu_dram_gbps", lambda: data_sheet().dram_bw_gbs)
    patches.set(pad_mm, "has_triton", lambda: True)
    patches.set(pad_mm, "_should_pad", should_pad)


def should_pad(
    _match: Any, matrix: torch.Tensor, other: torch.Tensor, _op: Any, _bias: Any = None
) -> bool:
    """Tell if a product is worth a padded copy of what it multiplies."""
    if torch._inductor.config.force_shape_pad:
        return True
    if matrix.dtype not in (torch.float16, torch.bfloat16):
        return False
    unit = pad_mm.get_alignment_size(matrix)
    rows = (_row(matrix), _row(other), other.shape[-1])
    if all(isinstance(row, int) and row % unit == 0 for row in rows):
        return False
    m, k, n = pad_mm.hint_symbols((matrix.shape[-2], matrix.shape[-1], other.shape[-1]))
    return pad_mm.is_mm_compute_bound(m, k, n, matrix.dtype)


def _row(matrix: torch.Tensor) -> Any:
    """Elements from one row of a matrix to the next, or from one column to the next."""
    across, along = matrix.stride()[-2:]
    return across if along == 1 else along
