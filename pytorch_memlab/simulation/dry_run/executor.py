"""Shapes without values: every op returns tensors of the right shapes, and computes nothing.

A storage has values when a program's own data is in it, or the result of an op on small tensors
that all had values: integers and bools of up to 65,536 elements, other numbers of up to 4,096,
on the host and on simulated GPUs. So masks, lengths, positions, learning rates and step counters
are what they are with arithmetic. All else has no values: large tensors own memory that is never
touched, small ones hold zeros (or what they held before an op wrote to them). Ops on small
tensors go on to compute with those zeros; where a value or a shape depends on them, the read is
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..._common.storages import StorageTable, storages_of
from ..ops.op_info import OpInfo, op_info
from .data_dependent_ops import with_indices
from .data_dependent_reads import ValueReads
from .meta_results import MetaResults, Outcome, TensorSpec
from .uncommitted_memory import untouched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..._common.patches import Patches

_MOST_INTEGERS = 65_536
_MOST_OTHERS = 4_096
_KNOWN, _ASSUMED, _ABSENT, _SPECIAL = range(4)
_untyped_storage = torch._C.TensorBase.untyped_storage
_INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class Shapes:
    """Runs ops without arithmetic, and knows which storages have values."""

    def __init__(self) -> None:
        self._unknown: StorageTable[bool] = StorageTable(_forget)
        self._results = MetaResults()
        self.reads = ValueReads()
        self.answers: list[bool] = []
        """What the next truth values read are, one after the other; then they are false."""

    def execute(self, func: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op.

        Args:
            func: the op.
            run: computes it.
            args: of the call.
            kwargs: of the call.

        Returns:
            what it returns.

        Raises:
            UnsupportedCUDACallError: its result's shape cannot be told without values.
        """
        info = op_info(func)
        device = kwargs.get("device")
        if info.touches_no_element or (device is not None and device.type == "meta"):
            return run(*args, **kwargs)
        tensors = list(_tensors_in(args, kwargs))
        state, all_small = self._look_at(tensors)
        if state == _SPECIAL:
            return self._special(info, func, args, kwargs)
        depends = info.data_dependence
        if depends is not None and depends.outputs is not None:
            if state == _KNOWN:
                return run(*args, **kwargs)
            if not depends.counts_itself:
                self.reads.count(info.name)
            return depends.outputs(self, args, kwargs)
        if not info.returns_tensors and not info.written:
            return run(*args, **kwargs)
        can_compute = state == _KNOWN or (state == _ASSUMED and not info.takes_masks)
        if all_small and can_compute and info.runs_on_cpu:
            try:
                outcome = self._outcome(info, func, args, kwargs)
            except NotImplementedError:
                return self._compute(info, run, args, kwargs, state)
            if _is_small_outcome(outcome):
                try:
                    return self._compute(info, run, args, kwargs, state)
                except _NotComputableError:
                    pass
        else:
            outcome = self._outcome(info, func, args, kwargs)
        return self._returned(info, outcome, tensors, args, kwargs)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has values."""
        return _untyped_storage(tensor)._cdata not in self._unknown.known

    def has_values(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage has values."""
        return storage._cdata not in self._unknown.known

    def is_readable(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has values, or zeros in their place."""
        return self._unknown.known.get(_untyped_storage(tensor)._cdata, True)

    def lacks_values(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of any layout has no values, or not all of them."""
        return any(map(self.storage_lacks_values, _storages(tensor)))

    def storage_lacks_values(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage has no values."""
        return storage._cdata in self._unknown.known

    def bytes_without_values(self, count: int) -> torch.Tensor:
        """A tensor of bytes without values, whatever modes are on.

        Args:
            count: of bytes.
        """
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return self._make_strided((count,), (1,), torch.uint8)

    def make(self, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor without values.

        Args:
            size: in elements.
            dtype: of its elements.

        Returns:
            the tensor.
        """
        stride = torch.empty(size, device="meta").stride()
        return self._make_strided(size, stride, dtype)

    def forget_values(self, tensor: torch.Tensor) -> None:
        """From now on a tensor's storage has no values: something unknown was written to it."""
        storage = _untyped_storage(tensor)
        if storage._cdata not in self._unknown.known:
            self._unknown.add(storage, True)

    def install(self, patches: Patches) -> None:
        """Watch what reads or copies memory without an op, until the patches are undone.

        Args:
            patches: who puts the originals back.
        """
        for name in ("tolist", "numpy"):
            patches.set(torch.Tensor, name, self._reader(name, getattr(torch.Tensor, name)))
        patches.set(torch.UntypedStorage, "copy_", self._storage_copy())

    def _reader(self, name: str, read: Any) -> Any:
        def reader(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.layout is not torch.strided or tensor.is_meta or self.is_known(tensor):
                return read(tensor, *args, **kwargs)
            self.reads.count(f"Tensor.{name}")
            # A mode would look the method up by its name, and come here again.
            with torch._C.DisableTorchFunction():
                if self.is_readable(tensor):
                    return read(tensor, *args, **kwargs)
                zero = torch.zeros((), dtype=tensor.dtype)
                self.forget_values(zero)
                return read(zero.expand(tensor.shape), *args, **kwargs)

        return reader

    def _storage_copy(self) -> Any:
        copy = torch.UntypedStorage.copy_
        unknown = self._unknown

        def copy_(self: torch.UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> Any:
            if unknown.known.get(source._cdata, True):
                copy(self, source, *args, **kwargs)
            if source._cdata in unknown.known and self._cdata not in unknown.known:
                unknown.add(self, unknown.known[source._cdata])
            return self

        return copy_

    def _look_at(self, tensors: list[torch.Tensor]) -> tuple[int, bool]:
        """What the tensors have in common: their values' state, and whether all are small."""
        known = self._unknown.known
        state = _KNOWN
        all_small = True
        for tensor in tensors:
            try:
                readable = known.get(_untyped_storage(tensor)._cdata)
            except (NotImplementedError, RuntimeError, ValueError):
                return _SPECIAL, False
            if tensor.is_nested:
                return _SPECIAL, False
            if readable is None:
                if tensor.is_meta:
                    return _SPECIAL, False
            elif not readable:
                state = _ABSENT
            elif state == _KNOWN:
                state = _ASSUMED
            all_small = all_small and _is_small(tensor.numel(), tensor.dtype)
        return state, all_small

    def _special(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An op on sparse, nested or meta tensors."""
        rule = info.sparse
        tensors = list(_tensors_in(args, kwargs))
        if rule is None or any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)
        return rule(self, args, kwargs)

    def _outcome(
        self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        if info.takes_masks:
            args = (args[0], with_indices(self, info.name, args[1]), *args[2:])
        return self._results.of(info, func, args, kwargs)

    def _compute(
        self, info: OpInfo, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], state: int
    ) -> Any:
        """Run an op on small tensors as it is."""
        if state == _KNOWN:
            return run(*args, **kwargs)
        try:
            result = run(*args, **kwargs)
        except RuntimeError:
            # Zeros are no matrix to invert, and no number to divide by.
            raise _NotComputableError from None
        for tensor in info.written_in(args, kwargs):
            self.forget_values(tensor)
        for tensor in _tensors_in((result,), {}):
            for storage in storages_of(tensor):
                if storage._cdata not in self._unknown.known:
                    self._unknown.add(storage, True)
        return result

    def _returned(
        self,
        info: OpInfo,
        outcome: Outcome,
        tensors: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Results of an op that does not run."""
        if info.written:
            self._write(info, outcome, args, kwargs)
        fresh: dict[int, torch.Tensor] = {}
        if len(info.returned) == 1:
            source = info.returned[0]
            if source is not None:
                return info.argument(source, args, kwargs)
            return self._made(outcome.result, tensors, fresh)
        if not info.returned:
            return None
        return tuple(
            self._made(outcome.result[position], tensors, fresh)
            if source is None
            else info.argument(source, args, kwargs)
            for position, source in enumerate(info.returned)
        )

    def _write(
        self, info: OpInfo, outcome: Outcome, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        written = list(info.written_in(args, kwargs))
        for tensor, size in zip(written, outcome.sizes or (), strict=False):
            if tensor.shape != size:
                tensor.resize_(size)
        for tensor in written:
            self.forget_values(tensor)

    def _made(self, spec: Any, tensors: list[torch.Tensor], fresh: dict[int, torch.Tensor]) -> Any:
        """A result, in a new storage or one that it shares."""
        if isinstance(spec, list):
            return [self._made(one, tensors, fresh) for one in spec]
        if not isinstance(spec, TensorSpec):
            return spec
        if spec.argument >= 0:
            base = tensors[spec.argument]
            return base.as_strided(spec.size, spec.stride, base.storage_offset() + spec.offset)
        shared = fresh.get(spec.fresh)
        if shared is None and spec.is_whole:
            made = fresh[spec.fresh] = self._make_strided(spec.size, spec.stride, spec.dtype)
            return made
        if shared is None:
            shared = fresh[spec.fresh] = self._make_strided((spec.numel,), (1,), spec.dtype)
        return shared.as_strided(spec.size, spec.stride, spec.offset)

    def _make_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        tensor = untouched(size, stride, dtype)
        small = _is_small(tensor.numel(), dtype)
        if small:
            tensor.zero_()
        self._unknown.add(_untyped_storage(tensor), small)
        return tensor


class _NotComputableError(Exception):
    """An op fails on zeros that stand for values."""


def _is_small(numel: int, dtype: torch.dtype) -> bool:
    return numel <= _MOST_OTHERS or (numel <= _MOST_INTEGERS and dtype in _INTEGERS)


def _is_small_outcome(outcome: Outcome) -> bool:
    if any(size.numel() > _MOST_OTHERS for size in outcome.sizes or ()):
        return False
    return all(_is_small(spec.numel, spec.dtype) for spec in _specs_in(outcome.result))


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    with torch._C.DisableTorchFunction():
        return storages_of(tensor)


def _specs_in(result: Any) -> Iterator[TensorSpec]:
    if isinstance(result, TensorSpec):
        yield result
    elif isinstance(result, list):
        for one in result:
            yield from _specs_in(one)


def _tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(tuple(value), {})


def _forget(_readable: bool) -> None:
    """A storage without values dies: nothing else holds a thing of it."""
