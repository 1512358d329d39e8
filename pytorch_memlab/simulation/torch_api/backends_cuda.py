"""``torch.backends.cuda``: what decides between kernels of attention, and cuFFT's plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._common.patches import Patches
from ..hardware.gpu import GPU
from ..machine.machine import Machine
from ..machine.unsupported import refusal
from ..ops.attention.backends import against_cudnn
from ..ops.attention.rules import Call, against_efficient, against_flash

_AGAINST: dict[str, Callable[[Call], str | None]] = {
    "_can_use_flash_attention": against_flash,
    "_can_use_mem_efficient_attention": against_efficient,
    "_can_use_cudnn_attention": against_cudnn,
}
_MOST_PLANS = 4096
"""Plans that cuFFT's cache holds by default (``aten/src/ATen/native/cuda/CuFFTPlanCache.h``)."""


def install(machine: Machine, patches: Patches) -> None:
    """Answer for a build with CUDA until undone."""
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch._C, "_is_flash_attention_available", lambda: True)
    for name, against in _AGAINST.items():
        patches.set(torch._C, name, _asks(machine, against))
    _install_plan_caches(machine, patches)


def _install_plan_caches(machine: Machine, patches: Patches) -> None:
    limits: dict[int, int] = {}

    def limit(cache: Any) -> int:
        return limits.get(machine.gpu(cache.device_index).index, _MOST_PLANS)

    def set_limit(cache: Any, size: int) -> None:
        limits[machine.gpu(cache.device_index).index] = size

    def clear(cache: Any) -> None:
        machine.gpu(cache.device_index)

    size = refusal("torch.backends.cuda.cufft_plan_cache.size")
    for name, value in (("size", property(size)), ("max_size", property(limit, set_limit))):
        patches.set(torch.backends.cuda.cuFFTPlanCache, name, value)
    patches.set(torch.backends.cuda.cuFFTPlanCache, "clear", clear)


def _asks(machine: Machine, against: Callable[[Call], str | None]) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        del debug  # it would warn with the reason
        gpu = machine.gpu_of(params.query)
        return gpu is not None and against(_call(gpu.model, params)) is None

    return can_use


def _call(model: GPU, params: Any) -> Call:
    return Call(
        model,
        params.query,
        params.key,
        params.value,
        params.attn_mask,
        params.dropout,
        params.is_causal,
        getattr(params, "enable_gqa", False),
    )
