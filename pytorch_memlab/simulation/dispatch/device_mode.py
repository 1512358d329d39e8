"""Below autograd: every op runs on the host's tensors, and its results get their GPU's label."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
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
from ..ops.library_ops import refuse_to_compute
from ..ops.memory_model import Basis
from ..ops.op_call import Launch
from ..ops.op_info import traits_of
from ..ops.random import random_draws
from ..torch_api import unsupported as uncovered
from . import blocking_ops, fake_tensors, higher_order
from .gradient_accumulation import GradientFlow
from .output_devices import Destinations, tensors_in
from .traceback_frames import let_go

if TYPE_CHECKING:
    from ..machine.machine import Machine
    from ..ops.op_info import Traits

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


class PlacementMode(TorchDispatchMode):
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
        self._destinations = Destinations(machine)
        self._gradients = GradientFlow()

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
            let_go(error)
            del args, kwargs
            raise

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for observer in self._machine.op_observers:
            observer(func)
        if func is _PIN:
            return self._pin(args[0])
        if func is _IS_PINNED:
            return self._machine.pinned.find(args[0]) is not None
        traits = traits_of(func)
        if traits.composite is not None:
            with self:
                return traits.composite(*args, **kwargs)
        if traits.device_position is not None:
            args, kwargs = _with_device_by_name(traits.device_position, func, args, kwargs)
        given = kwargs
        index, kwargs, pin = self._destinations.of(func, traits, args, kwargs)
        if traits.python_kernel is not None and index != HOST:
            with self, self._machine.thread.calling((), {}):
                return traits.python_kernel(*args, **given)
        node = None if index == HOST else _current_node()
        if node is not None:
            self._gradients.enter(node)
            if traits.may_be_in_place:
                func = self._gradients.instead(node, func, args)
        if traits.kernel is None or (index == HOST and not traits.may_leave):
            return self._make(func, traits, index, args, kwargs, pin)
        runs_on = self._machine.place_of(args[0]) if index == HOST else index
        if runs_on == HOST:
            return self._make(func, traits, index, args, kwargs, pin)
        if any(tensor.layout is not torch.strided for tensor in tensors_in(args, kwargs)):
            result = self._make(func, traits, index, args, kwargs, pin)
            if index != HOST and traits.makes_tensors:
                self._unmodelled(func, index, result)
            return result
        gpu = self._machine.gpus[runs_on]
        is_confirmed = traits.kernel.basis is Basis.RECORDING
        launch = Launch(self._machine, gpu, args, kwargs, is_confirmed=is_confirmed)
        try:
            if traits.kernel.prepare is not None:
                traits.kernel.prepare(launch)
            launch.result = self._make(func, traits, index, args, kwargs, pin, launch)
            traits.kernel.take(launch)
            if launch.unknown:
                self._uncounted(func, runs_on, launch.unknown)
            if launch.estimated:
                self._estimated(func, runs_on, launch.estimated)
        finally:
            launch.end()
        return launch.result

    def _make(
        self,
        func: Any,
        traits: Traits,
        index: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pin: bool,
        launch: Launch | None = None,
    ) -> Any:
        """Run an op, and label what it made."""
        try:
            run = func if index == HOST else traits.compute or func
            if traits.draws:
                run = self._drawing(func, run, index, args, kwargs)
            result = self._execute(func, run, args, kwargs)
        except UnsupportedCUDACallError:
            raise
        except NotImplementedError as error:
            if index != HOST and not traits.runs_on_host:
                raise refuse_to_compute(func) from error
            if index != HOST and not _has_kernel(func.name(), "CPU"):
                uncovered.refuse(func.name())()
            raise
        except RuntimeError as error:
            self._refuse_beyond_host(index, error)
            raise
        if pin:
            self._machine.pin(_untyped_storage(result))
        if index != HOST:
            self._machine.thread.last = index
            if launch is not None and traits.kernel is not None and traits.kernel.make is not None:
                launch.result = result
                launch.label = partial(self._label, index=index)
                traits.kernel.make(launch)
            if traits.makes_tensors:
                self._label_results(traits, index, args, result)
            if not traits.is_modelled:
                self._unmodelled(func, index, result)
            if traits.may_resize or (traits.mutates_first and _is_sparse(args[0])):
                self._follow(index, args, kwargs)
        return result

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

    def _label_results(
        self, traits: Traits, index: int, args: tuple[Any, ...], result: Any
    ) -> None:
        if isinstance(result, torch.Tensor):
            self._label(result, index)
            return
        if not isinstance(result, (tuple, list)):
            return
        for position, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                if position not in traits.host_results:
                    self._label(item, self._foreach_place(traits, args, position, index))
            elif isinstance(item, (tuple, list)):
                for tensor in item:
                    if isinstance(tensor, torch.Tensor):
                        self._label(tensor, index)

    def _foreach_place(
        self, traits: Traits, args: tuple[Any, ...], position: int, index: int
    ) -> int:
        if traits.is_foreach and len(self._machine.gpus) > 1:
            lists = (one for one in args if isinstance(one, (list, tuple)))
            place = self._machine.place_of(next(lists)[position])
            return index if place == HOST else place
        return index

    def _label(self, tensor: torch.Tensor, index: int, *, is_estimate: bool = False) -> None:
        known = self._machine.placements.known
        for storage in storages_of(tensor):
            if storage._cdata not in known:
                self._machine.put(storage, index, is_estimate=is_estimate)
                if _current_node() is not None:
                    self._gradients.made(storage._cdata)

    def _follow(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = self._machine.placements.known
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
