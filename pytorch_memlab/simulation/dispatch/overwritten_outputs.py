"""Ops that use what a later run of a CUDA graph has written over: they fail, as on a GPU."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, list_of_tensors
from ..machine.simulated_gpu import Allocation
from ..ops.core.op_info import op_info
from .captured_ops import below_python

_untyped_storage = torch._C.TensorBase.untyped_storage
_set_storage: Any = torch.ops.aten.set_.source_Storage_storage_offset
_IN_PLACE: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

_LIKE: Final = ("_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")
"""Ends of the names of ops that look at a tensor's sizes and type alone."""


def mark_data(machine: Machine, storage: torch.UntypedStorage, message: str) -> None:
    """Let whatever uses the data of a storage fail with a message."""
    machine.overwritten.mark(storage, message, is_taken=False)
    _watch(machine)


def take_storage(machine: Machine, tensor: torch.Tensor, message: str) -> None:
    """Take the storage away from a tensor; whatever asks for it fails with a message."""
    # Another storage that holds no memory of a GPU stands for the one that C++ has no more.
    allocation = machine.allocations.find(tensor)
    with below_python(), torch._C._ExcludeDispatchKeyGuard(_IN_PLACE):  # the version stays
        nbytes = _untyped_storage(tensor).nbytes()
        if machine.values is None:
            stand_in = torch.UntypedStorage(nbytes)
        else:
            stand_in = _untyped_storage(machine.values.make_bytes(nbytes))
        layout = (tensor.storage_offset(), tensor.size(), tensor.stride())
        _set_storage(tensor, stand_in, *layout)
    if allocation is not None:
        machine.allocations.add(stand_in, Allocation(allocation.gpu, 0, 0, is_owner=False))
    machine.overwritten.mark(stand_in, message, is_taken=True)
    _watch(machine)


def _watch(machine: Machine) -> None:
    """Look at every op from now on, for as long as anything is marked."""
    if machine.watches_overwritten:
        return
    machine.watches_overwritten = True
    overwritten, run_op = machine.overwritten, machine.execute

    def execute(op: Any, run: Any, args: Args, kwargs: Kwargs, on_gpu: bool) -> Any:
        if overwritten:
            _check(machine, op, args, kwargs)
        elif machine.execute is execute:
            machine.execute, machine.watches_overwritten = run_op, False
        return run_op(op, run, args, kwargs, on_gpu)

    machine.execute = execute


def _check(machine: Machine, op: Any, args: Args, kwargs: Kwargs) -> None:
    info = op_info(op)
    if info.name == "aten::detach" or info.name.endswith(_LIKE):
        return
    for tensor in list_of_tensors(args, kwargs):
        machine.overwritten.check_tensor(tensor, data=not info.touches_no_element)
