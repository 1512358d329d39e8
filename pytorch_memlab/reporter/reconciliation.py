"""Every allocated byte explained: tensors, saved tensors, rounding, workspaces, and the rest."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter
from dataclasses import replace

import torch

from ..devices import get_device
from ..devices.allocations import (
    AllocatedBlock,
    allocations_of,
    driver_view,
    unused_private_memory,
    workspaces_among,
)
from ..errors import MemlabError
from ..tensors.lines import program_line
from .memory_snapshot import SAVED, Reconciliation, TensorRow
from .names import are_results
from .rows import Rows


def reconciled(rows: Rows) -> list[Reconciliation]:
    """The memory in parts, of each device that counts its memory."""
    devices = dict.fromkeys(row.device for row in rows.tensors)
    if torch.cuda.is_available():
        devices |= dict.fromkeys(torch.device("cuda", i) for i in range(torch.cuda.device_count()))
    reconciliations = (_of_device(device, rows) for device in devices)
    return [reconciliation for reconciliation in reconciliations if reconciliation is not None]


def _counters(device: torch.device) -> tuple[int, int] | None:
    """Bytes allocated and reserved on a device, None if its allocator does not count."""
    if device.type in ("cpu", "meta"):
        return None
    try:
        stats = get_device(device).stats()
        allocated, reserved = (
            stats[f"{name}_bytes"]["all"]["current"] if stats else 0
            for name in ("allocated", "reserved")
        )
    except (MemlabError, RuntimeError, KeyError):
        return None
    return int(allocated), int(reserved)


def with_allocation_lines(rows: Rows) -> tuple[TensorRow, ...]:
    """The rows, with the lines that allocated them as PyTorch's own memory history knows them."""
    blocks: dict[torch.device, dict[int, AllocatedBlock]] = {}
    result = []
    for row, piece in zip(rows.tensors, rows.storages, strict=True):
        if row.line is None and piece is not None:
            if row.device not in blocks:
                allocations = allocations_of(row.device) or ()
                blocks[row.device] = {block.address: block for block in allocations if block.frames}
            block = blocks[row.device].get(piece.storage[1])
            line = program_line(block.frames) if block else None
            if line is not None:
                name = f"{row.name} ({line})" if row.name.startswith("saved by ") else row.name
                row = replace(row, name=name, line=line)
        result.append(row)
    return tuple(result)


def _of_device(device: torch.device, rows: Rows) -> Reconciliation | None:
    counted = _counters(device)
    if counted is None:
        return None
    allocated, reserved = counted
    blocks = allocations_of(device)
    if blocks is None:
        return _without_blocks(device, rows, allocated, reserved)
    blocks.sort(key=lambda block: block.address)
    tensors, saved, foreign, unclaimed = _claimed(device, rows, blocks)
    workspace_blocks, are_known = workspaces_among(unclaimed, device)
    workspaces = sum(block.requested for block in workspace_blocks)
    here = [row for row in rows.tensors if row.device == device]
    requested = sum(block.requested for block in blocks)
    allocated = sum(block.size for block in blocks)
    unknown = requested - tensors - saved - workspaces
    used, process = driver_view(device)
    graphs = unused_private_memory(device)
    return Reconciliation(
        device,
        tensors,
        saved,
        allocated - requested,
        workspaces,
        unknown,
        allocated,
        reserved - allocated - graphs,
        reserved,
        None if process is None else process - reserved,
        None if used is None or process is None else used - process,
        used,
        graphs,
        foreign,
        workspaces_by_size=bool(workspace_blocks) and not are_known,
        results_of_cells=sum(row.nbytes for row in here if are_results(row.name)),
        frozen_objects=gc.get_freeze_count() if unknown else 0,  # counting them takes time
    )


def _without_blocks(
    device: torch.device, rows: Rows, allocated: int, reserved: int
) -> Reconciliation | None:
    """The parts that are known of a device whose allocator does not list its blocks."""
    here = [row for row in rows.tensors if row.device == device]
    if not here:
        return None  # this process does not use it
    saved = sum(row.nbytes for row in here if row.category == SAVED)
    tensors = sum(row.nbytes for row in here) - saved
    return Reconciliation(
        *(device, tensors, saved, 0, 0, allocated - tensors - saved),
        *(allocated, reserved - allocated, reserved),
        shows_blocks=False,
    )


def _claimed(
    device: torch.device, rows: Rows, blocks: list[AllocatedBlock]
) -> tuple[int, int, int, list[AllocatedBlock]]:
    """Bytes of tensors, of saved ones, and of those outside of blocks; the blocks without any."""
    addresses = [block.address for block in blocks]
    claimed = Counter[int]()
    tensors = saved = foreign = 0
    for row, piece in zip(rows.tensors, rows.storages, strict=True):
        if piece is None or row.device != device or not piece.number:
            continue
        address = piece.storage[1]
        index = bisect_right(addresses, address) - 1
        if index < 0 or address >= blocks[index].address + blocks[index].size:
            foreign += row.nbytes
            continue
        size = min(row.nbytes, blocks[index].requested - claimed[index])
        claimed[index] += size
        if row.category == SAVED:
            saved += size
        else:
            tensors += size
    return tensors, saved, foreign, [block for n, block in enumerate(blocks) if n not in claimed]


def description_of(device: torch.device) -> str:
    """The name of the hardware, and whether it is simulated; empty if it is not known."""
    try:
        info = get_device(device).info
    except (MemlabError, RuntimeError):
        return ""
    return f"{info.description}, simulated" if info.simulated else info.description
