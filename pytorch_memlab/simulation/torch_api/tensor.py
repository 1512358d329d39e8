"""Methods and attributes of tensors that name a device, answering for the simulated GPUs.

Subclasses that wrap tensors, and fake tensors, are made for simulated GPUs too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensor, fake_tensor

from ..._common.frames.traceback_frames import passes_on, without_frames
from ..._common.interrupts.stack_room import check_room
from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..._common.patching.patches import Patches
from ..dispatch.fake_tensors import BUILD_HAS_CUDA
from ..dispatch.transfers import move
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import TensorValues
from .constructors import dtype_of
from .files.numpy_arrays import ArrayWithoutValues

_Base = torch._C.TensorBase
_CPU = torch.device("cpu")
_data_address: Callable[[torch.Tensor], int] = vars(torch._C)["_data_address"]
_tolist = torch.Tensor.tolist
_Uninitialized: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]


def install(machine: Machine, patches: Patches) -> None:
    patches.set_all(torch.Tensor, _attributes(machine))
    methods = (
        *_moves(machine),
        *_reads(machine),
        *_others(machine),
        *_of_one_device(machine),
        backward,
        new_tensor,
    )
    patches.set_all(torch.Tensor, {method.__name__: method for method in methods})
    # Calls name what stands for the method, or what the class has.
    torch_methods = [vars(torch.Tensor)[method.__name__] for method in methods]
    allowed = [*_Uninitialized._allowed_methods, *methods, *torch_methods]
    patches.set(_Uninitialized, "_allowed_methods", allowed)
    patches.set(torch.Tensor, "data_ptr", _address_reader(machine, _Base.data_ptr))
    patches.set(torch._C, "_data_address", _address_reader(machine, _data_address))
    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper_maker(machine)))
    _install_fake_tensors(patches)


def _attributes(machine: Machine) -> dict[str, Any]:
    gpu_of = machine.gpu_of
    cpu_device: Callable[[torch.Tensor], torch.device] = vars(_Base)["device"].__get__
    is_cpu: Callable[[torch.Tensor], bool] = vars(_Base)["is_cpu"].__get__

    def device(tensor: torch.Tensor) -> torch.device:
        gpu = gpu_of(tensor)
        return cpu_device(tensor) if gpu is None else gpu.device

    return {
        "device": property(device),
        "is_cuda": property(lambda tensor: gpu_of(tensor) is not None),
        "is_cpu": property(lambda tensor: gpu_of(tensor) is None and is_cpu(tensor)),
        "grad": _grad(machine),
    }


def _grad(machine: Machine) -> Any:
    slot = vars(_Base)["grad"]
    get, put = slot.__get__, slot.__set__
    find = machine.allocations.find

    # PyTorch asks the class of a tensor for its gradient, and crashes if that raises: at the limit
    # of recursion, or for an interrupt. So a gradient is read in C alone.

    @without_frames
    @passes_on
    def set_gradient(tensor: torch.Tensor, gradient: Any) -> None:
        """As PyTorch does, which refuses a gradient of another device."""
        check_room()
        if gradient is not None and isinstance(gradient, torch.Tensor):
            own, other = find(tensor), find(gradient)
            if own is None or other is None or own.gpu is not other.gpu:
                _check_gradient(machine.gpu_of(tensor), machine.gpu_of(gradient))
        if machine.gradient_observers:
            before = get(tensor)
            for observer in machine.gradient_observers if before is not None else ():
                observer(before)
            del before
        with uninterrupted(*STANDARD_SIGNALS):
            put(tensor, gradient)

    def delete_gradient(tensor: torch.Tensor) -> None:
        check_room()
        with uninterrupted(*STANDARD_SIGNALS):
            slot.__delete__(tensor)

    return _Gradient(get, set_gradient, delete_gradient, slot)


class _Gradient(property):
    """``Tensor.grad``, which names the functions of PyTorch's own: modes are told of them."""

    def __init__(self, get: Any, put: Any, delete: Any, slot: Any) -> None:
        super().__init__(get, put, delete, slot.__doc__)
        for name in ("__get__", "__set__", "__delete__"):
            vars(self)[name] = getattr(slot, name)


