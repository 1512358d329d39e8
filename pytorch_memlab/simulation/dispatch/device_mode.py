"""Below autograd: every op runs on CPU tensors, and its outputs get the label of their GPU.

Note [Labelled CPU tensors]
A simulated CUDA tensor is a CPU tensor whose storage has an `Allocation`: the GPU, an address and a
size (``machine.allocations``). ``tensor.device``, ``is_cuda`` and the rest of Python's interface
look that label up. C++ sees a CPU tensor, and so do autograd, the dispatcher and every kernel.

Tensors that really say ``cuda`` are no way: in a build without CUDA, autograd aborts the process
when it looks for the device guard of a GPU. ``_ensureCUDADeviceGuardSet`` helps builds with CUDA
only. FakeTensorMode has the guard's problem too, and it computes no values, which programs read:
losses, masks, sampled tokens. The meta device has no values either.

Python's ``data_ptr()`` gives the label's address, which snapshots have too. Values are at
``host_address`` of the storage; `ThreadState.host_addresses` lets ``data_ptr()`` give that to code
that reads them, such as Triton's interpreter.

The label belongs to the storage, not to the tensor: views, ``detach`` and ``set_`` share it without
an op that would have to pass it on, and it goes when the storage is freed.

C++ passes ``device=cpu`` for tensors that only look like CPU tensors, so an op inside a composite
op cannot say by itself where its outputs go: `OutputDevices` finds it from the call of the program,
which `SimulatedFunctionMode` remembers.

Note [Tensors of zeros]
A tangent that is zero has no memory (``_efficientzerotensor``). Kernels of a dispatch key above the
modes answer for it. ``mul.Scalar`` and ``add.Scalar`` pass that key by, to call ``mul.Tensor`` and
``add.Tensor``; below a mode the key is left out, and those would read memory that is not there.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..._common.hidden_calls import hidden, is_incurious
from ..._common.stack_room import check_room_of_op
from ..._common.storages import storages_of
from ..._common.traceback_frames import clear_internal_frames
from ..._common.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ...errors import (
    EstimatedMemoryError,
    HostMemoryError,
    MemlabError,
    UnmodelledOpError,
    UnsupportedCUDACallError,
)
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, list_of_tensors, tensors_in
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.unsupported import unsupported
from ..ops.core import random_draws
from ..ops.core.autograd_reference import lazy_conjugation
from ..ops.core.library_ops import has_cpu_kernel, refuse_to_compute
from ..ops.core.op_call import OpCall
from ..ops.core.op_info import OpInfo, op_info
from . import blocking_ops, captured_ops, higher_order, large_outputs
from .gradient_accumulation import InPlaceGradientAccumulation
from .output_devices import OutputDevices

_CPU = torch.device("cpu")
_PIN = torch.ops.aten._pin_memory.default
_IS_PINNED = torch.ops.aten.is_pinned.default
_MULTIPLY = torch.ops.aten.mul.Scalar
_ADD = torch.ops.aten.add.Scalar
_ZERO_TENSOR = torch.ops.aten._efficientzerotensor.default
_CONVOLUTION = torch.ops.aten.convolution.default
_EQUAL = torch.ops.aten.equal.default
_SLOW_FOREACH = torch._C.DispatchKey.CompositeExplicitAutograd
_TYPES_OF_NUMBERS = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_NO_HOST_MEMORY = re.compile(r"you tried to allocate (\d+) bytes")
_untyped_storage = torch._C.TensorBase.untyped_storage
_current_node = torch._C._current_autograd_node
_STRIDED = torch.strided
_is_complex = torch._C.TensorBase.is_complex
_NOTHING = nullcontext()
_mode_of_kind = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class SimulatedDeviceMode(TorchDispatchMode):
    """Labels the outputs of ops, and allocates their memory; Note [Labelled CPU tensors]."""

    supports_higher_order_operators = True

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._machine = machine
        self._output_devices = OutputDevices(machine)
        self._gradients = InPlaceGradientAccumulation()
        self._large_outputs = large_outputs.LargeOutputs() if machine.values is None else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not needed here, and it would import the compiler at the first op."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The compiler traces without this mode; it does not skip what runs under it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if _mode_of_kind(_FAKE) is not None:
            return func(*args, **(kwargs or {}))
        if types and any(map(_handles_dispatch, types)):
            return NotImplemented
        try:
            if type(func) is not OpOverload and isinstance(func, HigherOrderOperator):
                return higher_order.run(func, self, args, kwargs or {})
            with torch._C.DisableTorchFunction():
                hides = self._machine.calls_are_hidden or is_incurious()
                if hides and func.namespace == "aten":
                    result = hidden(self._run, func, args, kwargs or {})
                else:
                    result = self._run(func, args, kwargs or {})
                if self._machine.waits_are_seen:
                    blocking_ops.wait(self._machine, func, args, kwargs or {}, result)
                return result
        except BaseException as error:
            clear_internal_frames(error)
            del args, kwargs
            raise

    def _run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        for observer in self._machine.op_observers:
            observer(func)
        if func is _PIN:
            return self._pin(args[0])
        if func is _IS_PINNED:
            return self._machine.is_pinned(args[0])
        if func is _CONVOLUTION and torch._C._get_tracing_state() is not None:
            raise UnsupportedCUDACallError(
                "torch.jit.trace of a convolution is not covered by the simulated GPU: PyTorch"
                " traces none under a dispatch mode; trace the module before the simulation"
                " begins, or use torch.jit.script"
            )
        if args and (type(args[0]) in _TYPES_OF_NUMBERS or func is _EQUAL):
            args = _with_tensors(func, args)
        info = op_info(func)
        if (func is _MULTIPLY or func is _ADD) and args[0]._is_zerotensor():
            return self._of_zero_tensor(func, args)
        if info.may_resize:
            check_room_of_op()
        composite = info.composite
        if info.composite_of_sparse is not None and _is_sparse_coo(args[0]):
            composite = info.composite_of_sparse
        if composite is not None:
            with self:
                result = composite(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if info.is_foreach and self._output_devices.of_lists_differ(args):
            with self:  # CUDA too runs one op for each tensor then
                return func._op_dk(_SLOW_FOREACH, *args, **kwargs)
        if info.device_position is not None:
            args, kwargs = _with_device_by_name(info.device_position, func, args, kwargs)
        given = kwargs
        tensors = list_of_tensors(args, kwargs)
        gpu, kwargs, pin = self._output_devices.of(func, info, args, kwargs, tensors)
        if info.python_kernel is not None and gpu is not None:
            with self, self._machine.thread.call_context((), {}):
                return info.python_kernel(*args, **given)
        node = None if gpu is None else _current_node()
        if node is not None:
            self._gradients.enter(node)
            if info.in_place_in is not None:
                tensors.clear()  # which counts references
                func = self._gradients.in_place_variant(node, func, args)
                tensors = list_of_tensors(args, kwargs)
        runs_on = gpu
        if gpu is None and info.may_leave_gpu:
            runs_on = self._machine.gpu_of(args[0])
        if (
            gpu is not None
            and self._large_outputs is not None
            and info.may_outgrow
            and large_outputs.are_possible(info, gpu, args)
        ):
            outputs = self._large_outputs.of(func, info, gpu, args, kwargs)
            if outputs is not None:  # an error for lack of memory, before host memory is full
                self._allocate(func, info, gpu, gpu, args, kwargs, outputs)
        if runs_on is not None and self._machine.captures:
            capture = self._machine.current_capture(runs_on.index)
            if capture is not None:
                run_op = partial(self._run_on, func, info, runs_on, gpu, args, kwargs, pin, tensors)
                return captured_ops.run_captured(
                    self._machine, capture, func, info, gpu, args, kwargs, run_op
                )
        return self._run_on(func, info, runs_on, gpu, args, kwargs, pin, tensors)

    def _run_on(
        self,
        func: Any,
        info: OpInfo,
        runs_on: SimulatedGPU | None,
        gpu: SimulatedGPU | None,
        args: Args,
        kwargs: Kwargs,
        pin: bool,
        tensors: list[torch.Tensor],
    ) -> Any:
        """Run an op on the GPU that it runs on, None for the CPU, with outputs on another."""
        has_model = info.memory is not None
        if not has_model or runs_on is None or _any_special(tensors):
            result = self._computed(func, info, gpu, args, kwargs, pin, tensors)
            self._allocate_outputs(info, gpu, args, kwargs, result)
            if gpu is not None and (info.makes_tensors if has_model else not info.is_modelled):
                self._unmodelled(func, gpu, result)
            return result
        if info.only_writes and not info.writes_out:
            # An error for lack of memory leaves the arguments as they were.
            result = info.written_result(args, kwargs)
            misfit = None
            try:
                self._allocate(func, info, runs_on, gpu, args, kwargs, result)
            except (torch.OutOfMemoryError, MemlabError):
                raise
            except Exception as error:
                misfit = error  # arguments that do not fit: PyTorch refuses them in its words
            result = self._computed(func, info, gpu, args, kwargs, pin, tensors)
            if misfit is not None:
                raise misfit
            return result
        result = self._computed(func, info, gpu, args, kwargs, pin, tensors)
        self._allocate(func, info, runs_on, gpu, args, kwargs, result)
        return result

    def _of_zero_tensor(self, func: Any, args: Args) -> Any:
        """Compute what kernels above the modes do; Note [Tensors of zeros]."""
        zeros, *others = args
        with self:
            if func is _MULTIPLY:
                dtype = torch.result_type(zeros, others[0])
                return _ZERO_TENSOR(zeros.shape, dtype=dtype, device=zeros.device)
            return func(zeros.clone(), *others)

    def _allocate(
        self,
        func: Any,
        info: OpInfo,
        runs_on: SimulatedGPU,
        gpu: SimulatedGPU | None,
        args: Args,
        kwargs: Kwargs,
        result: Any,
    ) -> None:
        """Allocate what the kernels of an op allocate, in their order, and free the temporaries."""

        def allocate_output(tensor: torch.Tensor, is_estimate: bool) -> None:
            if gpu is not None:
                self._label(tensor, gpu, is_estimate=is_estimate)

        call = OpCall(
            self._machine,
            runs_on,
            self._machine.current_stream(runs_on.index),
            func,
            args,
            kwargs,
            result,
            info.is_confirmed,
            allocate_output,
            partial(self._allocate_outputs, info, gpu, args, kwargs, result),
        )
        with uninterrupted(*STANDARD_SIGNALS):
            try:
                if info.memory is not None:
                    info.memory(call)
                call.alloc_outputs()
                if call.unknown_workspace:
                    self._uncounted(func, runs_on, call)
                if call.estimated:
                    self._estimated(func, runs_on, call.estimated)
            finally:
                call.free_temps()

    def _computed(
        self,
        func: Any,
        info: OpInfo,
        gpu: SimulatedGPU | None,
        args: Args,
        kwargs: Kwargs,
        pin: bool,
        tensors: list[torch.Tensor],
    ) -> Any:
        """Run an op on tensors of the CPU."""
        try:
            run = func if gpu is None else info.reference or func
            if info.draws:
                run = self._drawing(func, run, gpu, args, kwargs)
            with lazy_conjugation() if _any_complex(tensors) else _NOTHING:
                result = self._machine.execute(func, run, args, kwargs, gpu is not None)
        except UnsupportedCUDACallError:
            raise
        except NotImplementedError as error:
            if gpu is not None and not info.runs_on_cpu:
                raise refuse_to_compute(func) from error
            if gpu is not None and not has_cpu_kernel(func):
                raise unsupported(func.name()) from error
            raise
        except RuntimeError as error:
            self._check_host_memory(gpu, error)
            raise
        if pin:
            self._machine.pin(_untyped_storage(result))
        if gpu is not None:
            self._machine.thread.last_gpu = gpu
        return result

    def _allocate_outputs(
        self, info: OpInfo, gpu: SimulatedGPU | None, args: Args, kwargs: Kwargs, result: Any
    ) -> None:
        """Label what an op made on a GPU, and follow the sizes of what it resized."""
        if gpu is None:
            return
        if info.makes_tensors or _is_special(result):  # a sparse view has other indices
            self._label_results(info, gpu, result)
        if info.may_resize or (info.mutates_first and _is_special(args[0])):
            self._follow(gpu, args, kwargs)

    def _drawing(
        self, func: Any, run: Any, gpu: SimulatedGPU | None, args: Args, kwargs: Kwargs
    ) -> Any:
        """A function that runs an op with the generator of its device."""
        named = random_draws.generator_of(kwargs, on_gpu=gpu is not None)
        if gpu is None or random_draws.draws_nothing(func, args, kwargs):
            return run
        generator = named or self._machine.generators[gpu.index]
        offset = generator.start_draw()
        drawing = partial(random_draws.drawing, func, run, named is not None)
        if self._machine.captures:
            captured_ops.note_draw(self._machine, gpu, generator.state, offset, drawing)
        return drawing(generator.state.source(offset))

    def _unmodelled(self, func: Any, gpu: SimulatedGPU, result: Any) -> None:
        if self._machine.strict:
            raise UnmodelledOpError(
                f"{func} has no memory model: what its CUDA kernels take is not known; without "
                "strict=True (--strict) only its outputs are counted, and the line is marked ?"
            )
        self._machine.approximations[gpu.index].count_unmodelled(func, result)

    def _uncounted(self, func: Any, gpu: SimulatedGPU, call: OpCall) -> None:
        if self._machine.strict:
            raise UnmodelledOpError(
                f"{func} takes {call.unknown_workspace}, whose size is not known: the peak is a "
                "lower bound; without strict=True (--strict) the rest is counted, and the line is "
                "marked ?"
            )
        self._machine.approximations[gpu.index].count_uncounted(
            func, call.unknown_workspace, call.workspace_bound, gives_way=call.workspace_gives_way
        )

    def _estimated(self, func: Any, gpu: SimulatedGPU, nbytes: int) -> None:
        if self._machine.strict == "estimates":
            raise EstimatedMemoryError(
                f"{func} takes an estimated {nbytes} bytes of kernel memory, which no recording "
                "confirms; strict=True (--strict) counts them, and the line is marked ~"
            )
        self._machine.approximations[gpu.index].count_estimated(func, nbytes)

    def _label_results(self, info: OpInfo, gpu: SimulatedGPU, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._label(result, gpu)
            return
        if not isinstance(result, (tuple, list)):
            return
        for position, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                if position not in info.cpu_outputs:
                    self._label(item, gpu)
            elif isinstance(item, (tuple, list)):
                for tensor in item:
                    if isinstance(tensor, torch.Tensor):
                        self._label(tensor, gpu)

    def _label(self, tensor: torch.Tensor, gpu: SimulatedGPU, *, is_estimate: bool = False) -> None:
        known = self._machine.allocations.known
        for storage in storages_of(tensor):
            if storage._cdata not in known:
                machine = self._machine
                if tensor.layout is not torch.strided or not machine.is_in_graph_pool(gpu):
                    machine.put(storage, gpu, is_estimate=is_estimate)
                else:
                    storage = machine.put_in_pool(tensor, gpu, is_estimate=is_estimate)
                    recording = self._recording(gpu) if machine.captures else None
                    if recording is not None:
                        recording.made(storage)
                if _current_node() is not None:
                    self._gradients.made(storage._cdata)

    def _recording(self, gpu: SimulatedGPU) -> captured_ops.Recording | None:
        """The recording of the current stream's capture, None without one."""
        capture = self._machine.current_capture(gpu.index)
        recording: captured_ops.Recording | None = None if capture is None else capture.recording
        return recording

    def _follow(self, gpu: SimulatedGPU, args: Args, kwargs: Kwargs) -> None:
        known = self._machine.allocations.known
        for tensor in tensors_in(args, kwargs):
            for storage in storages_of(tensor):
                if storage._cdata in known:
                    self._machine.resized(storage)
                elif tensor is args[0]:
                    self._machine.put(storage, gpu)

    def _check_host_memory(self, gpu: SimulatedGPU | None, error: RuntimeError) -> None:
        """Name the memory that ran out where the CPU cannot hold a tensor of a simulated GPU."""
        refused = _NO_HOST_MEMORY.search(str(error))
        if refused is None or gpu is None:
            return
        nbytes = int(refused[1])
        with uninterrupted(*STANDARD_SIGNALS):
            gpu.release(gpu.allocate(nbytes, self._machine.current_stream(gpu.index)))
        raise HostMemoryError(
            f"{gpu.device} could hold {nbytes} more bytes, but this machine cannot: "
            "the simulation keeps every tensor in host memory"
        ) from error

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._machine.gpu_of(tensor) is not None:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        pinned = tensor.clone()
        self._machine.pin(_untyped_storage(pinned))
        return pinned


