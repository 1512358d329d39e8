"""Backward runs where forward ran: on the stream of each node's forward op, and on its GPU.

Autograd numbers its nodes in the order in which they are made. So a thread that writes down at
which number it changed streams knows the stream of every node that it made.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_NUMBER = 2**64 - 1
"""Number of a node that accumulates a gradient: it goes on where the node before it ran."""

_MOST_CHANGES = 2**14
"""The most that a thread remembers; nodes of older graphs are assumed to be on default streams."""

_current_node = torch._C._current_autograd_node
_next_number: Callable[[], int] = vars(torch.autograd)["_get_sequence_nr"]


class StreamChanges:
    """The streams that one thread uses, and used when it made each node."""

    def __init__(self) -> None:
        self.current: dict[int, int] = {}
        self._numbers: list[int] = []
        self._streams: list[dict[int, int]] = []
        self._node: int | None = None
        self.any_change = False
        """True if the thread ever used another stream than the default ones."""

    def use(self, index: int, stream: int) -> None:
        """Use a stream of a GPU from now on."""
        if self.current.get(index, 0) == stream:
            return
        self.any_change = True
        self.current = {**self.current, index: stream}
        number = _next_number()
        if self._numbers and self._numbers[-1] == number:
            self._streams[-1] = self.current
            return
        self._numbers.append(number)
        self._streams.append(self.current)
        if len(self._numbers) > _MOST_CHANGES:
            del self._numbers[: _MOST_CHANGES // 2]
            del self._streams[: _MOST_CHANGES // 2]

    def of_new_node(self) -> dict[int, int] | None:
        """The streams of the node that begins to run; None if no other node than before runs."""
        node: Any = _current_node()
        if node is None:
            return None
        number = node._sequence_nr()
        if number in (self._node, _NO_NUMBER):
            return None
        self._node = number
        position = bisect_right(self._numbers, number)
        return self._streams[position - 1] if position else {}

    def begin_backward(self) -> int | None:
        """Forget which node runs, for a backward pass that begins; return it for `end_backward`."""
        node, self._node = self._node, None
        return node

    def end_backward(self, node: int | None) -> None:
        """Remember the node in which a backward pass that ended was begun."""
        self._node = node
