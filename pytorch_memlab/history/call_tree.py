"""Stacks and their bytes as a tree of calls: what a flame graph draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .model import Frame, Stack


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the tree: all stacks that begin with the same frames."""

    frame: Frame | None  # that is called; None for the root
    depth: int  # how many frames are around it, plus one; 0 for the root
    start: int  # bytes of the calls to the left of it
    size: int


class _Node:
    """A call while the tree is built."""

    __slots__ = ("calls", "size")

    def __init__(self) -> None:
        self.size = 0
        self.calls: dict[Frame, _Node] = {}


def call_tree(stacks: Sequence[tuple[Stack, int]]) -> list[Call]:
    """The calls of some stacks, each followed by those in it, the largest first."""
    root = _Node()
    for stack, size in stacks:
        node = root
        node.size += size
        for frame in reversed(stack):
            node = node.calls.setdefault(frame, _Node())
            node.size += size
    return _in_order(root)


def _in_order(root: _Node) -> list[Call]:
    found = []
    waiting: list[tuple[_Node, Call]] = [(root, Call(None, 0, 0, root.size))]
    while waiting:
        node, call = waiting.pop()
        found.append(call)
        start = call.start
        inner = []
        for frame, part in sorted(node.calls.items(), key=lambda item: (-item[1].size, item[0])):
            inner.append((part, Call(frame, call.depth + 1, start, part.size)))
            start += part.size
        waiting += reversed(inner)
    return found
