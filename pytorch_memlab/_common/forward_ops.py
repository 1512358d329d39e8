"""The forward op that made the node of autograd which runs in a backward pass."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import torch

T = TypeVar("T")

MOST_NODES: Final = 2**16
"""Nodes of one thread that are remembered: those of older ones were used, or their graph is gone.
A node takes about 200 bytes."""

_MOST_THREADS: Final = 64
"""Threads that are remembered when some of them have ended: a graph may outlive its thread."""

_LEAF: Final = 2**64 - 1
"""Number of the nodes that accumulate a gradient: no op made them."""

_VERSION: Final = re.compile(r"Backward\d*$")
_next_number: Callable[[], int] = vars(torch.autograd)["_get_sequence_nr"]
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class _Notes(Generic[T]):
    """Notes of one thread on the nodes that it made.

    Attributes:
        last: number of the next node when the thread noted last.
        makes_node: whether the op that runs made a node.
        of_nodes: op and note of each node, by its number.
    """

    __slots__ = ("__weakref__", "last", "makes_node", "of_nodes")

    def __init__(self) -> None:
        self.last = _next_number()
        self.makes_node = False
        self.of_nodes: dict[int, tuple[Any, T]] = {}


class _Threads(Generic[T]):
    """The notes of all threads. Those of a thread that runs stay, however many others end."""

    def __init__(self) -> None:
        self.nodes: list[dict[int, tuple[Any, T]]] = []
        self._owners: list[weakref.ref[_Notes[T]]] = []
        self._lock = threading.Lock()

    def add(self, notes: _Notes[T]) -> None:
        with self._lock:
            self.nodes.append(notes.of_nodes)
            self._owners.append(weakref.ref(notes))
            if len(self.nodes) > _MOST_THREADS:
                ended = (place for place, owner in enumerate(self._owners) if owner() is None)
                oldest = next(ended, None)
                if oldest is not None:
                    del self.nodes[oldest], self._owners[oldest]


class _Thread(threading.local, Generic[T]):
    """The notes of each thread, which an op looks up once."""

    def __init__(self, threads: _Threads[T]) -> None:
        self.notes: _Notes[T] = _Notes()
        threads.add(self.notes)


class ForwardOps(Generic[T]):
    """Notes for nodes of autograd, by the sequence numbers that a thread gives them.

    An op runs below autograd after its node was made. So the nodes that were made since the op
    before are those of this op.
    """

    def __init__(self, note: Callable[[], T]) -> None:
        self._note = note
        threads: _Threads[T] = _Threads()
        self._threads = threads.nodes
        self._thread: _Thread[T] = _Thread(threads)

    def op_runs(self, op: Any) -> None:
        """An op runs in this thread."""
        notes = self._thread.notes
        number = _next_number()
        last = notes.last
        if number == last:
            notes.makes_node = False
            return
        notes.makes_node = True
        notes.last = number
        note = (op, self._note())
        of_nodes = notes.of_nodes
        for made in range(max(last, number - MOST_NODES), number):
            of_nodes[made] = note
        if len(of_nodes) > MOST_NODES:
            for old in list(islice(of_nodes, len(of_nodes) - MOST_NODES // 2)):
                del of_nodes[old]

    def makes_node(self) -> bool:
        """True if the op that runs in this thread made a node of autograd."""
        return self._thread.notes.makes_node

    def of_current_node(self) -> T | None:
        """The note of the op whose backward runs now in this thread; None if there is none.

        Another thread may have made the node: where several made one of its number, the op's name
        decides, and then the thread.
        """
        node = _current_node()
        if node is None:
            return None
        number = node._sequence_nr()
        if number == _LEAF:
            return None
        own = self._thread.notes.of_nodes.get(number)
        if own is not None and len(self._threads) == 1:
            return own[1]
        found = [notes[number] for notes in self._threads.copy() if number in notes]
        if len(found) > 1:
            wanted = _plain(_VERSION.sub("", node.name().rpartition("::")[2]))
            named = [each for each in found if _plain(_name_of(each[0])) == wanted]
            if len(named) == 1 and (own is None or own not in named):
                return named[0][1]
        if own is not None:
            return own[1]
        return found[0][1] if len(found) == 1 else None

    def forget(self, forgotten: Callable[[T], object] = lambda _note: None) -> None:
        """Forget all nodes that were made so far."""
        for notes in self._threads.copy():
            for _, note in list(notes.values()):
                forgotten(note)
            notes.clear()


def _name_of(op: Any) -> str:
    return str(op).partition(".")[2].partition(".")[0]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
