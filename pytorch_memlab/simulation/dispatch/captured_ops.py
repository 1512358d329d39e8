"""The ops of a capture, kept with their values' places, and run again by ``CUDAGraph.replay()``."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from ..._common.torch.storages import storages_of
from ..machine.captures import Capture
from ..machine.cuda_generator import GeneratorState
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, list_of_tensors
from ..machine.simulated_gpu import Allocation
from ..ops.core.autograd_reference import lazy_conjugation
from ..ops.core.random_draws import Draw
from . import blocking_ops
from .dispatched_call import DispatchedCall

_UNSEEN: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU).add(
    torch._C.DispatchKey.AutocastCUDA
)
_set_storage: Any = torch.ops.aten.set_.source_Storage_storage_offset


@dataclass(slots=True)
class _Place:
    """The memory in which a tensor of a captured op has its values when the graph runs."""

    find: Callable[[], torch.UntypedStorage]
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool

    def tensor(self) -> torch.Tensor:
        made = torch.empty(0, dtype=self.dtype)
        _set_storage(made, self.find(), self.offset, self.size, self.stride)
        if self.is_conj:
            made = torch._conj(made)
        return torch._neg_view(made) if self.is_neg else made


@dataclass(frozen=True, slots=True)
class _CapturedOp:
    run: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: list[_Place | None]
    draw: Draw | None

    def replay(self, offsets: dict[GeneratorState, int]) -> None:
        run = self.run
        if self.draw is not None:
            state = self.draw.state
            run = self.draw.drawing(state.source(offsets[state] + self.draw.offset))
        args, kwargs = (
            _mapped(_Place, _Place.tensor, arguments) for arguments in (self.args, self.kwargs)
        )
        result = run(*args, **kwargs)
        for place, tensor in zip(self.outputs, _tensors(result), strict=True):
            if place is not None:
                place.tensor().copy_(tensor)


@dataclass(slots=True)
class _Saved:
    """The bytes of a storage before a captured op first wrote to it."""

    storage: weakref.ref[torch.UntypedStorage]
    values: torch.UntypedStorage
    pool_memory: torch.UntypedStorage | None  # the same memory, which outlives the storage


@dataclass
class OpRecording:
    """The ops of one capture, with values."""

    machine: Machine
    ops: list[_CapturedOp] = field(default_factory=list)
    draw: Draw | None = None  # of the op that runs now
    _saved: dict[int, _Saved] = field(default_factory=dict)
    _in_order: list[_Saved] = field(default_factory=list)  # also of storages that died since
    _made: set[int] = field(default_factory=set)

    def made(self, storage: torch.UntypedStorage) -> None:
        """Note a storage that an op of the capture made, which has no values from before."""
        self._made.add(storage._cdata)

    def save(self, tensor: torch.Tensor) -> None:
        """Keep the values of a tensor that an op of the capture writes to."""
        for storage in storages_of(tensor):
            key: int = storage._cdata
            weak_storage = self._saved.get(key)
            if key in self._made or (
                weak_storage is not None and weak_storage.storage() is storage
            ):
                continue
            with below_python():
                values = torch.UntypedStorage(storage.nbytes()).copy_(storage, False)
            saved = _Saved(weakref.ref(storage), values, self._pool_memory(storage))
            self._saved[key] = saved
            self._in_order.append(saved)

    def save_pool(self, tensors: list[torch.Tensor]) -> None:
        """Keep what an op of the capture reads from the pool, whose memory a later one may get."""
        for tensor in tensors:
            if any(self._pool_memory(storage) is not None for storage in storages_of(tensor)):
                self.save(tensor)

    def restore(self) -> None:
        """Put the values back that were there before the capture; Note [Work in a capture]."""
        for saved in reversed(self._in_order):  # what had the memory first has it again
            storage = saved.storage() if saved.pool_memory is None else saved.pool_memory
            if storage is not None and storage.nbytes() == saved.values.nbytes():
                with below_python():
                    storage.copy_(saved.values, False)
        self._saved.clear()
        self._in_order.clear()
        self._made.clear()

    def add(self, run: Callable[..., Any], args: Args, kwargs: Kwargs, result: Any) -> None:
        """Keep an op that has run."""
        draw, self.draw = self.draw, None
        keys = {key for tensor in _tensors((args, kwargs)) for key in _keys(tensor)}
        outputs = [
            None if keys.intersection(_keys(tensor)) else self._place(tensor)
            for tensor in _tensors(result)
        ]
        place = partial(_mapped, torch.Tensor, self._argument)
        self.ops.append(_CapturedOp(run, place(args), place(kwargs), outputs, draw))

    @contextmanager
    def as_one_op(self, args: Any) -> Iterator[Callable[[Callable[..., Any], Any], None]]:
        """Within: what runs is kept as one op, by the function that is given, with its result."""
        # The op may write to any of its arguments.
        tensors = _tensors(args)
        for tensor in tensors:
            self.save(tensor)
        storages = [weakref.ref(storage) for tensor in tensors for storage in storages_of(tensor)]
        places = _mapped(torch.Tensor, self._argument, args)
        before = len(self.ops)
        del tensors, args

        def keep(run: Callable[..., Any], result: Any) -> None:
            kept_storages = [storage() for storage in storages]
            del self.ops[before:]
            outputs = [
                None
                if any(storage in kept_storages for storage in storages_of(tensor))
                else self._place(tensor)
                for tensor in _tensors(result)
            ]
            self.ops.append(_CapturedOp(run, (places,), {}, outputs, None))

        yield keep

    def replay(self, offsets: dict[GeneratorState, int]) -> None:
        """Run all ops again, with generators that begin at these offsets."""
        with below_python(), lazy_conjugation():
            for op in self.ops:
                op.replay(offsets)

    def _argument(self, tensor: torch.Tensor) -> Any:
        if self.machine.allocations.find(tensor) is None and not tensor.dim():
            with below_python():
                return tensor.clone()  # CUDA passes it to the kernel as a number
        return self._place(tensor)

    def _place(self, tensor: torch.Tensor) -> _Place:
        [storage] = storages_of(tensor)
        return _Place(
            self._finder(storage),
            tensor.dtype,
            tensor.size(),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _finder(self, storage: torch.UntypedStorage) -> Callable[[], torch.UntypedStorage]:
        allocation = self.machine.allocations.known.get(storage._cdata)
        if allocation is None:  # of the CPU, which PyTorch keeps for the graph
            return lambda: storage
        part = self._pool_memory(storage)
        if part is not None:
            return lambda: part
        return partial(_living, self.machine, weakref.ref(storage), allocation, storage.nbytes())

    def _pool_memory(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        allocation = self.machine.allocations.known.get(storage._cdata)
        if allocation is None:
            return None
        memory = self.machine.pool_memory[allocation.gpu.index]
        return memory.part(storage, allocation.address)


def _living(
    machine: Machine,
    reference: weakref.ref[torch.UntypedStorage],
    allocation: Allocation,
    nbytes: int,
) -> torch.UntypedStorage:
    """The storage of a tensor that is not the graph's, or what has its address now."""
    storage = reference()
    if storage is not None:
        return storage
    warnings.warn(
        f"a CUDA graph uses {nbytes} bytes that the program freed after the capture: on a GPU it"
        " reads and writes whatever is there now; zeros are assumed",
        stacklevel=2,
    )
    for other, place in machine.allocations.living_storages():
        if place.address == allocation.address and other.nbytes() == nbytes:
            return other
    return torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()