def _is_sparse_coo(value: Any) -> bool:
    """False of a number too, which compiled code puts in place of a tensor."""
    return getattr(value, "layout", None) is torch.sparse_coo


def _any_special(tensors: list[torch.Tensor]) -> bool:
    """True if one of some tensors is sparse or nested."""
    for tensor in tensors:  # noqa: SIM110 - every op comes here
        if tensor.layout is not _STRIDED or tensor.is_nested:
            return True
    return False


def _any_complex(tensors: list[torch.Tensor]) -> bool:
    for tensor in tensors:  # noqa: SIM110 - every op comes here
        if _is_complex(tensor):
            return True
    return False


def _is_special(value: Any) -> bool:
    """True of sparse and nested tensors, which have other kernels."""
    return isinstance(value, torch.Tensor) and (
        value.layout is not torch.strided or value.is_nested
    )


def _with_device_by_name(
    position: int, func: Any, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """An op's arguments, those from its device on by their names."""
    names = (argument.name for argument in func._schema.arguments[position:])
    return args[:position], {**dict(zip(names, args[position:], strict=False)), **kwargs}


def _with_tensors(func: Any, args: Args) -> tuple[Any, ...]:
    """An op's arguments, with tensors where PyTorch put numbers that the op does not take.

    ``torch.jit.trace`` keeps tensors of numbers (``t + 1``); modes get the numbers instead.
    """
    if func is not _EQUAL and any(isinstance(one, torch.Tensor) for one in args):
        return args  # of arithmetic, which takes them
    return tuple(
        torch.scalar_tensor(one, dtype=_TYPES_OF_NUMBERS[type(one)], device=_CPU)
        if type(one) in _TYPES_OF_NUMBERS and type(argument.type) is torch.TensorType
        else one
        for one, argument in zip(args, func._schema.arguments, strict=False)
    )


def _handles_dispatch(kind: type) -> bool:
    """True if a tensor class has its own dispatch, which must run first."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl
