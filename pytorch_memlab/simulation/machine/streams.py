"""The streams of a GPU, and which one of them each node of autograd runs on.

PyTorch makes 32 streams of each priority once, and hands them out in turn.

Backward runs where forward ran: on the stream of each node's forward op, and on its GPU. Autograd
numbers its nodes in the order in which they are made. So a thread that writes down at which number
it changed streams knows the stream of every node that it made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch

STREAMS_PER_PRIORITY = 32
PRIORITIES = 4  # the most that PyTorch uses of what a GPU offers (``c10/cuda/CUDAStream.cpp``)

_DEVICE_SHIFT = 16  # of a handle: the bits of a stream's id, which are fewer, lie below


class StreamIds:
    """Hands out the streams of one GPU. An id's bits are those that ``c10::cuda`` gives it."""

    def __init__(self) -> None:
        self._given = [0] * PRIORITIES

    @property
    def any_given(self) -> bool:
        """True if the GPU has other streams than the default one."""
        return any(self._given)

    def next(self, priority: int) -> int:
        level = min(max(-priority, 0), PRIORITIES - 1)
        index = self._given[level] % STREAMS_PER_PRIORITY
        self._given[level] += 1
        return _id(level, index)


def all_ids() -> list[int]:
    """Ids of all streams of a GPU but the default one."""
    return [
        _id(level, index) for index in range(STREAMS_PER_PRIORITY) for level in range(PRIORITIES)
    ]


def priority_of(stream_id: int) -> int:
    return -max((stream_id >> 1 & 0xF) - 1, 0)


def handle_of(stream_id: int, device_index: int) -> int:
    """A number in place of CUDA's pointer to a stream: 0 for the default stream, or unique."""
    return stream_id and device_index << _DEVICE_SHIFT | stream_id


def id_of(handle: int) -> int:
    """Id of the stream that a handle stands for."""
    return handle & (1 << _DEVICE_SHIFT) - 1


def _id(level: int, index: int) -> int:
    return index << 5 | (level + 1) << 1 | 1


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
        self.any_change = False  # whether the thread ever used another stream than the default ones

    def use(self, index: int, stream: int) -> None:
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
