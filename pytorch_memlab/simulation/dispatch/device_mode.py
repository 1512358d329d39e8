"""Below autograd: every op runs on the host's tensors, and its results get their GPU's label."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from ..._common.storages import storages_of
from ...errors import (
    EstimatedMemoryError,
    HostMemoryError,
    UnmodelledOpError,
    UnsupportedCUDACallError,
)
from ..machine.machine import HOST
from ..machine.op_arguments import tensors_in
from ..machine.unsupported import unsupported
from ..ops.library_ops import refuse_to_compute
from ..ops.op_call import OpCall
from ..ops.op_info import op_info
from ..ops.random import random_draws
from . import blocking_ops, fake_tensors, higher_order
from .gradient_accumulation import IN_PLACE, InPlaceGradientAccumulation
from .output_devices import OutputDevices
from .traceback_frames import clear_internal_frames

if TYPE_CHECKING:
    from ..hardware.gpu import GPU
    from ..machine.machine import Machine
    from ..machine.simulated_gpu import Allocation
    from ..ops.op_info import OpInfo

_PIN = torch.ops.aten._pin_memory.default
_IS_PINNED = torch.ops.aten.is_pinned.default
_HOST_REFUSES = re.compile(r"you tried to allocate (\d+) bytes")
_untyped_storage = torch._C.TensorBase.untyped_storage
_current_node = torch._C._current_autograd_node
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

Execute = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


def compute(op: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op for what it computes."""
    return run(*args, **kwargs)


