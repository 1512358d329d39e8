"""Backward passes write in place where a dispatch mode makes PyTorch make copies.

Note [In-place gradient accumulation]
PyTorch takes tensors under a dispatch mode for tensors of unknown classes: the engine then adds
two gradients into a third (``torch/csrc/autograd/input_buffer.cpp``), and some formulas fill a copy
of the zeros that they just made, or multiply into a new tensor (``isTensorSubclassLike`` in
``torch/csrc/autograd/FunctionsManual.cpp`` and ``aten/src/ATen/native``). On a GPU these write in
place, and the results are the same; so these calls are turned back. Other formulas call the same
ops and mean the copy, because they read the first operand again: those of ``index_reduce`` and
``scatter_reduce`` do. So the node decides: the definition of an op names the nodes.

The engine adds in place only if it alone owns the first gradient, which C++ sees by reference
counts. Under a mode the counts are higher by what the mode itself holds. How much that is depends
on the releases of Python and PyTorch, so it is measured once per process: a sum of two gradients
that nothing else holds is run under a mode like this one.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..machine.op_arguments import Args
from ..ops.core.memory_formats import is_dense
from ..ops.core.op_info import op_info

_SUM = torch.ops.aten.add.Tensor
_untyped_storage = torch._C.TensorBase.untyped_storage
_HAS_USE_COUNT = hasattr(torch._C.TensorBase, "_use_count")


class _FirstSum(TorchDispatchMode):
    """Counts the references to the first gradient that the engine adds another one to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Any = None) -> Any:
        if func is _SUM:
            self.counts = _counts(args)
        return func(*args, **(kwargs or {}))


@functools.cache
def _unshared_counts() -> tuple[int, int, int]:
    """Calibrate: the reference counts of a gradient that the engine alone owns, seen by a mode."""
    mode = _FirstSum()
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, device="cpu", requires_grad=True)
        with mode:
            torch.autograd.grad(leaf * leaf, leaf)
    return mode.counts


def _counts(args: Args) -> tuple[int, int, int]:
    first = args[0]
    return (
        sys.getrefcount(first),
        first._use_count() if _HAS_USE_COUNT else 0,
        torch._C._storage_Use_Count(_untyped_storage(first)._cdata),
    )


class InPlaceGradientAccumulation(threading.local):
    """The autograd node that this thread runs, and the storages that were made in it."""

    def __init__(self) -> None:
        self._unshared = _unshared_counts()
        self._node: tuple[int, str] | None = None
        self._made: set[int] = set()

    def enter(self, node: Any) -> None:
        # Not by its id: Python's object of a node ends, and that of the next may have its place.
        key = (node._sequence_nr(), node.name())
        if key != self._node:
            self._node = key
            self._made.clear()

    def made(self, storage: int) -> None:
        self._made.add(storage)

    def in_place_variant(self, node: Any, op: Any, args: Args) -> Any:
        """The op that a GPU runs in a backward pass: in place, or the op itself."""
        if torch.is_grad_enabled() or not (op is _SUM or _writes(node, op)):
            return op
        if args[0].layout is not torch.strided:
            return op
        references, uses, shares = _counts(args)
        if (references, shares) != (self._unshared[0], self._unshared[2]):
            return op
        is_ours = _untyped_storage(args[0])._cdata in self._made
        if op is not _SUM:
            return _in_place(op) if is_ours else op
        if uses != self._unshared[1] or not _is_plain_sum(args) or (is_ours and not _joins(node)):
            return op
        return _in_place(op)


@functools.cache
def _in_place(op: Any) -> Any:
    """The overload that writes to its first argument."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::") + "_")
    return getattr(packet, op._overloadname)


def _writes(node: Any, op: Any) -> bool:
    """True if the formula of a node runs an op in place on a GPU."""
    name: str = node.name().rstrip("0123456789")
    if name not in (op_info(op).in_place_in or ()):
        return False
    # The formula of a target's gradient multiplies out of place.
    return name != "BinaryCrossEntropyWithLogitsBackward" or node.next_functions[1][0] is None


def _is_plain_sum(args: Args) -> bool:
    """True if a sum is one of two gradients of one input, and the first can hold it."""
    if len(args) != 2 or not isinstance(args[1], torch.Tensor):
        return False
    first, second = args
    if first.is_nested or second.is_nested:
        return False
    return first.shape == second.shape and first.dtype == second.dtype and is_dense(first)


def _joins(node: Any) -> bool:
    """True if two results of a node go to the same input of another."""
    targets = [edge for edge in node.next_functions if edge[0] is not None]
    return len(set(targets)) < len(targets)
