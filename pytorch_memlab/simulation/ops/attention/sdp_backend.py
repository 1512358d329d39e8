"""The backend of an attention: which kernels can compute it, and which of them CUDA prefers.

From ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (torch 2.13;
2.4 differs where a release is named).
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import torch

from ...hardware.decisions import has_capability, has_major
from ...hardware.gpu import GPU
from ...machine.torch_release import RELEASE
from ..core.memory_formats import LOW_PRECISION
from .reference import is_deterministic

_MOST_FLASH_DIMENSIONS: Final = 256
"""``check_head_dim_size_flash`` in ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``."""

_CUDNN_OF: Final = {(2, 11): 91900, (2, 12): 92000, (2, 13): 92000}
"""Version of cuDNN that a release's default wheel needs (``Requires-Dist`` of the wheels)."""

_CUDNN_BEFORE: Final = 91002
_MOST_CUDNN_SIZE: Final = 65_535


class SDPBackend(IntEnum):
    """The backends of attention, numbered as in ``at::SDPBackend``."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


_OVERRIDEABLE: Final = 4
_ORDER: Final = [
    SDPBackend.FLASH,
    SDPBackend.EFFICIENT,
    SDPBackend.MATH,
    SDPBackend.CUDNN,
    _OVERRIDEABLE,
]
_CUDNN_FIRST: Final = [
    SDPBackend.CUDNN,
    SDPBackend.FLASH,
    SDPBackend.EFFICIENT,
    SDPBackend.MATH,
    _OVERRIDEABLE,
]


class AttentionCall(NamedTuple):
    """Arguments of ``scaled_dot_product_attention``, and who runs it."""

    gpu: GPU  # that runs it
    # [batch, heads, queries, head dimension] where a fused kernel is to take it
    query: torch.Tensor
    key: torch.Tensor  # [batch, heads, keys, head dimension]
    value: torch.Tensor  # [batch, heads, keys, head dimension of values]
    mask: torch.Tensor | None  # None, bool (what takes part) or added to the scores
    dropout: float  # probability
    causal: bool  # whether keys behind a query are left out
    grouped: bool  # ``enable_gqa``: key and value may have fewer heads than the query

    @property
    def trains(self) -> bool:
        """True if a gradient of query, key or value will be wanted."""
        return torch.is_grad_enabled() and (
            self.query.requires_grad or self.key.requires_grad or self.value.requires_grad
        )


def select(call: AttentionCall) -> SDPBackend:
    """The backend that CUDA chooses: ``select_sdp_backend`` of ``cuda/sdp_utils.cpp``."""
    if not is_any_enabled():
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )
    for choice in _priority(call):
        if choice == SDPBackend.MATH:
            if torch._C._get_math_sdp_enabled():
                return SDPBackend.MATH
        elif choice == _OVERRIDEABLE:
            if torch._C._get_overrideable_sdp_enabled():
                raise RuntimeError("Invalid backend")
        elif against(SDPBackend(choice), call) is None:
            return SDPBackend(choice)
    for backend in _FUSED:
        warn_against(backend, call)
    raise RuntimeError("No available kernel. Aborting execution.")


def warn_against(backend: SDPBackend, call: AttentionCall) -> None:
    """Warn in PyTorch's words, which programs search for, that a kernel cannot run, and why."""
    warnings.warn(f"{_FUSED[backend][0]} kernel not used because:", stacklevel=2)
    warnings.warn(f"{against(backend, call)}", stacklevel=2)


def is_any_enabled() -> bool:
    enabled: bool = torch._C._get_math_sdp_enabled() or is_any_fused_enabled()
    return enabled


def is_any_fused_enabled() -> bool:
    return (
        torch._C._get_flash_sdp_enabled()
        or torch._C._get_mem_efficient_sdp_enabled()
        or torch._C._get_cudnn_sdp_enabled()
    )


def _priority(call: AttentionCall) -> list[int]:
    """``check_prefer_cudnn_attention``: on Hopper and its successor, from cuDNN 9.15.1 on."""
    order = torch._C._get_sdp_priority_order()
    prefers_cudnn = (
        order == _ORDER
        and has_major(call.gpu, 9, 10)
        and cudnn_version() > 91500
        and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    )
    return _CUDNN_FIRST if prefers_cudnn else order


@functools.cache
def cudnn_version() -> int:
    """Version of cuDNN that counts: the one PyTorch was built with."""
    built_with = getattr(torch._C, "_cudnn", None)
    if built_with is not None:
        major, minor, patch = built_with.getCompileVersion()
        return int(major) * 10_000 + int(minor) * 100 + int(patch)
    versions = [version for release, version in _CUDNN_OF.items() if release <= RELEASE]
    return versions[-1] if versions else _CUDNN_BEFORE


