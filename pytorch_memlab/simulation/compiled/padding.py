"""Padded products: Inductor times on the GPU whether it pads one, and here a rule decides.

cuBLAS reads 16 bytes at once, so its kernels for tensor cores need rows of whole multiples of them
(NVIDIA, "Matrix Multiplication Background", section 3). A product in half precision whose rows
have another length is several times slower, and Inductor pads it. It pads none that waits for the
memory anyway.

To time a product, Inductor allocates its matrices and calls it. That happens here too, without
arithmetic: a GPU keeps the result of a timing on its disk, and a simulation has an empty disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor import utils
from torch._inductor.fx_passes import pad_mm
from torch.utils._python_dispatch import _disable_current_modes

from ..._common.patching.patches import Patches
from ..dispatch.modes import simulated_modes
from ..machine.machine import Machine
from .kernel_timing import bytes_to_flush

_STAND_IN = "NVIDIA A100"
"""A GPU without a data sheet in PyTorch has this one's balance of cores and memory."""


def install(machine: Machine, patches: Patches) -> None:
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
    _time_products(machine, patches)

    @patches.around(pad_mm, "_should_pad")
    def should_pad(original: Any, match: Any, matrix: Any, other: Any, *args: Any) -> bool:
        """Tell if a product is worth a padded copy of what it multiplies."""
        is_worth_a_try = original(match, matrix, other, *args)
        is_forced: bool = torch._inductor.config.force_shape_pad
        return is_forced or (is_worth_a_try and _is_padded_faster(matrix, other))


def _time_products(machine: Machine, patches: Patches) -> None:
    """Let Inductor take on the simulated GPU what it takes to time a product, once for each."""

    @contextmanager
    def on_gpu() -> Iterator[None]:
        with (
            _disable_current_modes(),
            machine.thread.without_arithmetic(),
            simulated_modes(machine),
        ):
            yield

    def run(call: Callable[[], Any], **_options: Any) -> float:
        """Take what ``benchmark_gpu`` takes, which calls it oftener."""
        call()
        flushed = torch.empty(bytes_to_flush() // 4, dtype=torch.int, device="cuda")
        call()
        del flushed
        return 0.0

    padded: dict[str, bool] = {}
    plain: dict[str, float] = {}

    def is_padded_faster(key: str, *_times: float) -> bool:
        return padded.setdefault(key, True)

    for name, value in (
        ("no_dispatch", on_gpu),
        ("get_do_bench", lambda: run),
        ("is_padded_faster", is_padded_faster),
        ("get_cached_should_pad", padded.get),
        ("set_cached_should_pad", padded.__setitem__),
        ("get_cached_base_mm_benchmark_time", plain.get),
        ("set_cached_base_mm_benchmark_time", plain.__setitem__),
    ):
        patches.set(pad_mm, name, value)


def _is_padded_faster(matrix: torch.Tensor, other: torch.Tensor) -> bool:
    if matrix.dtype not in (torch.float16, torch.bfloat16):
        return False
    unit = pad_mm.get_alignment_size(matrix)
    rows = (_row(matrix), _row(other), other.shape[-1])
    return not all(isinstance(row, int) and row % unit == 0 for row in rows)


def _row(matrix: torch.Tensor) -> Any:
    """Elements from one row of a matrix to the next, or from one column to the next."""
    across, along = matrix.stride()[-2:]
    return across if along == 1 else along
