"""The streams of a GPU, and which one of them each node of autograd runs on.

PyTorch makes 32 streams of each priority once, and hands them out in turn.

Backward runs where forward ran: on the stream of each node's forward op, and on its GPU. Autograd
numbers its nodes in the order in which they are made. So a thread that writes down at which number
it changed streams knows the stream of every node that it made. A node that accumulates the gradient
of a leaf has no number: it is made with the first node that uses the leaf, and runs on its stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
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
"""Number of a node that accumulates the gradient of a leaf."""

_MOST_CHANGES = 2**14
"""The most that a thread remembers; nodes of older graphs are assumed to be on default streams."""

_current_node = torch._C._current_autograd_node
_next_number: Callable[[], int] = vars(torch.autograd)["_get_sequence_nr"]


class BackwardPass:
    """The node that a backward pass runs, and the number of the first node that used each leaf."""

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        self._roots = [node for node in map(_node_of, roots) if node is not None]
        self._first_uses: dict[int, int] | None = None
        self.node: int | None = None

    def first_use(self, accumulation: Any) -> int | None:
        """The number of the first node that used a leaf, from the node that accumulates for it."""
        if self._first_uses is None:
            self._first_uses = _first_uses(self._roots)
        return self._first_uses.get(id(accumulation.variable))


def _node_of(root: Any) -> Any:
    """The node of a tensor, or of a ``GradientEdge``."""
    return root.grad_fn if isinstance(root, torch.Tensor) else root[0]


def _first_uses(roots: list[Any]) -> dict[int, int]:
    """The lowest number of the nodes that lead to each leaf, by the identity of the leaf."""
    first_uses: dict[int, int] = {}
    waiting, seen = list(roots), set(roots)
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following._sequence_nr() == _NO_NUMBER:
                leaf, number = id(following.variable), node._sequence_nr()
                first_uses[leaf] = min(number, first_uses.get(leaf, number))
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
    return first_uses


class StreamChanges:
    """The streams that one thread uses, and used when it made each node."""

    def __init__(self) -> None:
        self.current: dict[int, int] = {}
        self._numbers: list[int] = []
        self._streams: list[dict[int, int]] = []
        self._backward = BackwardPass()
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
        number: int | None = node._sequence_nr()
        if number == _NO_NUMBER:
            number = self._backward.first_use(node)
        if number in (self._backward.node, None):
            return None
        self._backward.node = number
        position = bisect_right(self._numbers, number)
        return self._streams[position - 1] if position else {}

    def begin_backward(self, roots: Iterable[Any]) -> BackwardPass:
        """Forget which node runs; return what `end_backward` needs."""
        before, self._backward = self._backward, BackwardPass(roots)
        return before

    def end_backward(self, before: BackwardPass) -> None:
        """Go on with the backward pass in which one that ended was begun."""
        self._backward = before
