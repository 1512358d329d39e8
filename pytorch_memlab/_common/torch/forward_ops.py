"""The forward op that made the node of autograd which runs in a backward pass."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import torch

from ..frames.call_stacks import TakenStack, call_stacks, capture

MOST_NODES: Final = 2**16
"""Nodes of one thread that are remembered: those of older ones were used, or their graph is gone.
A node takes about 10 bytes once its stack was read, and about 120 before."""

_AT_ONCE: Final = 1024
"""New nodes after which equal stacks are looked for."""

_MOST_DIFFERENT: Final = 4096
"""Different stacks that are looked for."""

_MOST_THREADS: Final = 64
"""Threads that are remembered when some of them have ended: a graph may outlive its thread."""

_LEAF: Final = 2**64 - 1
"""Number of the nodes that accumulate a gradient: no op made them."""

_OF_CHANGED_VIEW: Final = "torch::autograd::CopySlices"
_OF_NEW_VIEW: Final = "AsStridedBackward0"
"""Nodes that autograd makes when an op that changes a view has run: first one that has the op's own
node within it, then one for the view."""

_VERSION: Final = re.compile(r"Backward\d*$")
_next_number: Callable[[], int] = vars(torch.autograd)["_get_sequence_nr"]
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_modes_that_wait: Callable[[], int] = getattr(
    torch._C, "_len_torch_dispatch_stack", count().__next__
)
"""Without torch's function no two calls agree, so the stack of every allocation is taken."""


class OpStack(TakenStack):
    """The stack of an op that made a node of autograd."""

    module = ""  # path of the module that ran the op; empty if none did

    def __init__(self, op: Any) -> None:
        super().__init__(capture())
        self.op = op
        call_stacks.add(self)


