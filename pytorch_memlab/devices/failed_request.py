"""The state of a real GPU when a request failed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import torch

from ..simulation.inspect import FailedRequest, FreeBlock, PrivateMemory
from .allocations import driver_view, is_private

_SIZE: Final = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_TRIED: Final = re.compile(rf"Tried to allocate {_SIZE}")
_ALLOWED: Final = re.compile(rf"{_SIZE} allowed")
_GPU: Final = re.compile(r"GPU (\d+) has a total capacity")
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_noted: dict[int, FailedRequest] = {}
"""The last request that failed on each GPU, as PyTorch's observer told it."""
_observed: list[object] = []


def observe() -> None:
    """Note the state of each GPU at an error, once CUDA is in use; no observer can be detached."""
    attach: Any = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or attach in _observed or not torch.cuda.is_initialized():
        return
    _observed.append(attach)
    attach(_note)


def failed_on_gpu(error: BaseException) -> FailedRequest | None:
    """The request of an error that names a GPU, with the state at that moment, else now."""
    text = str(error)
    named = _GPU.search(text)
    tried = _bytes(_TRIED.search(text))
    if named is None or tried is None:
        return None
    device = int(named.group(1))
    noted = _noted.pop(device, None)
    if noted is None or abs(noted.segment - tried) * 100 > tried:
        noted = _state(device, tried)
    return replace(noted, text=text, allowed=_bytes(_ALLOWED.search(text)))


def _note(device: int, size: int, _total: int, free: int) -> None:
    """PyTorch calls this when a request fails, before it raises."""
    try:
        _noted[device] = _state(device, size, free)
    except Exception:  # the program's own error is worth more
        _noted.pop(device, None)


def _state(device: int, segment: int, free: int | None = None) -> FailedRequest:
    """The state now, but for the bytes that were free."""
    now_free, capacity = torch.cuda.mem_get_info(device)
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == device]
    reserved = sum(segment["total_size"] for segment in segments)
    _, process = driver_view(torch.device("cuda", device))
    blocks: dict[int, int] = {}
    free_blocks: list[FreeBlock] = []
    private = unused = 0
    for segment_data in segments:
        private += segment_data["total_size"] if is_private(segment_data) else 0
        address = segment_data["address"]
        for block in segment_data["blocks"]:
            if block["state"] == "inactive" and is_private(segment_data):
                unused += block["size"]
            elif block["state"] == "inactive":
                free_blocks.append(FreeBlock(block["size"], segment_data["stream"]))
            else:
                blocks[block.get("address", address)] = block["size"]
            address += block["size"]
    free = now_free if free is None else free
    return FailedRequest(
        "",
        device,
        requested=segment,
        segment=segment,
        stream=0,
        capacity=capacity,
        free=free,
        context=None if process is None else process - reserved,
        others=None if process is None else capacity - free - process,
        allowed=None,
        reserved=reserved,
        blocks=blocks,
        free_blocks=tuple(free_blocks),
        private=PrivateMemory(private, unused),
    )


def _bytes(size: re.Match[str] | None) -> int | None:
    return None if size is None else int(float(size.group(1)) * _UNITS[size.group(2)])