def _moves(machine: Machine) -> tuple[Callable[..., Any], ...]:
    """Methods that bring a tensor to a device, or tell where it is."""

    @passes_on
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _names_device(args, kwargs):
            return _Base.to(self, *args, **kwargs)
        device, options = _parse_to(args, kwargs)
        if not isinstance(device, int) and torch.device(device).type not in ("cpu", "cuda"):
            return _Base.to(self, *args, **kwargs)
        return move(machine, self, machine.find_gpu(device), options)

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return to(self, other)

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        gpu = machine.find_gpu(device)
        if gpu is None:
            raise RuntimeError(f"Invalid device, must be cuda device: {device}")
        options = {"non_blocking": non_blocking, "memory_format": memory_format}
        return move(machine, self, gpu, options)

    def cpu(
        self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        return move(machine, self, None, {"memory_format": memory_format})

    def type(
        self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        if dtype is None:
            with torch._C.DisableTorchFunction():
                name: str = _Base.type(self)
            on_gpu = machine.gpu_of(self) is not None
            return name.replace("torch.", "torch.cuda.", 1) if on_gpu else name
        legacy = dtype_of(dtype)
        if legacy is not None:
            return move(machine, self, machine.current_gpu(), {"dtype": legacy})
        if isinstance(dtype, torch.dtype):
            return _Base.to(self, dtype)
        return _Base.type(move(machine, self, None, {}), dtype)

    def get_device(self: torch.Tensor) -> int:
        gpu = machine.gpu_of(self)
        return -1 if gpu is None else gpu.index

    return to, type_as, cuda, cpu, type, get_device


def _reads(machine: Machine) -> tuple[Callable[..., Any], ...]:
    """Methods that read a tensor's values."""
    values = machine.values

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        gpu = machine.gpu_of(self)
        if gpu is not None and not force:
            raise TypeError(
                f"can't convert {gpu.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        machine.overwritten.check_tensor(self)
        array = _read(values, "numpy", self, lambda tensor: _Base.numpy(tensor, force=force))
        if machine.kept_files is not None and values is not None and values.lacks_values(self):
            return array.view(ArrayWithoutValues)
        return array

    def tolist(self: torch.Tensor) -> Any:
        gpu = machine.gpu_of(self)
        if gpu is not None and machine.waits_are_seen:
            machine.synchronize_stream(gpu.index, machine.current_stream(gpu.index))
        machine.overwritten.check_tensor(self)
        return _read(values, "tolist", self, _tolist)

    return numpy, tolist


def _address_reader(
    machine: Machine, host_address_of: Callable[[torch.Tensor], int]
) -> Callable[[torch.Tensor], int]:
    """A function that tells where a tensor's first element is, as the GPU that holds it has it."""

    def data_ptr(tensor: torch.Tensor) -> int:
        with torch._C.DisableTorchFunction():
            address = host_address_of(tensor)  # which refuses a tensor without a storage
            machine.overwritten.check_tensor(tensor)
            if not address or machine.allocations.find(tensor) is None:
                return address
            storage = _Base.untyped_storage(tensor)
            offset = int(tensor.storage_offset()) * tensor.element_size()
            return machine.address_of(storage) + offset

    return data_ptr


def _others(machine: Machine) -> tuple[Callable[..., Any], ...]:
    share: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.share_memory_
    shared: Callable[[torch.Tensor], bool] = torch.Tensor.is_shared

    @passes_on
    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) != 1 or machine.gpu_of(self) is None or not _is_data(args[0]):
            return _Base.new(self, *args, **kwargs)
        device = kwargs.get("device") or self.device
        return torch.tensor(args[0], dtype=self.dtype, device=device)

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        allocation = machine.allocations.find(self)
        if allocation is not None and allocation.address:
            gpu = allocation.gpu
            gpu.locked(gpu.allocator.record_stream, allocation.address, stream.stream_id)

    def share_memory_(self: torch.Tensor) -> torch.Tensor:
        return share(self) if machine.gpu_of(self) is None else self

    def is_shared(self: torch.Tensor) -> bool:
        return machine.gpu_of(self) is not None or shared(self)

    return new, record_stream, share_memory_, is_shared


def _of_one_device(machine: Machine) -> tuple[Callable[..., Any], ...]:
    """Methods that refuse tensors of a GPU, or storages of another device."""

    def apply_(self: torch.Tensor, callable: Callable[..., Any]) -> torch.Tensor:
        if machine.gpu_of(self) is not None:
            raise TypeError("apply_ is only implemented on CPU tensors")
        return _Base.apply_(self, callable)

    def map_(self: torch.Tensor, tensor: Any, callable: Callable[..., Any]) -> torch.Tensor:
        if machine.gpu_of(self) is not None:
            raise TypeError("map_ is only implemented on CPU tensors")
        return _Base.map_(self, tensor, callable)

    def set_(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        source = args[0] if args else kwargs.get("source")
        if source is not None and source.device != self.device:
            raise RuntimeError(
                f'Attempted to set the storage of a tensor on device "{self.device}" to a storage'
                f' on different device "{source.device}".  This is no longer allowed; the devices'
                " must match."
            )
        return _Base.set_(self, *args, **kwargs)

    return apply_, map_, set_


def new_tensor(
    self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> torch.Tensor:
    """``Tensor.new_tensor``: a constructor of ``torch`` does it."""
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **kwargs)


def backward(
    self: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """``Tensor.backward`` that is no single call: hooks and custom functions make their own."""
    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def _read(
    values: TensorValues | None, name: str, tensor: torch.Tensor, read: Callable[..., Any]
) -> Any:
    """Read a tensor's memory; of one without values in a dry run, zeros."""
    if values is None or tensor.layout is not torch.strided or tensor.is_meta:
        return read(tensor)
    if values.is_known(tensor):
        return read(tensor)
    values.reads.count(f"Tensor.{name}", f"Tensor.{name}", "0")
    # A mode would look the method up by its name, and come here again.
    with torch._C.DisableTorchFunction():
        if values.is_readable(tensor):
            return read(tensor)
        zero = torch.zeros((), dtype=tensor.dtype)
        values.forget_values(zero)
        return read(zero.expand(tensor.shape))


def _check_gradient(gpu: SimulatedGPU | None, other: SimulatedGPU | None) -> None:
    """Refuse a gradient of another device than its tensor, in PyTorch's words."""
    if gpu is other:
        return
    if gpu is None or other is None:
        what = "with device type"
        names = ["cpu" if gpu_index is None else "cuda" for gpu_index in (other, gpu)]
    else:
        what = "located on device with index"
        names = [str(other.index), str(gpu.index)]
    raise RuntimeError(
        f"attempting to assign a gradient {what} '{names[0]}' to a tensor {what} '{names[1]}'. "
        "Please ensure that the gradient and the tensor are on the same device"
    )


def _is_data(value: Any) -> bool:
    """True if the argument of ``Tensor.new`` holds elements; otherwise it is a size, or shared."""
    return isinstance(value, (list, tuple, np.ndarray)) and not isinstance(value, torch.Size)


def _names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs.get("device") is not None or kwargs.get("other") is not None:
        return True
    return bool(args) and not isinstance(args[0], torch.dtype) and args[0] is not None


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Device and options of a call of ``Tensor.to`` that names a device or another tensor."""
    kwargs = dict(kwargs)
    names: tuple[str, ...] = ("device", "dtype", "non_blocking", "copy")
    first = args[0] if args else kwargs.pop("other", None)
    if isinstance(first, torch.Tensor):
        kwargs |= {"device": first.device, "dtype": first.dtype}
        args, names = args[1:], names[2:]
    kwargs.update(zip(names, args, strict=False))
    device = kwargs.pop("device")
    if kwargs.get("dtype") is None:
        kwargs.pop("dtype", None)
    return device, kwargs


def _install_fake_tensors(patches: Patches) -> None:
    """Let PyTorch make fake tensors of a GPU on a machine without one."""
    # Where ``torch.cuda.is_available()`` says yes, it makes a tensor on the GPU first, and leaves
    # out the guard that autograd needs in a build with CUDA, which stays.
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        _start_autograd()
        guard()
    for name in ("init_gpu_context", "init_cuda_context"):
        if hasattr(fake_tensor, name):
            patches.set(fake_tensor, name, lambda *_device: None)
    if not BUILD_HAS_CUDA:
        # ``Tensor.copy_`` asks for CUDA's device guard before it comes to the op.
        copy_ = torch.ops.aten.copy_.default
        patches.set(FakeTensor, "copy_", lambda *args, **options: copy_(*args, **options))


@functools.cache
def _start_autograd() -> None:
    """Run a first backward pass, which starts a thread for each GPU that the process has."""
    # That guard claims GPUs that are not there. With threads for them, no fork could train.
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), device="cpu", requires_grad=True).backward()


def _wrapper_maker(machine: Machine) -> Any:
    """Makes tensors that wrap others: labelled, without memory."""
    # PyTorch lets their classes name any device. C++ would take a GPU's name at its word, and its
    # autograd would look for CUDA; so for C++ they are on the CPU, like all others.
    original = torch.Tensor._make_wrapper_subclass

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        gpu = None
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            gpu = machine.find_gpu(device)
            kwargs["device"] = device if gpu is None else _CPU
        else:
            for position, value in enumerate(args):
                if isinstance(value, torch.device) and value.type == "cuda":
                    gpu = machine.find_gpu(value)
                    args = (*args[:position], _CPU, *args[position + 1 :])
        wrapper: torch.Tensor = original(*args, **kwargs)
        if gpu is not None:
            machine.label(torch._C.TensorBase.untyped_storage(wrapper), gpu)
        return wrapper

    return make
