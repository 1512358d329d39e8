"""From live tensors to the rows of a report, each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..history.block_categories import TensorCategories
from ..tensors.lines import SourceLine, line_of
from ..tensors.live_objects import LiveObjects, gradient_of, unreferenced
from ..tensors.memory import META, Piece, StorageKey, inner_parts, pieces_of
from ..tensors.saved import LEAF, grad_fn, name_of, saved_by_graphs
from .memory_snapshot import ALLOCATION_UNIT, GRADIENTS, OTHERS, SAVED, TensorRow
from .names import NamesNow


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a report."""

    tensors: tuple[TensorRow, ...]
    # what each row that counts a storage counts, None for the other rows
    storages: tuple[Piece | None, ...]
    graphs: frozenset[torch.device]


def rows_of(live: LiveObjects, names: NamesNow, categories: TensorCategories) -> Rows:
    """Describe live tensors, and those that autograd saves for them."""
    # Parameters come first, each with its gradient, in the order of the model; then buffers,
    # optimizer state, variables in the order in which they are found (views after all others), the
    # other tensors by age, and last what only autograd or other C++ references. A shared storage
    # counts for the first of its rows.
    tensors = live.tensors
    released = unreferenced(tensors)
    visible = [tensor for tensor in tensors if id(tensor) not in released]
    variables = [tensor for tensor in visible if names.is_variable(tensor)]
    variables.sort(key=lambda tensor: (_is_view(tensor), names.place(tensor)))
    described = [
        (tensor, owner, piece)
        for tensor, owner in _in_order((*names.known(), *variables, *visible))
        for piece in pieces_of(tensor)
        if piece.nbytes or 0 not in piece.size
    ]
    described.sort(key=lambda item: _rank(item[2].device))  # numbers follow the report's order
    table = _Table(live, names, _holders(variables, names))
    for tensor, owner, piece in described:
        if owner is None:
            name, category = names.of(tensor), categories.of(tensor).value
            table.add(name, piece, tensor, category, names.is_variable(tensor))
        else:
            table.add(f"{names.of(owner)}.grad", piece, tensor, GRADIENTS)
    for key in table.saved:
        table.add_saved(key)
    for tensor in tensors:
        if id(tensor) in released:
            pieces = [piece for piece in pieces_of(tensor) if table.is_new(piece)]
            for piece in pieces:
                category = categories.of(tensor).value
                table.add(names.of(tensor), piece, tensor, category, is_only_saved=True)
    return table.finished()


class _Table:
    """Rows, and the storages that have one already."""

    def __init__(
        self, live: LiveObjects, names: NamesNow, holders: Mapping[StorageKey, str]
    ) -> None:
        self.saved: dict[StorageKey, tuple[torch.Tensor, Piece]] = {}
        """The storages that graphs save for backward."""
        self._nodes: dict[StorageKey, Any] = {}  # that saved them first to compute a gradient with
        self._now = names
        self._holders = holders
        self._names: dict[StorageKey, str] = {}
        self._rows: list[tuple[TensorRow, Piece | None]] = []
        for node, tensor in saved_by_graphs([*map(grad_fn, live.tensors), *live.nodes]):
            is_leaf = name_of(node) == LEAF
            for piece in pieces_of(tensor):
                storage_piece = self.saved.get(piece.storage)
                # A product of matrices saves a view of three dimensions of what others save whole.
                if storage_piece is None or _is_view_of(storage_piece[1], piece):
                    self.saved[piece.storage] = tensor, piece
                if not is_leaf:
                    self._nodes.setdefault(piece.storage, node)

    def add_saved(self, key: StorageKey) -> None:
        """Add a row for a storage that no tensor of the program looks at."""
        tensor, piece = self.saved[key]
        if self.is_new(piece):
            name, line = self._saver(key) or (LEAF, None)
            name = f"saved by {name}" + (f" ({line})" if line else "")
            self.add(name, piece, tensor, SAVED, is_only_saved=True)

    def _saver(self, key: StorageKey) -> tuple[str, SourceLine | None] | None:
        node = self._nodes.get(key)
        return None if node is None else (name_of(node), line_of(node))

    def is_new(self, piece: Piece) -> bool:
        return piece.nbytes > 0 and piece.storage not in self._names

    def add(
        self,
        name: str,
        piece: Piece,
        tensor: torch.Tensor,
        category: str,
        has_name: bool = True,
        *,
        is_only_saved: bool = False,
    ) -> None:
        name += piece.suffix
        first = self._names.setdefault(piece.storage, name)
        shared = first is not name
        nbytes = 0 if shared else piece.nbytes
        node, line = (self._saver(piece.storage) if nbytes else None) or (None, None)
        if category == OTHERS and node and (grad_fn(tensor) is not None or not has_name):
            category = SAVED
        row = TensorRow(
            name,
            piece.device,
            piece.size,
            piece.numel,
            -(-nbytes // ALLOCATION_UNIT) * ALLOCATION_UNIT,
            first if shared else None,
            category,
            nbytes,
            piece.dtype,
            not piece.suffix and _is_view(tensor),
            node,
            line,
            f"{self._now.identity(tensor)}{piece.suffix}" if nbytes else "",
            holder=self._holders.get(piece.storage) if is_only_saved else None,
        )
        self._rows.append((row, piece if nbytes else None))

    def finished(self) -> Rows:
        self._rows.sort(key=lambda pair: _rank(pair[0].device))
        rows = tuple(row for row, _ in self._rows)
        storages = tuple(piece for _, piece in self._rows)
        return Rows(rows, storages, frozenset(self.saved[key][1].device for key in self._nodes))


def _holders(variables: Iterable[torch.Tensor], names: NamesNow) -> dict[StorageKey, str]:
    """The variable whose graph saves a storage: a container that has several, if there is one."""
    holders: dict[StorageKey, str] = {}
    seen: dict[int, Any] = {}
    for tensor in sorted(variables, key=lambda tensor: "[" not in names.of(tensor)):
        for node, saved in saved_by_graphs([grad_fn(tensor)], seen):
            if name_of(node) != LEAF:
                for piece in pieces_of(saved):
                    holders.setdefault(piece.storage, names.of(tensor))
    return holders


def _in_order(
    tensors: Iterable[torch.Tensor],
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Each tensor once, its gradient after it; with a gradient comes the tensor it belongs to."""
    order = {id(tensor): tensor for tensor in tensors}
    gradients = {key: gradient_of(tensor) for key, tensor in order.items()}
    # The parts stay alive: a part that is made when it is asked for would give its id away.
    parts = [part for tensor in order.values() for part in inner_parts(tensor)]
    hidden = {*map(id, gradients.values()), *map(id, parts)}
    for key, tensor in order.items():
        gradient = gradients[key]
        if key not in hidden:
            yield tensor, None
            if gradient is not None:
                yield gradient, tensor


def _is_view(tensor: Any) -> bool:
    """True if a tensor looks at the memory of another, or at a part of its storage."""
    with torch._C.DisableTorchFunction():  # whose modes have no say here, nor has a subclass
        try:
            return bool(tensor._is_view())
        except Exception:
            return False


def _rank(device: torch.device) -> tuple[int, str, int]:
    group = 2 if device == META else 1 if device.type == "cpu" else 0
    return group, device.type, device.index or 0


def _is_view_of(piece: Piece, other: Piece) -> bool:
    """True for a piece with fewer dimensions than another of as many bytes."""
    return len(piece.size) < len(other.size) and piece.nbytes == other.nbytes
