"""From living tensors to the rows of a report, each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ..tensors.held import not_held
from ..tensors.living import gradient_of
from ..tensors.memory import META, Piece, StorageKey, SymbolicSize, parts_of, pieces_of
from ..tensors.saved import LEAF, saved_for_backward
from .names import TensorNames

ALLOCATION_UNIT = 512
"""Bytes: the CUDA caching allocator rounds every request up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of a report.

    Args:
        name: what the tensor is called.
        device: where its memory is.
        size: length of each dimension, ``(1,)`` for a scalar.
        numel: number of elements.
        memory: bytes, a multiple of 512; 0 for a row whose storage an earlier row counts.
        shares: name of that earlier row, else None.
    """

    name: str
    device: torch.device
    size: tuple[int | SymbolicSize, ...]
    numel: int
    memory: int
    shares: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a report.

    Args:
        tensors: devices in the order of the report, rows in theirs.
        graphs: devices on which autograd still keeps tensors for backward.
    """

    tensors: tuple[TensorRow, ...]
    graphs: frozenset[torch.device]


def rows_of(tensors: list[torch.Tensor], names: TensorNames) -> Rows:
    """Describe living tensors, and those that autograd keeps for them.

    Parameters come first, each with its gradient, in the order of the model; then buffers,
    optimizer state, the other tensors by age, and last what only autograd or other C++ holds. A
    shared storage counts for the first of its rows.

    Args:
        tensors: those that Python knows, oldest first.
        names: what they are called; tensors without a name get one.

    Returns:
        the rows: GPUs first, meta and fake tensors (which hold nothing) last.
    """
    unheld = not_held(tensors)
    visible = [tensor for tensor in tensors if id(tensor) not in unheld]
    described = [
        (tensor, owner, piece)
        for tensor, owner in _in_order(names.known(), visible)
        for piece in pieces_of(tensor)
        if piece.nbytes or 0 not in piece.size
    ]
    described.sort(key=lambda item: _rank(item[2].device))  # numbers follow the report's order
    counted = _Counted()
    rows = [
        counted.row(names.of(tensor) if owner is None else f"{names.of(owner)}.grad", piece)
        for tensor, owner, piece in described
    ]
    graphs: set[torch.device] = set()
    for node, tensor in saved_for_backward(tensors):
        pieces = pieces_of(tensor)
        rows += counted.new_rows(f"saved by {node}", pieces)
        if node != LEAF:
            graphs.update(piece.device for piece in pieces)
    for tensor in tensors:
        if id(tensor) in unheld:
            pieces = [piece for piece in pieces_of(tensor) if counted.is_new(piece)]
            if pieces:
                rows += counted.new_rows(names.of(tensor), pieces)
    rows.sort(key=lambda row: _rank(row.device))
    return Rows(tuple(rows), frozenset(graphs))


class _Counted:
    """Storages that have a row already."""

    def __init__(self) -> None:
        self.names: dict[StorageKey, str] = {}

    def is_new(self, piece: Piece) -> bool:
        return piece.nbytes > 0 and piece.storage not in self.names

    def new_rows(self, name: str, pieces: list[Piece]) -> list[TensorRow]:
        return [self.row(name, piece) for piece in pieces if self.is_new(piece)]

    def row(self, name: str, piece: Piece) -> TensorRow:
        name += piece.suffix
        first = self.names.setdefault(piece.storage, name)
        shared = first is not name
        memory = 0 if shared else -(-piece.nbytes // ALLOCATION_UNIT) * ALLOCATION_UNIT
        return TensorRow(
            name, piece.device, piece.size, piece.numel, memory, first if shared else None
        )


def _in_order(
    named: Iterable[torch.Tensor], others: list[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Each tensor once, its gradient after it; with a gradient comes the tensor it belongs to."""
    order: dict[int, torch.Tensor] = {}
    for tensor in (*named, *others):
        order.setdefault(id(tensor), tensor)
    gradients = {
        key: gradient
        for key, tensor in order.items()
        if (gradient := gradient_of(tensor)) is not None
    }
    shown_elsewhere = [*gradients.values(), *(p for t in order.values() for p in _inner(t))]
    hidden = {id(tensor) for tensor in shown_elsewhere}
    for key, tensor in order.items():
        if key in hidden:
            continue
        yield tensor, None
        if key in gradients:
            yield gradients[key], tensor


def _inner(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that are shown as parts of another one."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return []
    with torch.no_grad():
        try:
            return [part for _, part in parts_of(tensor) if part is not tensor]
        except Exception:
            return []


def _rank(device: torch.device) -> tuple[int, str, int]:
    group = 2 if device == META else 1 if device.type == "cpu" else 0
    return group, device.type, device.index or 0
