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

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..._common.frames.hidden_calls import hidden, incurious, is_incurious
from ..._common.frames.traceback_frames import clear_internal_frames
from ..._common.interrupts.stack_room import check_room_of_op
from ...errors import UnsupportedCUDACallError
from ..machine.machine import Machine, compute
from ..machine.op_arguments import Args, Kwargs
from ..ops.core.op_info import OpInfo, op_info, records
from . import blocking_ops, captured_ops, fake_tensors, higher_order
from .dispatched_call import DispatchedCall
from .fake_tensors import FAKE, mode_of_kind
from .gradient_accumulation import InPlaceGradientAccumulation
from .large_outputs import LargeOutputs
from .output_devices import OutputDevices

_CPU = torch.device("cpu")
_PIN = torch.ops.aten._pin_memory.default
_CLONE = torch.ops.aten.clone.default
_IS_PINNED = torch.ops.aten.is_pinned.default
_MULTIPLY = torch.ops.aten.mul.Scalar
_ADD = torch.ops.aten.add.Scalar
_ZERO_TENSOR = torch.ops.aten._efficientzerotensor.default
_CONVOLUTION = torch.ops.aten.convolution.default
_EQUAL = torch.ops.aten.equal.default
_LOOKED_AT = (_PIN, _IS_PINNED, _MULTIPLY, _ADD, _CONVOLUTION)
"""Ops of which some calls do not run as others do."""
_SLOW_FOREACH = torch._C.DispatchKey.CompositeExplicitAutograd
_TYPES_OF_NUMBERS = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_untyped_storage = torch._C.TensorBase.untyped_storage
_is_complex = torch._C.TensorBase.is_complex
_STRIDED = torch.strided
_current_node = torch._C._current_autograd_node


class SimulatedDeviceMode(TorchDispatchMode):
    """Labels the outputs of ops, and allocates their memory; Note [Labelled CPU tensors]."""

    supports_higher_order_operators = True

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._machine = machine
        for op in _LOOKED_AT:
            op_info(op).is_plain = False
        self._output_devices = OutputDevices(machine)
        self._gradients = InPlaceGradientAccumulation()
        self._large_outputs = LargeOutputs() if machine.values is None else None

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
        if mode_of_kind(FAKE) is not None:
            return fake_tensors.run(func, args, kwargs or {})
        if types and any(map(_handles_dispatch, types)):
            return NotImplemented
        try:
            if type(func) is not OpOverload and isinstance(func, HigherOrderOperator):
                return higher_order.run(func, self, args, kwargs or {})
            with torch._C.DisableTorchFunction():
                hides = self._machine.calls_are_hidden or (incurious and is_incurious())
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
        if args and (type(args[0]) in _TYPES_OF_NUMBERS or func is _EQUAL):
            args = _with_tensors(func, args)
        info = records.get(id(func)) or op_info(func)
        if info.is_view_of_one:
            result = self._view(info, args, kwargs)
            if result is not None:
                return result
        elif info.is_mark:
            return func(*args, **kwargs)
        arguments = kwargs
        if not info.is_plain:
            result = self._run_otherwise(func, info, args, kwargs)
            if result is not NotImplemented:
                return result
            if info.device_position is not None:
                args, kwargs = _with_device_by_name(info.device_position, func, args, kwargs)
                arguments = kwargs
        call = DispatchedCall(self._machine, self._gradients, info, func, args, kwargs)
        self._output_devices.find(call)
        gpu = call.outputs_on
        if gpu is not None:
            if info.python_kernel is not None:
                with self, self._machine.thread.call_context((), {}):
                    return info.python_kernel(*args, **arguments)
            node = _current_node()
            if node is not None:
                self._gradients.enter(node)
                if info.in_place_in is not None:
                    call.run_in_place(node)
            call.runs_on = gpu
            if self._large_outputs is not None and info.may_outgrow:
                self._large_outputs.refuse(call, gpu)
        elif info.may_leave_gpu:
            call.runs_on = self._machine.gpu_of(args[0])
        if self._machine.captures.underway and call.runs_on is not None:
            capture = self._machine.current_capture(call.runs_on.index)
            if capture is not None:
                return captured_ops.run_captured(call, capture)
        return call.run()

    def _view(self, info: OpInfo, args: Args, kwargs: Kwargs) -> Any:
        """A view of a tensor on a GPU, as half of all ops make one; None where more is asked."""
        # It takes no memory, and is where that tensor is.
        machine, tensor = self._machine, args[0]
        thread = machine.thread
        if kwargs or machine.captures.underway or thread.output_device is not None:
            return None
        try:
            allocation = machine.allocations.of(_untyped_storage(tensor))
            if allocation is None or _is_complex(tensor) or tensor.layout is not _STRIDED:
                return None
            if tensor.is_nested:
                return None
            node = _current_node()
            if node is not None:
                self._gradients.enter(node)
            if machine.execute is compute:
                result = info.op._op(*args)
            else:
                result = machine.execute(info.op, info.op, args, kwargs, True)
        except (NotImplementedError, RuntimeError, ValueError):
            return None  # the same error comes again, and is told in the words of CUDA
        thread.last_gpu = allocation.gpu
        return result

    def _run_otherwise(self, func: Any, info: OpInfo, args: Args, kwargs: Kwargs) -> Any:
        """Run an op by other ops, or refuse it; NotImplemented if it runs as a whole."""
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
        return NotImplemented

    def _of_zero_tensor(self, func: Any, args: Args) -> Any:
        """Compute what kernels above the modes do; Note [Tensors of zeros]."""
        zeros, *others = args
        with self:
            if func is _MULTIPLY:
                dtype = torch.result_type(zeros, others[0])
                return _ZERO_TENSOR(zeros.shape, dtype=dtype, device=zeros.device)
            return func(zeros.clone(), *others)

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._machine.gpu_of(tensor) is not None:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        # A copy of a tensor without values has none, and commits no memory.
        pinned: torch.Tensor = self._run(_CLONE, (tensor,), {})
        self._machine.pin(_untyped_storage(pinned))
        return pinned


def _is_sparse_coo(value: Any) -> bool:
    """False of a number too, which compiled code puts in place of a tensor."""
    return getattr(value, "layout", None) is torch.sparse_coo


def _with_device_by_name(
    position: int, func: Any, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """An op's arguments, those from its device on by their names."""
    names = (argument.name for argument in func._schema.arguments[position:])
    return args[:position], {**dict(zip(names, args[position:], strict=False)), **kwargs}


def _with_tensors(func: Any, args: Args) -> tuple[Any, ...]:
    """An op's arguments, with tensors where PyTorch put numbers that the op does not take."""
    # ``torch.jit.trace`` keeps tensors of numbers (``t + 1``); modes get the numbers instead.
    if func is not _EQUAL and any(isinstance(arg, torch.Tensor) for arg in args):
        return args  # of arithmetic, which takes them
    return tuple(
        torch.scalar_tensor(arg, dtype=_TYPES_OF_NUMBERS[type(arg)], device=_CPU)
        if type(arg) in _TYPES_OF_NUMBERS and type(argument.type) is torch.TensorType
        else arg
        for arg, argument in zip(args, func._schema.arguments, strict=False)
    )


def _handles_dispatch(kind: type) -> bool:
    """True if a tensor class has its own dispatch, which must run first."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl
