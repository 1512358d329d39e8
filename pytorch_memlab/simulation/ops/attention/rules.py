"""Kernels that can compute an attention: the conditions of flash and memory-efficient attention.

From ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (torch 2.13;
2.4 differs where a release is named).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from ...hardware.decisions import has_major
from ...hardware.gpu import GPU

RELEASE: Final = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""Of PyTorch: its major and minor number."""

_HALF: Final = (torch.float16, torch.bfloat16)
_MOST_FLASH_DIMENSIONS: Final = 256


class Call(NamedTuple):
    """Arguments of ``scaled_dot_product_attention``, and who runs it.

    Args:
        gpu: that runs it.
        query: [batch, heads, queries, head dimension] where a fused kernel is to take it.
        key: [batch, heads, keys, head dimension].
        value: [batch, heads, keys, head dimension of values].
        mask: None, bool (what takes part) or added to the scores.
        dropout: probability.
        causal: whether keys behind a query are left out.
        grouped: ``enable_gqa``: key and value may have fewer heads than the query.
    """

    gpu: GPU
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def trains(self) -> bool:
        """True if a gradient of query, key or value will be wanted."""
        return torch.is_grad_enabled() and (
            self.query.requires_grad or self.key.requires_grad or self.value.requires_grad
        )


def against_flash(call: Call) -> str | None:
    """Why flash attention cannot run."""
    if not torch._C._get_flash_sdp_enabled():
        return "it is switched off"
    return (
        against_dimensions(call)
        or ("it takes no mask" if call.mask is not None else None)
        or _against_head_size(call)
        or (None if has_major(call.gpu, 8) else "it needs compute capability 8.0 or higher")
        or _against_gradient(call)
        or _against_oblong_causal(call)
        or against_dtypes(call, _HALF)
        or against_heads(call, takes_groups=True)
        or against_empty(call)
        or against_strides(call, ignores_single=True)
    )


def against_efficient(call: Call) -> str | None:
    """Why memory-efficient attention cannot run."""
    if not torch._C._get_mem_efficient_sdp_enabled():
        return "it is switched off"
    dtypes = (torch.float16, torch.float32)
    return (
        against_dimensions(call)
        or _against_alignment(call)
        or against_empty(call)
        or against_strides(call, ignores_single=False)
        or against_heads(call, takes_groups=False)
        or against_dtypes(call, (*dtypes, torch.bfloat16) if has_major(call.gpu, 8) else dtypes)
    )


def against_dimensions(call: Call) -> str | None:
    """No kernel takes other than four dimensions."""
    if call.query.dim() == call.key.dim() == call.value.dim() == 4:
        return None
    return "query, key and value must have 4 dimensions"


def against_dtypes(call: Call, dtypes: tuple[torch.dtype, ...]) -> str | None:
    """A kernel takes some dtypes."""
    if call.query.dtype in dtypes:
        return None
    return f"it takes {', '.join(map(str, dtypes))}, not {call.query.dtype}"


def against_empty(call: Call) -> str | None:
    """No kernel takes sequences without elements."""
    if call.query.shape[-2] and call.key.shape[-2]:
        return None
    return "a sequence is empty"


def against_strides(call: Call, *, ignores_single: bool) -> str | None:
    """Kernels read the last dimension as it lies in memory."""
    good = all(tensor.stride(-1) == 1 for tensor in call[1:4])
    if ignores_single:
        good = good or call.query.shape[-1] == 1
    if good and (call.mask is None or call.mask.stride(-1) == 1):
        return None
    return "the last dimension of query, key, value and mask must have stride 1"


def against_heads(call: Call, *, takes_groups: bool, alike: bool = True) -> str | None:
    """Batches must be equal, and heads too, but for grouped queries."""
    query, key, value = (tensor.shape for tensor in call[1:4])
    if not query[0] == key[0] == value[0]:
        return "query, key and value must have the same batch size"
    if not (call.grouped and takes_groups):
        if query[1] == key[1] == value[1]:
            return None
        return "query, key and value must have the same number of heads"
    if alike and key[1] != value[1]:
        return "key and value must have the same number of heads"
    if query[1] % key[1] or query[1] % value[1]:
        return "the heads of key and value must divide those of the query"
    return None


def _against_head_size(call: Call) -> str | None:
    size = call.query.shape[-1]
    if size == call.key.shape[-1] == call.value.shape[-1] and size <= _MOST_FLASH_DIMENSIONS:
        return None
    return f"head dimensions must be equal and at most {_MOST_FLASH_DIMENSIONS}"


def _against_gradient(call: Call) -> str | None:
    """Some head dimensions have no backward kernel where a block has 99 KiB of shared memory."""
    gpu, size = call.gpu, call.query.shape[-1]
    if size <= 192 or (size > 224 and not call.dropout) or not call.trains:
        return None
    if not (gpu.major == 8 and gpu.minor >= 6) and gpu.major != 12:
        return None
    return f"{gpu.major}.{gpu.minor} has no backward pass for a head dimension of {size}"


def _against_oblong_causal(call: Call) -> str | None:
    if not call.causal or call.query.shape[-2] == call.key.shape[-2]:
        return None
    return "is_causal needs as many queries as keys"


def _against_alignment(call: Call) -> str | None:
    """The tiles of a matrix product read 4 to 16 bytes at once."""
    is_half = call.query.dtype in _HALF
    elements = 1
    if has_major(call.gpu, 8):
        elements = 8 if is_half else 4
    elif has_major(call.gpu, 7) and is_half:
        elements = 8
    query, key, value = (tensor.shape[-1] for tensor in call[1:4])
    if query != key or not query or not value or query % elements or value % elements:
        return f"head dimensions must be multiples of {elements}, equal for query and key"
    if RELEASE >= (2, 13) and has_major(call.gpu, 8):
        return _against_offsets(call, elements)
    return None


def _against_offsets(call: Call, elements: int) -> str | None:
    nbytes = elements * call.query.element_size()
    if all(
        not tensor.numel() or tensor.storage_offset() * tensor.element_size() % nbytes == 0
        for tensor in call[1:4]
    ):
        return None
    return f"query, key and value must begin at a multiple of {nbytes} bytes of their storage"
