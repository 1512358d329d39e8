"""Calls of attention on simulated GPUs, their backends and what they allocate."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from support.dry_run_comparison import allocator_events

FLASH, EFFICIENT, CUDNN, MATH = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)

NODES = {
    FLASH: "ScaledDotProductFlashAttentionBackward0",
    EFFICIENT: "ScaledDotProductEfficientAttentionBackward0",
    CUDNN: "ScaledDotProductCudnnAttentionBackward0",
}


def tensors(dtype=torch.float16, sizes=(2, 8, 64, 64), keys=None, heads=None, grad=True):
    """Query, key and value on the simulated GPU."""
    batch, all_heads, queries, size = sizes
    own = (batch, heads or all_heads, keys or queries, size)
    return [
        torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=grad)
        for shape in (sizes, own, own)
    ]


def node_of(result: torch.Tensor) -> str:
    """Name of the node that made a result."""
    return type(result.grad_fn).__name__


def taken(call: Any) -> list[int]:
    """Bytes of each allocation that a call makes, in order."""
    with allocator_events() as events:
        call()
    return [event[1] for event in events if event[0] == "malloc" and event[1]]