class SimulatedDeviceMode(TorchDispatchMode):
    """Labels what ops make, and accounts for it on the simulated GPUs.

    C++ sees tensors of the host only. ``destinations.py`` says where an op's results live.

    Args:
        machine: whose labels these are.
        execute: runs an op on the host's tensors, given what computes it, its arguments and
            keyword arguments.
    """

    supports_higher_order_operators = True

    def __init__(self, machine: Machine, execute: Execute = compute) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._machine = machine
        self._execute = execute
        self._destinations = OutputDevices(machine)
        self._gradients = InPlaceGradientAccumulation()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not needed here, and it would import the compiler at the first op."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one op."""
        if fake_tensors.are_on():
            return func(*args, **(kwargs or {}))
        if any(_handles_dispatch(kind) for kind in types):
            return NotImplemented
        try:
            if isinstance(func, HigherOrderOperator):
                return higher_order.run(
                    func, self, self._machine, self._estimated, args, kwargs or {}
                )
            with torch._C.DisableTorchFunction():
                result = self._run(func, args, kwargs or {})
                if self._machine.waits_are_seen:
                    blocking_ops.wait(self._machine, func, args, kwargs or {}, result)
                return result
        except BaseException as error:
            clear_internal_frames(error)
            del args, kwargs
            raise

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for observer in self._machine.op_observers:
            observer(func)
        if func is _PIN:
            return self._pin(args[0])
        if func is _IS_PINNED:
            return self._machine.pinned.find(args[0]) is not None
        info = op_info(func)
        if info.composite is not None:
            with self:
                return info.composite(*args, **kwargs)
        if info.device_position is not None:
            args, kwargs = _with_device_by_name(info.device_position, func, args, kwargs)
        given = kwargs
        index, kwargs, pin = self._destinations.of(func, info, args, kwargs)
        if info.python_kernel is not None and index != HOST:
            with self, self._machine.thread.call_context((), {}):
                return info.python_kernel(*args, **given)
        node = None if index == HOST else _current_node()
        if node is not None:
            self._gradients.enter(node)
            if func in IN_PLACE:
                func = self._gradients.in_place_variant(node, func, args)
        runs_on = index
        if index == HOST and info.may_leave_gpu:
            runs_on = self._machine.place_of(args[0])
        if info.memory is None or runs_on == HOST:
            result = self._computed(func, info, index, args, kwargs, pin)
            self._allocate_outputs(info, index, args, kwargs, result)
            self._check_model(func, info, index, result)
            return result
        if any(tensor.layout is not torch.strided for tensor in tensors_in(args, kwargs)):
            result = self._computed(func, info, index, args, kwargs, pin)
            self._allocate_outputs(info, index, args, kwargs, result)
            if index != HOST and info.makes_tensors:
                self._unmodelled(func, index, result)
            return result
        if info.only_writes and not info.writes_out:
            # An error for lack of memory leaves the arguments as they were.
            result = info.written_result(args, kwargs)
            self._allocate(func, info, runs_on, index, args, kwargs, result)
            return self._computed(func, info, index, args, kwargs, pin)
        result = self._computed(func, info, index, args, kwargs, pin)
        self._allocate(func, info, runs_on, index, args, kwargs, result)
        return result

    def _allocate(
        self,
        func: Any,
        info: OpInfo,
        runs_on: int,
        index: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Allocate what the kernels of an op allocate, in their order, and free the temporaries."""
        context = _OpMemory(self, info, runs_on, index, args, kwargs, result)
        call = OpCall(context, args, kwargs, result, is_confirmed=info.is_confirmed)
        try:
            if info.memory is not None:
                info.memory(call)
            context.allocate_outputs()
            if call.unknown_workspace:
                self._uncounted(func, runs_on, call.unknown_workspace)
            if call.estimated:
                self._estimated(func, runs_on, call.estimated)
        finally:
            call.end()

    def _computed(
        self,
        func: Any,
        info: OpInfo,
        index: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pin: bool,
    ) -> Any:
        """Run an op on tensors of the CPU."""
        try:
            run = func if index == HOST else info.reference or func
            if info.draws:
                run = self._drawing(func, run, index, args, kwargs)
            result = self._execute(func, run, args, kwargs)
        except UnsupportedCUDACallError:
            raise
        except NotImplementedError as error:
            if index != HOST and not info.runs_on_cpu:
                raise refuse_to_compute(func) from error
            if index != HOST and not _has_kernel(func.name(), "CPU"):
                raise unsupported(func.name()) from error
            raise
        except RuntimeError as error:
            self._refuse_beyond_host(index, error)
            raise
        if pin:
            self._machine.pin(_untyped_storage(result))
        if index != HOST:
            self._machine.thread.last = index
        return result

    def _allocate_outputs(
        self, info: OpInfo, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Label what an op made on a GPU, and follow the sizes of what it resized."""
        if index == HOST:
            return
        if info.makes_tensors:
            self._label_results(info, index, args, result)
        if info.may_resize or (info.mutates_first and _is_sparse(args[0])):
            self._follow(index, args, kwargs)

    def _check_model(self, func: Any, info: OpInfo, index: int, result: Any) -> None:
        if index != HOST and not info.is_modelled:
            self._unmodelled(func, index, result)

    def _drawing(
        self, func: Any, run: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What runs an op that draws random numbers, from the generator of its device."""
        named = random_draws.generator_of(kwargs, on_gpu=index != HOST)
        if index == HOST or random_draws.draws_nothing(func, args, kwargs):
            return run
        return random_draws.drawing(func, run, named, self._machine.generators[index])

    def _unmodelled(self, func: Any, index: int, result: Any) -> None:
        if self._machine.strict:
            raise UnmodelledOpError(
                f"{func} has no memory model: what its CUDA kernels take is not known; without "
                "strict=True (--strict) only its outputs are counted, and the line is marked ?"
            )
        self._machine.approximations[index].count_unmodelled(func, result)

    def _uncounted(self, func: Any, index: int, unknown: str) -> None:
        if self._machine.strict:
            raise UnmodelledOpError(
                f"{func} takes {unknown}, whose size is not known: the peak is a lower bound; "
                "without strict=True (--strict) the rest is counted, and the line is marked ?"
            )
        self._machine.approximations[index].count_uncounted(func, unknown)

    def _estimated(self, func: Any, index: int, nbytes: int) -> None:
        if self._machine.strict == "estimates":
            raise EstimatedMemoryError(
                f"{func} takes an estimated {nbytes} bytes of kernel memory, which no recording "
                "confirms; strict=True (--strict) counts them, and the line is marked ~"
            )
        self._machine.approximations[index].count_estimated(func, nbytes)

    def _label_results(self, info: OpInfo, index: int, args: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._label(result, index)
            return
        if not isinstance(result, (tuple, list)):
            return
        for position, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                if position not in info.cpu_outputs:
                    self._label(item, self._foreach_place(info, args, position, index))
            elif isinstance(item, (tuple, list)):
                for tensor in item:
                    if isinstance(tensor, torch.Tensor):
                        self._label(tensor, index)

    def _foreach_place(self, info: OpInfo, args: tuple[Any, ...], position: int, index: int) -> int:
        if info.is_foreach and len(self._machine.gpus) > 1:
            lists = (one for one in args if isinstance(one, (list, tuple)))
            place = self._machine.place_of(next(lists)[position])
            return index if place == HOST else place
        return index

    def _label(self, tensor: torch.Tensor, index: int, *, is_estimate: bool = False) -> None:
        known = self._machine.allocations.known
        for storage in storages_of(tensor):
            if storage._cdata not in known:
                self._machine.put(storage, index, is_estimate=is_estimate)
                if _current_node() is not None:
                    self._gradients.made(storage._cdata)

    def _follow(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = self._machine.allocations.known
        for tensor in tensors_in(args, kwargs):
            for storage in storages_of(tensor):
                if storage._cdata in known:
                    self._machine.resized(storage)
                elif tensor is args[0]:
                    self._machine.put(storage, index)

    def _refuse_beyond_host(self, index: int, error: RuntimeError) -> None:
        """Name what ran out when the host could not hold a tensor of a simulated GPU.

        Raises:
            torch.OutOfMemoryError: the GPU has no room for it either, which is what counts.
            HostMemoryError: only the host has none.
        """
        refused = _HOST_REFUSES.search(str(error))
        if refused is None or index == HOST:
            return
        nbytes = int(refused[1])
        gpu = self._machine.gpu(index)
        gpu.release(gpu.allocate(nbytes, self._machine.current_stream(index)))
        raise HostMemoryError(
            f"{gpu.device} could hold {nbytes} more bytes, but this machine cannot: "
            "the simulation keeps every tensor in host memory"
        ) from error

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._machine.place_of(tensor) != HOST:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        pinned = tensor.clone()
        self._machine.pin(_untyped_storage(pinned))
        return pinned


class _OpMemory:
    """What the memory function of one call may change: ``MemoryContext``."""

    __slots__ = (
        "_are_outputs_allocated",
        "_args",
        "_gpu",
        "_index",
        "_info",
        "_kwargs",
        "_mode",
        "_result",
        "_stream",
        "model",
    )

    def __init__(
        self,
        mode: SimulatedDeviceMode,
        info: OpInfo,
        runs_on: int,
        index: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        machine = mode._machine
        self._mode = mode
        self._info = info
        self._gpu = machine.gpus[runs_on]
        self._index = index
        self._args = args
        self._kwargs = kwargs
        self._result = result
        self._stream = machine.current_stream(runs_on)
        self._are_outputs_allocated = False
        self.model: GPU = self._gpu.model

    def allocate(self, nbytes: int, *, is_estimate: bool) -> Allocation:
        return self._gpu.allocate(nbytes, self._stream, is_estimate=is_estimate)

    def release(self, allocation: Allocation) -> None:
        self._gpu.release(allocation)

    def allocate_output(self, tensor: torch.Tensor, *, is_estimate: bool) -> None:
        if self._index != HOST:
            self._mode._label(tensor, self._index, is_estimate=is_estimate)

    def allocate_outputs(self) -> None:
        if not self._are_outputs_allocated:
            self._are_outputs_allocated = True
            self._mode._allocate_outputs(
                self._info, self._index, self._args, self._kwargs, self._result
            )

    def ensure_cublas_workspace(self) -> int:
        return self._mode._machine.workspaces.need(self._gpu, self._stream)

    def ensure_cublaslt_workspace(self, size: int) -> int:
        return self._mode._machine.workspaces.need_cublaslt(self._gpu, self._stream, size)

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        return self._mode._machine.allocations.find(tensor) is None


def _is_sparse(first: Any) -> bool:
    return isinstance(first, torch.Tensor) and first.layout is not torch.strided


def _with_device_by_name(
    position: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An op's arguments, those from its device on by their names."""
    names = (argument.name for argument in func._schema.arguments[position:])
    return args[:position], {**dict(zip(names, args[position:], strict=False)), **kwargs}


def _handles_dispatch(kind: type) -> bool:
    """Whether a tensor class has a dispatch of its own, which must run first."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl
