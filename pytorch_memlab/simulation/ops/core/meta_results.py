"""Outputs by the shapes of arguments: the meta kernel of an op runs once per signature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .library_ops import refuse_its_shape
from .op_info import OpInfo

_META = torch.device("meta")
_shape = vars(torch._C.TensorBase)["shape"].__get__  # parameters without data refuse theirs
_MOST_SIGNATURES = 50_000


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A tensor that an op returns; sizes, strides and offsets are in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    numel: int
    """Of its storage."""
    argument: int
    """Position, among the op's tensors, of the one whose storage it shares; -1: none."""
    fresh: int
    """Number of its new storage, which other results may share."""
    is_whole: bool
    """It covers its storage from end to end."""


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """The outputs of a call."""

    result: Any
    """With a ``TensorMeta`` in place of each tensor."""
    sizes: tuple[torch.Size, ...] | None
    """Those that the tensors written to have after the call; None: those they had."""


_ONLY_WRITES = OutputMeta(None, None)


def tensors_of(result: Any) -> Iterator[TensorMeta]:
    """The tensors in the result of an ``OutputMeta``."""
    if isinstance(result, TensorMeta):
        yield result
    elif isinstance(result, list):
        for item in result:
            yield from tensors_of(item)


class MetaResults:
    """Outputs of calls, remembered by op and signature."""

    def __init__(self) -> None:
        self._known: dict[Any, OutputMeta] = {}

    def of(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OutputMeta:
        """The outputs of a call."""
        settings = (torch.get_default_dtype(), torch._C._get_cudnn_enabled())
        key = (func, settings, *map(_signature, args))
        if kwargs:
            key += tuple([(name, _signature(value)) for name, value in kwargs.items()])
        output = self._known.get(key)
        if output is None:
            if len(self._known) >= _MOST_SIGNATURES:
                self._known.clear()
            output = self._known[key] = _ask(info, func, args, kwargs)
        return output


def _signature(value: Any) -> Any:
    """The key of an argument: all that shapes of outputs depend on."""
    if isinstance(value, torch.Tensor):
        return value.dtype, _shape(value), value.stride()
    if isinstance(value, (list, tuple)):
        return tuple([_signature(item) for item in value])
    if isinstance(value, torch.Generator):
        return None
    # 1, 1.0 and True are equal, and promote differently.
    return type(value), value


def _ask(info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OutputMeta:
    copies = _MetaCopies()
    on_meta = [copies.of(value) for value in args]
    options = {name: copies.of(value) for name, value in kwargs.items()}
    if "device" in options or info.is_factory:
        options["device"] = _META
    try:
        result = (info.meta or func)(*on_meta, **options)
    except (NotImplementedError, RuntimeError) as error:
        if not isinstance(error, NotImplementedError) and "meta" not in str(error):
            raise
        if info.only_writes:
            return _ONLY_WRITES
        raise refuse_its_shape(func) from error
    if info.corrects_meta is not None:
        result = info.corrects_meta(tuple(on_meta), result)
    sizes = None
    if info.writes_out:
        written = info.written_in(tuple(on_meta), options)
        sizes = tuple(tensor.shape for tensor in written)
    return OutputMeta(copies.described(result), sizes)


class _MetaCopies:
    """Tensors on the meta device with the sizes and strides of a call's tensors."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._fresh: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            copy = torch.empty_strided(
                _shape(value), value.stride(), dtype=value.dtype, device=_META
            )
            self._positions[copy.untyped_storage()._cdata] = len(self._kept)
            self._kept.append(copy)
            return copy
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        return None if isinstance(value, torch.Generator) else value

    def described(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            numel = storage.nbytes() // value.dtype.itemsize
            last = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
            return TensorMeta(
                tuple(value.shape),
                value.stride(),
                value.dtype,
                int(value.storage_offset()),
                numel,
                self._positions.get(storage._cdata, -1),
                self._fresh.setdefault(storage._cdata, len(self._fresh)),
                numel == (last + 1 if value.numel() else 0),
            )
        if isinstance(value, (list, tuple)):
            return [self.described(item) for item in value]
        return value
