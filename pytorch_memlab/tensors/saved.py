"""Tensors that autograd saves for backward, which only its C++ graph references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch

LEAF = "AccumulateGrad"
"""Name of the nodes of leaves, which keep their leaf after backward."""

_RAW = "_raw_saved_"
_CHECKPOINT = "_CheckpointFrame"
_CONTAINERS = (dict, list, tuple)
_DEEPEST = 4
_HAS_DATA = hasattr(torch._C._autograd.SavedTensor, "data")


def saved_by_graphs(
    roots: Iterable[Any], seen: dict[int, Any] | None = None
) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors that graphs save for backward, and their leaves, each with its node."""
    # Nodes that were seen before are left out. Reads them without unpacking: hooks of saved tensors
    # (offloading, checkpointing) do not run, and the tensors that they packed come instead: copies
    # on the host, the inputs of a checkpointed region. A PyTorch whose ``SavedTensor`` has no
    # ``data`` gives nothing.
    if not _HAS_DATA:
        return
    attributes: dict[type, list[str]] = {}
    for node in _nodes(roots, {} if seen is None else seen):
        for tensor in _saved_by(node, attributes):
            yield node, tensor


def name_of(node: Any) -> str:
    """The name of a node without its namespace, such as ``MulBackward0``."""
    name: str = node.name()
    return name.rpartition("::")[2]


def _nodes(roots: Iterable[Any], seen: dict[int, Any]) -> Iterator[Any]:
    for root in roots:
        left = [root]
        while left:
            node = left.pop()
            if node is None or id(node) in seen:
                continue
            seen[id(node)] = node
            yield node
            left.extend(following for following, _ in reversed(node.next_functions))


def grad_fn(tensor: torch.Tensor) -> Any:
    """The node that made a tensor, None for a leaf or one that does not tell."""
    try:
        return tensor.grad_fn
    except Exception:  # a subclass that refuses; its inner tensors have their own graphs
        return None


def _saved_by(node: Any, attributes: dict[type, list[str]]) -> Iterator[torch.Tensor]:
    kind = type(node)
    if kind not in attributes:
        attributes[kind] = [name for name in dir(kind) if name.startswith(_RAW)]
    for name in attributes[kind]:
        yield from _tensors_of(node, name)
    leaf = getattr(node, "variable", None)  # of a LEAF
    if isinstance(leaf, torch.Tensor):
        yield leaf
    for kept in list(getattr(node, "__dict__", {}).values()):  # of a function written in Python
        yield from _tensors_in(kept)


def _tensors_of(node: Any, name: str) -> list[torch.Tensor]:
    try:
        saved = getattr(node, name)
        items = saved if isinstance(saved, (tuple, list)) else [saved]
        return [tensor for item in items if item is not None for tensor in _packed_in(item)]
    except RuntimeError:  # freed by backward
        return []


def _packed_in(saved: Any) -> Iterator[torch.Tensor]:
    """The tensors of a saved tensor, or those that hooks packed in its place."""
    # In place of all tensors of a region, checkpointing (torch/utils/checkpoint.py) keeps the
    # region's inputs, which only its hook knows.
    packed = saved.data
    yield from _tensors_in(packed)
    if not issubclass(type(packed), torch.Tensor):
        for frame in _checkpoints_of(getattr(saved, "unpack_hook", None)):
            for kept in list(getattr(frame, "saved_args", ())):
                yield from _tensors_in(kept.data if type(kept) is type(saved) else kept)


def _checkpoints_of(hook: Any, depth: int = 0) -> Iterator[Any]:
    """The frames of checkpointing that a hook refers to, itself or the hook that it calls."""
    for cell in getattr(hook, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # empty
            continue
        if type(value).__name__ == _CHECKPOINT:
            yield value
        elif type(value) is FunctionType and not depth:
            yield from _checkpoints_of(value, 1)


def _tensors_in(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """A tensor, or those in nested lists, tuples and dicts."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield value  # type: ignore[misc]
    elif kind in _CONTAINERS and depth < _DEEPEST:
        parts: Any = dict.values(value) if kind is dict else value  # type: ignore[arg-type]
        for part in list(parts):
            yield from _tensors_in(part, depth + 1)