class NodeStacks:
    """The stacks of the ops that made the nodes of one thread, whose numbers follow each other."""

    # Of a loop they are equal but for the first ones: once they were read, one stands for all.

    __slots__ = ("_different", "_nodes", "_shared")

    def __init__(self) -> None:
        # Number of the first node, the stacks, and for each whether its op made the node before
        # too. Another thread may read while this one drops the oldest: so they change as one.
        self._nodes: tuple[int, list[OpStack], bytearray] = 0, [], bytearray()
        self._shared = 0  # how many of them were compared
        self._different: dict[tuple[int, int, str], OpStack] = {}

    def __len__(self) -> int:
        return len(self._nodes[1])

    def get(self, number: int) -> OpStack | None:
        first, stacks, _ = self._nodes
        place = number - first
        return stacks[place] if 0 <= place < len(stacks) else None

    def is_second(self, number: int) -> bool:
        """True if the op of a node made the node before it too."""
        first, stacks, are_second = self._nodes
        place = number - first
        return 0 <= place < len(stacks) and bool(are_second[place])

    def values(self) -> list[OpStack]:
        return self._nodes[1].copy()

    def add(self, begin: int, end: int, stack: OpStack) -> None:
        """Note the op that made the nodes from one number to another."""
        first, stacks, are_second = self._nodes
        if begin != first + len(stacks):
            self._keep(0, max(begin - first, 0) if begin < first + len(stacks) else 0, begin)
            first, stacks, are_second = self._nodes
        count = end - begin
        are_second.extend(b"\0" + b"\1" * (count - 1))
        stacks.extend([stack] * count)
        if len(stacks) > MOST_NODES:
            self._keep(len(stacks) - MOST_NODES // 2, len(stacks), begin)
        elif len(stacks) - self._shared >= _AT_ONCE:
            self._share(stacks)

    def _keep(self, start: int, end: int, following: int) -> None:
        """Keep some nodes, before that of a number if they are none."""
        first, stacks, are_second = self._nodes
        self._shared = max(min(self._shared, end) - start, 0)
        kept = stacks[start:end]
        self._nodes = first + start if kept else following, kept, are_second[start:end]

    def _share(self, stacks: list[OpStack]) -> None:
        """Let one stack stand for all that are equal, as far as they were read."""
        different = self._different
        for place in range(self._shared, len(stacks)):
            stack = stacks[place]
            if stack.raw is not None:
                return
            if len(different) > _MOST_DIFFERENT:
                different.clear()
            key = stack.number, id(stack.op), stack.module
            stacks[place] = different.setdefault(key, stack)
            self._shared = place + 1


class _Notes:
    """Notes of one thread on the nodes that it made."""

    __slots__ = ("__weakref__", "last", "modes", "newest", "of_nodes")

    def __init__(self) -> None:
        self.last = _next_number()  # that of the next node when the thread noted last
        self.newest: OpStack | None = None  # of the op that began last, if it made a node
        self.modes = 0  # how many dispatch modes waited then for ops of the thread
        self.of_nodes = NodeStacks()


class _Threads:
    """The notes of all threads. Those of a thread that runs stay, however many others end."""

    def __init__(self) -> None:
        self.nodes: list[NodeStacks] = []
        self._owners: list[weakref.ref[_Notes]] = []
        self._lock = threading.Lock()

    def add(self, notes: _Notes) -> None:
        with self._lock:
            self.nodes.append(notes.of_nodes)
            self._owners.append(weakref.ref(notes))
            if len(self.nodes) > _MOST_THREADS:
                ended = (place for place, owner in enumerate(self._owners) if owner() is None)
                oldest = next(ended, None)
                if oldest is not None:
                    del self.nodes[oldest], self._owners[oldest]


class _Thread(threading.local):
    """The notes of each thread, which an op looks up once."""

    def __init__(self, threads: _Threads) -> None:
        self.notes = _Notes()
        threads.add(self.notes)


class ForwardOps:
    """Stacks of the ops that made nodes of autograd, by the sequence numbers of the nodes."""

    # An op runs below autograd after its node was made. So the nodes that were made since the op
    # before are those of this op.

    def __init__(self, stack_of: Callable[[Any], OpStack] = OpStack) -> None:
        self._stack_of = stack_of
        self._begin()

    def _begin(self) -> None:
        """Note the nodes that are made from now on."""
        threads = _Threads()
        self._threads = threads.nodes
        self._thread = _Thread(threads)

    def op_runs(self, op: Any) -> None:
        """An op runs in this thread."""
        notes = self._thread.notes
        number = _next_number()
        last = notes.last
        if number == last:
            notes.newest = None
            return
        notes.last = number
        notes.newest = stack = self._stack_of(op)
        notes.modes = _modes_that_wait()
        begin = max(last, number - MOST_NODES)
        if begin < number:
            notes.of_nodes.add(begin, number, stack)

    def makes_node(self) -> bool:
        """True if the op that runs in this thread made a node of autograd."""
        return self._thread.notes.newest is not None

    def capture(self) -> Any:
        """The stack of this thread now: the one that was taken of the op, while it runs."""
        # A mode that handles an op does not wait for another one. So the op has ended when more
        # modes wait than at its begin.
        notes = self._thread.notes
        stack = notes.newest
        if stack is not None and notes.modes == _modes_that_wait():
            raw = stack.raw  # another thread may read the stack, which takes this away
            if raw is not None:
                return raw
        return capture()

    def of_node(self, node: Any) -> OpStack | None:
        """The stack of the op whose backward runs now in this thread; None if it is not known."""
        # Another thread may have made the node: where several made one of its number, the name of
        # the op decides, and then the thread.
        number = node._sequence_nr()
        if number == _LEAF:
            return None
        name = node.name()
        own = _stack_of(number, name, self._thread.notes.of_nodes)
        if own is not None and len(self._threads) == 1:
            return own
        of_threads = [_stack_of(number, name, stacks) for stacks in self._threads.copy()]
        stacks = [stack for stack in of_threads if stack is not None]
        if len(stacks) > 1:
            wanted = _plain(_VERSION.sub("", name.rpartition("::")[2]))
            named = [stack for stack in stacks if _plain(_name_of(stack.op)) == wanted]
            if len(named) == 1 and (own is None or own not in named):
                return named[0]
        if own is not None:
            return own
        return stacks[0] if len(stacks) == 1 else None

    def of_current_node(self) -> OpStack | None:
        """The stack of the op whose backward runs now in this thread; None if there is none."""
        node = _current_node()
        return None if node is None else self.of_node(node)

    def forget(self) -> None:
        """Forget all nodes that were made so far, also those that no op was told of."""
        forgotten = self._threads
        self._begin()
        for stacks in forgotten.copy():
            for stack in stacks.values():
                stack.drop()


def _stack_of(number: int, name: str, stacks: NodeStacks) -> OpStack | None:
    """The stack of a node's op. Nodes that an op makes after it ran are noted for the next one."""
    if name == _OF_CHANGED_VIEW:
        return stacks.get(number - 1)
    stack = stacks.get(number)
    if name == _OF_NEW_VIEW and stack is not None and _name_of(stack.op) != "as_strided":
        return stacks.get(number - 2 if stacks.is_second(number) else number)
    return stack


def _name_of(op: Any) -> str:
    return str(op).partition(".")[2].partition(".")[0]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
