"""The memory under a tensor of any kind: its pieces, and the storage of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._common.torch.storages import components

StorageKey: TypeAlias = tuple[str, int]

_C: Any = torch._C
_PLAIN = (torch.Tensor, torch.nn.Parameter)
META = torch.device("meta")


class SymbolicSize(str):
    """A length that is no number, such as a symbol of ``torch.compile``; shown as it is."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that has its own memory."""

    suffix: str  # distinguishes the pieces of a tensor: ``""`` for a strided tensor, ``.values``
    device: torch.device  # where its memory is; ``meta`` for fake tensors, which have none
    size: tuple[int | SymbolicSize, ...]
    numel: int  # number of elements, 0 where it is symbolic
    storage: StorageKey
    nbytes: int
    dtype: str  # of its elements, such as ``float32``
    number: int = 0  # of the storage among those alive, 0 where there is none


def pieces_of(tensor: torch.Tensor) -> list[Piece]:
    """The pieces of a tensor's memory. Never raises, and allocates nothing on any device."""
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        with _C.DisableTorchFunction():  # a mode, as a simulation has one, takes most of the time
            return _pieces(tensor)
    with torch.no_grad(), _C.DisableTorchFunctionSubclass():
        return _pieces(tensor)


def _pieces(tensor: torch.Tensor) -> list[Piece]:
    try:
        return [_piece(suffix, part) for suffix, part in parts_of(tensor)]
    except Exception:
        return [_unreadable(tensor)]


def parts_of(tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if _C._functorch.is_functorch_wrapped_tensor(tensor):
        yield from parts_of(_C._functorch.get_unwrapped(tensor))
    elif torch.nn.parameter.is_lazy(tensor):
        return
    elif is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if not isinstance(inner, torch.Tensor):  # the mesh of a DTensor
                continue
            for suffix, part in parts_of(inner):
                yield f".{name.lstrip('_')}{suffix}", part
    elif parts := components(tensor):
        for name, part in parts:
            yield f".{name}", part
    else:
        yield "", tensor
        yield from _quantization_of(tensor)


def inner_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        return []
    with torch.no_grad():
        try:
            return [part for _, part in parts_of(tensor) if part is not tensor]
        except Exception:  # a subclass that refuses; a scan finds its inner tensors by themselves
            return []


def _quantization_of(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        scheme = tensor.qscheme() if tensor.is_quantized else torch.per_tensor_affine
    except RuntimeError:  # made without one
        return
    if scheme not in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield ".scales", tensor.q_per_channel_scales()
        yield ".zero_points", tensor.q_per_channel_zero_points()


def _piece(suffix: str, part: torch.Tensor) -> Piece:
    size, numel = _size(part)
    dtype = str(part.dtype).removeprefix("torch.")
    try:
        storage = part.untyped_storage()
    except RuntimeError as error:
        # Opaque: mkldnn packs the elements its own way. Else PyTorch took the storage away: trees
        # of CUDA graphs take those of outputs before a later run writes over them.
        is_opaque = isinstance(error, NotImplementedError)
        nbytes = numel * part.element_size() if is_opaque else 0
        return Piece(suffix, part.device, size, numel, ("tensor", id(part)), nbytes, dtype)
    number = storage._cdata
    device = META if storage.device == META else part.device  # a fake tensor claims another one
    address = 0 if device == META else address_of(part, storage)
    if not address:
        return Piece(suffix, device, size, numel, ("storage", number), 0, dtype)
    key = ("address", address)
    return Piece(suffix, part.device, size, numel, key, storage.nbytes(), dtype, number)


def address_of(part: torch.Tensor, storage: torch.UntypedStorage) -> int:
    """The address of the storage of a plain tensor, 0 if it has no memory."""
    # Two storages may stand for one block: from NumPy, DLPack, or lazily cloned. Asking the storage
    # of a lazy clone for its pointer would copy the data, so the tensor is asked.
    try:
        if not _C._is_cow_tensor(part):
            return int(storage.data_ptr())
        offset = int(part.storage_offset()) * part.element_size()
        return int(_C._data_address(part)) - offset
    except RuntimeError:  # of a wrapper without data
        return 0


def _size(part: torch.Tensor) -> tuple[tuple[int | SymbolicSize, ...], int]:
    if part.is_nested:
        ragged = [SymbolicSize("*")] * (part.dim() - 1)
        return (part.size(0), *ragged), part.numel()
    size = tuple(
        length if isinstance(length, int) else SymbolicSize(length) for length in part.size()
    )
    numel = part.numel()
    # int() of a symbol would fix it to its value for the program that is being compiled.
    return size or (1,), numel if isinstance(numel, int) else 0


def _unreadable(tensor: torch.Tensor) -> Piece:
    try:
        device = tensor.device
    except Exception:
        device = META
    return Piece("", device, (SymbolicSize("?"),), 0, ("tensor", id(tensor)), 0, "?")