def against(backend: SDPBackend, call: AttentionCall) -> str | None:
    """Why a kernel cannot run: the first condition that fails, as later ones presume it."""
    return next(_FUSED[backend][1](call), None) if backend in _FUSED else None


def _against_flash(call: AttentionCall) -> Iterator[str]:
    if not torch._C._get_flash_sdp_enabled():
        yield "Flash attention has been runtime disabled."
    yield from _against_dimensions(call)
    if call.mask is not None:
        yield "Flash Attention does not support non-null attn_mask."
    gpu, size = call.gpu, call.query.shape[-1]
    if not size == call.key.shape[-1] == call.value.shape[-1] or size > _MOST_FLASH_DIMENSIONS:
        yield (
            "Flash attention requires q,k,v to have the same last dimension and to be less than or "
            f"equal to {_MOST_FLASH_DIMENSIONS}. Got {_last_sizes(call)} instead."
        )
    if not has_major(gpu, 8):
        yield "it needs compute capability 8.0 or higher"
    # Some head dimensions have no backward kernel where a block has 99 KiB of shared memory:
    # ``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`` of ``sdp_utils.cpp``.
    is_small = gpu.major == 12 or (gpu.major == 8 and gpu.minor >= 6)
    has_backward = size <= 192 or (size > 224 and not call.dropout)
    if is_small and not has_backward and call.trains:
        yield f"{gpu.major}.{gpu.minor} has no backward pass for a head dimension of {size}"
    if call.causal and call.query.shape[-2] != call.key.shape[-2]:
        yield (
            "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. "
            f"Got seqlen_q: {call.query.shape[-2]} seqlen_k: {call.key.shape[-2]}."
        )
    yield from _against_dtypes(call, *LOW_PRECISION)
    yield from _against_heads(call, takes_groups=True)
    yield from _against_empty(call)
    yield from _against_strides(call, ignores_single=True)


def _against_efficient(call: AttentionCall) -> Iterator[str]:
    if not torch._C._get_mem_efficient_sdp_enabled():
        yield "Memory Efficient attention has been runtime disabled."
    yield from _against_dimensions(call)
    # The tiles of a matrix product read 4 to 16 bytes at once: ``minimum_gemm_alignment`` and
    # ``use_tensor_cores`` of ``sdp_utils.cpp``.
    is_half = call.query.dtype in LOW_PRECISION
    is_ampere = has_major(call.gpu, 8)
    elements = 1
    if is_ampere:
        elements = 8 if is_half else 4
    elif has_major(call.gpu, 7) and is_half:
        elements = 8
    query, key, value = (tensor.shape[-1] for tensor in call[1:4])
    if query != key or not query or not value or query % elements or value % elements:
        yield (
            "Mem efficient attention requires last dimension of inputs to be divisible by "
            f"{elements}. Got {_last_sizes(call)} instead."
        )
    nbytes = elements * call.query.element_size()
    if RELEASE >= (2, 13) and is_ampere:
        for tensor in call[1:4]:
            if tensor.numel() and tensor.storage_offset() * tensor.element_size() % nbytes:
                yield (
                    f"query, key and value must begin at a multiple of {nbytes} bytes of their "
                    "storage"
                )
    yield from _against_empty(call)
    yield from _against_strides(call, ignores_single=False)
    yield from _against_heads(call, takes_groups=False)
    bfloat16 = (torch.bfloat16,) if is_ampere else ()
    yield from _against_dtypes(call, torch.float16, torch.float32, *bfloat16)


