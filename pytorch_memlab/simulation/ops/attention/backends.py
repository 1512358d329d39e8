"""The backend of an attention: the conditions of cuDNN, the order of priority, the refusals."""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import torch

from ...hardware.decisions import has_capability, has_major
from .rules import (
    RELEASE,
    Call,
    against_dimensions,
    against_dtypes,
    against_efficient,
    against_empty,
    against_flash,
    against_heads,
    against_strides,
)


class Backend(IntEnum):
    """The backends of attention, numbered as in ``at::SDPBackend``."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


_OVERRIDEABLE: Final = 4
_ORDER: Final = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN, _OVERRIDEABLE]
_CUDNN_FIRST: Final = [Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH, _OVERRIDEABLE]

_CUDNN_OF: Final = {(2, 11): 91900, (2, 12): 92000, (2, 13): 92000}
"""Version of cuDNN that a release's default wheel needs (``Requires-Dist`` of the wheels)."""

_CUDNN_BEFORE: Final = 91002
_MOST_CUDNN_SIZE: Final = 65_535


def select(call: Call) -> Backend:
    """The backend that CUDA chooses: ``select_sdp_backend`` of ``cuda/sdp_utils.cpp``."""
    if not is_any_enabled():
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )
    for choice in _priority(call):
        if choice == Backend.MATH:
            if torch._C._get_math_sdp_enabled():
                return Backend.MATH
        elif choice == _OVERRIDEABLE:
            if RELEASE >= (2, 5) and torch._C._get_overrideable_sdp_enabled():
                raise RuntimeError("Invalid backend")
        elif _AGAINST[choice](call) is None:
            return Backend(choice)
    for name, backend in _NAMES.items():
        warnings.warn(f"{name} not used because: {_AGAINST[backend](call)}", stacklevel=2)
    raise RuntimeError("No available kernel. Aborting execution.")


def is_any_enabled() -> bool:
    """True if the program left any backend switched on."""
    return (
        torch._C._get_math_sdp_enabled()
        or torch._C._get_flash_sdp_enabled()
        or torch._C._get_mem_efficient_sdp_enabled()
        or torch._C._get_cudnn_sdp_enabled()
    )


def against_cudnn(call: Call) -> str | None:
    """Why cuDNN's attention cannot run."""
    if RELEASE < (2, 5) or not torch._C._get_cudnn_sdp_enabled():
        return "it is switched off"
    if torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return "it is not deterministic"
    return (
        against_dimensions(call)
        or against_dtypes(call, (torch.float16, torch.bfloat16))
        or _against_mask(call)
        or (None if has_major(call.gpu, 8) else "it needs compute capability 8.0 or higher")
        or _against_dropout(call)
        or against_empty(call)
        or against_strides(call, ignores_single=True)
        or against_heads(call, takes_groups=True, alike=False)
        or _against_sizes(call)
    )


@functools.cache
def cudnn_version() -> int:
    """Version of cuDNN that counts: the one PyTorch was built with."""
    built_with = getattr(torch._C, "_cudnn", None)
    if built_with is not None:
        major, minor, patch = built_with.getCompileVersion()
        return int(major) * 10_000 + int(minor) * 100 + int(patch)
    known = [version for release, version in _CUDNN_OF.items() if release <= RELEASE]
    return known[-1] if known else _CUDNN_BEFORE


def _priority(call: Call) -> list[int]:
    order = torch._C._get_sdp_priority_order() if RELEASE >= (2, 6) else _ORDER
    return _CUDNN_FIRST if order == _ORDER and _prefers_cudnn(call) else order


def _prefers_cudnn(call: Call) -> bool:
    """``check_prefer_cudnn_attention``: on Hopper and its successor, from cuDNN 9.15.1 on."""
    return (
        has_major(call.gpu, 9, 10)
        and cudnn_version() > 91500
        and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    )


def _against_mask(call: Call) -> str | None:
    mask = call.mask
    if mask is None:
        return None
    if mask.requires_grad:
        return "the mask requires a gradient"
    wanted = (*call.query.shape[:3], call.key.shape[2])
    fits = all(
        size in (1, full) for size, full in zip(mask.shape[::-1], wanted[::-1], strict=False)
    )
    return None if fits and mask.dim() in (2, 4) else "the mask must have 2 or 4 dimensions"


def _against_dropout(call: Call) -> str | None:
    if call.dropout and 91100 < cudnn_version() < 91400:
        return "cuDNN 9.11 to 9.13 has no dropout in attention"
    sixteenths = call.dropout * 16
    if RELEASE >= (2, 13) and sixteenths != math.floor(sixteenths):
        return "a probability of dropout must be a multiple of 1/16"
    return None


def _against_sizes(call: Call) -> str | None:
    batch, heads, queries, size = call.query.shape
    keys, value_size = call.value.shape[2:]
    limit = _most_head_dimensions(call, size, value_size)
    if max(batch, heads) > _MOST_CUDNN_SIZE:
        return f"batch and heads must be at most {_MOST_CUDNN_SIZE}"
    if max(size, value_size) > limit or size % 8 or value_size % 8:
        return f"head dimensions must be multiples of 8, at most {limit}"
    if keys == 1 or (queries == 1 and call.dropout):
        return "a sequence of 1 key, or of 1 query with dropout"
    return None


def _most_head_dimensions(call: Call, size: int, value_size: int) -> int:
    if has_capability(call.gpu, 9, 0) and cudnn_version() >= 91000:
        return 256
    if (
        has_major(call.gpu, 10, 10)
        and cudnn_version() >= 91100
        and (size, value_size) == (192, 128)
    ):
        return 192
    return 128


_AGAINST: Final[Mapping[int, Callable[[Call], str | None]]] = {
    Backend.FLASH: against_flash,
    Backend.EFFICIENT: against_efficient,
    Backend.CUDNN: against_cudnn,
}
_NAMES: Final = {
    "Memory-efficient attention": Backend.EFFICIENT,
    "Flash attention": Backend.FLASH,
    "cuDNN attention": Backend.CUDNN,
}