_LAUNCHES_NONE: Final = frozenset(
    {
        *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"),
        *("aten::new_empty_strided", "aten::empty_permuted"),
    }
)
"""Ops without a kernel, beside those that make views and those that resize."""


def run_captured(call: DispatchedCall, capture: Capture) -> Any:
    """Run an op of a capture, and keep it if it computes."""
    machine, info = call.machine, call.info
    launches = not (info.touches_no_element or info.resizes or info.name in _LAUNCHES_NONE)
    stream = machine.current_stream(capture.gpu.index)
    capture.launch(stream, int(launches))
    recording: OpRecording | None = capture.recording
    if recording is not None:
        for tensor in info.written_in(call.args, call.kwargs):
            recording.save(tensor)
        recording.save_pool(list_of_tensors(call.args, call.kwargs))
    result = call.run()
    blocking_ops.refuse_in_capture(machine, capture, call.op, call.args, call.kwargs, result)
    if recording is not None and launches:
        run = call.op if call.outputs_on is None else info.reference or call.op
        recording.add(run, call.args, call.kwargs, result)
    return result


def recording_of(machine: Machine) -> OpRecording | None:
    """The recording of the capture that the current stream belongs to."""
    capture = machine.current_capture(machine.thread.device)
    recording: OpRecording | None = None if capture is None else capture.recording
    return recording


def run_kernel(
    machine: Machine, index: int, run: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]
) -> None:
    """Run a kernel of the program on a GPU; if it is captured, keep it if it computes."""
    capture = machine.current_capture(index)
    recording: OpRecording | None = None
    if capture is not None:
        capture.launch(machine.current_stream(index))
        recording = capture.recording
    if recording is not None:
        for tensor in _tensors(arguments):  # any of them may be written to
            recording.save(tensor)
    run(arguments)
    if recording is not None:
        recording.add(run, (arguments,), {}, None)


@contextmanager
def below_python() -> Iterator[None]:
    """Within: ops run on tensors of the CPU, and nothing else sees them."""
    with (
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(_UNSEEN),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        yield


def _keys(tensor: torch.Tensor) -> list[int]:
    return [storage._cdata for storage in storages_of(tensor)]


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    tensors: list[torch.Tensor] = []
    _mapped(torch.Tensor, tensors.append, value)
    return tensors


def _mapped(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """Nested lists, tuples and dictionaries with every value of a type changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(kind, change, item) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(kind, change, item) for key, item in value.items()}
    return value