def _against_cudnn(call: AttentionCall) -> Iterator[str]:
    if not torch._C._get_cudnn_sdp_enabled():
        yield "cuDNN attention has been runtime disabled."
    if is_deterministic():
        yield "it is not deterministic"
    yield from _against_dimensions(call)
    yield from _against_dtypes(call, *LOW_PRECISION)
    batch, heads, queries, size = call.query.shape
    keys, value_size = call.value.shape[2:]
    if call.mask is not None:
        if call.mask.requires_grad:
            yield "the mask requires a gradient"
        wanted = (batch, heads, queries, call.key.shape[2])
        pairs = zip(call.mask.shape[::-1], wanted[::-1], strict=False)
        if call.mask.dim() not in (2, 4) or any(extent not in (1, full) for extent, full in pairs):
            yield "the mask must have 2 or 4 dimensions"
    if not has_major(call.gpu, 8):
        yield "it needs compute capability 8.0 or higher"
    if call.dropout and 91100 < cudnn_version() < 91400:
        yield "cuDNN 9.11 to 9.13 has no dropout in attention"
    sixteenths = call.dropout * 16
    if RELEASE >= (2, 13) and sixteenths != math.floor(sixteenths):
        yield "a probability of dropout must be a multiple of 1/16"
    yield from _against_empty(call)
    yield from _against_strides(call, ignores_single=True)
    yield from _against_heads(call, takes_groups=True, alike=False)
    most = 128  # ``check_cudnn_tensor_shapes`` of ``sdp_utils.cpp``
    if has_capability(call.gpu, 9, 0) and cudnn_version() >= 91000:
        most = 256
    elif has_major(call.gpu, 10, 10) and cudnn_version() >= 91100:
        most = 192 if (size, value_size) == (192, 128) else 128
    if max(batch, heads) > _MOST_CUDNN_SIZE:
        yield f"batch and heads must be at most {_MOST_CUDNN_SIZE}"
    if max(size, value_size) > most or size % 8 or value_size % 8:
        yield f"head dimensions must be multiples of 8, at most {most}"
    if keys == 1 or (queries == 1 and call.dropout):
        yield "a sequence of 1 key, or of 1 query with dropout"


def _last_sizes(call: AttentionCall) -> str:
    query, key, value = (tensor.shape[-1] for tensor in call[1:4])
    return f"Query.size(-1): {query}, Key.size(-1): {key}, Value.size(-1): {value}"


_DTYPES: Final = {
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
}
_NAMES: Final = {
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.float64: "double",
}
"""Types of numbers as PyTorch lists what it allows, and as it names what it got."""


def _against_dimensions(call: AttentionCall) -> Iterator[str]:
    if not call.query.dim() == call.key.dim() == call.value.dim() == 4:
        dims = (tensor.dim() for tensor in call[1:4])
        yield (
            "Both fused kernels requires query, key and value to be 4 dimensional, but got Query "
            "dim: {}, Key dim: {}, Value dim: {} instead.".format(*dims)
        )


def _against_dtypes(call: AttentionCall, *dtypes: torch.dtype) -> Iterator[str]:
    if call.query.dtype not in dtypes:
        allowed = ", ".join(_DTYPES[dtype] for dtype in dtypes)
        query, key, value = (_NAMES.get(tensor.dtype, str(tensor.dtype)) for tensor in call[1:4])
        yield (
            f"Expected query, key and value to all be of dtype: {{{allowed}}}. Got Query dtype: "
            f"{query}, Key dtype: {key}, and Value dtype: {value} instead."
        )


def _against_empty(call: AttentionCall) -> Iterator[str]:
    if not call.query.shape[-2] or not call.key.shape[-2]:
        yield "Both fused kernels do not support zero seq_len_q or seq_len_kv."


def _against_strides(call: AttentionCall, *, ignores_single: bool) -> Iterator[str]:
    """Kernels read the last dimension as it lies in memory."""
    good = all(tensor.stride(-1) == 1 for tensor in call[1:4])
    if ignores_single:
        good = good or call.query.shape[-1] == 1
    if not good or (call.mask is not None and call.mask.stride(-1) != 1):
        strides = (tensor.stride(-1) for tensor in call[1:4])
        yield (
            "Both fused kernels require the last dimension of the input to have stride 1. Got "
            "Query.stride(-1): {}, Key.stride(-1): {}, Value.stride(-1): {}".format(*strides)
            + (f", Attn_mask.stride(-1): {call.mask.stride(-1)}" if call.mask is not None else "")
            + " instead."
        )


def _against_heads(call: AttentionCall, *, takes_groups: bool, alike: bool = True) -> Iterator[str]:
    query, key, value = (tensor.shape for tensor in call[1:4])
    if not query[0] == key[0] == value[0]:
        yield "query, key and value must have the same batch size"
    if not (call.grouped and takes_groups):
        if not query[1] == key[1] == value[1]:
            yield "query, key and value must have the same number of heads"
        return
    if alike and key[1] != value[1]:
        yield "key and value must have the same number of heads"
    if query[1] % key[1] or query[1] % value[1]:
        yield "the heads of key and value must divide those of the query"


_FUSED: Final[dict[SDPBackend, tuple[str, Callable[[AttentionCall], Iterator[str]]]]] = {
    SDPBackend.EFFICIENT: ("Memory efficient", _against_efficient),
    SDPBackend.FLASH: ("Flash attention", _against_flash),
    SDPBackend.CUDNN: ("CuDNN attention", _against_cudnn),
}
