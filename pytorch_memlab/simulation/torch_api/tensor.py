"""Methods and attributes of tensors that name a device, answering for the simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..._common.patches import Patches
from ..dispatch.transfers import move
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import TensorValues
from . import legacy_types
from .files.numpy_arrays import ArrayWithoutValues

_Base = torch._C.TensorBase
_tolist = torch.Tensor.tolist
_CPU = torch.device("cpu")
_Uninitialized: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]


def install(machine: Machine, patches: Patches) -> None:
    """Replace methods and attributes of ``torch.Tensor`` until undone."""
    methods = _TensorMethods(machine)
    for name, getter in methods.attributes().items():
        patches.set(torch.Tensor, name, property(getter))
    patches.set(torch.Tensor, "grad", methods.grad())
    replaced = methods.methods()
    for name, method in replaced.items():
        patches.set(torch.Tensor, name, method)
    allowed = [*_Uninitialized._allowed_methods, *replaced.values()]
    patches.set(_Uninitialized, "_allowed_methods", allowed)


class _TensorMethods:
    """The replaced methods of ``torch.Tensor``, bound to one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def attributes(self) -> dict[str, Callable[[torch.Tensor], Any]]:
        machine = self._machine
        gpu_of = machine.gpu_of
        cpu_device = _getter("device")
        is_cpu = _getter("is_cpu")

        def device(tensor: torch.Tensor) -> torch.device:
            gpu = gpu_of(tensor)
            return cpu_device(tensor) if gpu is None else gpu.device

        return {
            "device": device,
            "is_cuda": lambda tensor: gpu_of(tensor) is not None,
            "is_cpu": lambda tensor: gpu_of(tensor) is None and is_cpu(tensor),
        }

    def grad(self) -> Any:
        machine = self._machine
        slot = vars(_Base)["grad"]
        get, put = slot.__get__, slot.__set__
        find = machine.allocations.find

        class Gradient:
            """``Tensor.grad``: PyTorch's own, which refuses a gradient of another device."""

            def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> Any:
                return slot if tensor is None else get(tensor)

            def __set__(self, tensor: torch.Tensor, gradient: Any) -> None:
                if gradient is not None and isinstance(gradient, torch.Tensor):
                    own, other = find(tensor), find(gradient)
                    if own is None or other is None or own.gpu is not other.gpu:
                        _check_gradient(machine.gpu_of(tensor), machine.gpu_of(gradient))
                if machine.gradient_observers:
                    before = get(tensor)
                    for observer in machine.gradient_observers if before is not None else ():
                        observer(before)
                    del before
                put(tensor, gradient)

            def __delete__(self, tensor: torch.Tensor) -> None:
                slot.__delete__(tensor)

        return Gradient()

    def methods(self) -> dict[str, Callable[..., Any]]:
        return {
            "to": self._to(),
            "cuda": self._cuda(),
            "cpu": self._cpu(),
            "type": self._type(),
            "get_device": self._get_device(),
            "numpy": self._numpy(),
            "tolist": self._tolist(),
            "new_tensor": self._new_tensor(),
            "new": self._new(),
            "record_stream": self._record_stream(),
            "share_memory_": self._share_memory(),
            "backward": _backward,
        }

    def _to(self) -> Callable[..., torch.Tensor]:
        machine = self._machine

        def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not _names_device(args, kwargs):
                return _Base.to(self, *args, **kwargs)
            device, options = _parse_to(args, kwargs)
            if torch.device(device).type not in ("cpu", "cuda"):
                return _Base.to(self, *args, **kwargs)
            return move(machine, self, machine.find_gpu(device), options)

        return to

    def _cuda(self) -> Callable[..., torch.Tensor]:
        machine = self._machine

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

        return cuda

    def _cpu(self) -> Callable[..., torch.Tensor]:
        machine = self._machine

        def cpu(
            self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
        ) -> torch.Tensor:
            return move(machine, self, None, {"memory_format": memory_format})

        return cpu

    def _type(self) -> Callable[..., Any]:
        machine = self._machine

        def type_(
            self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
        ) -> Any:
            if dtype is None:
                with torch._C.DisableTorchFunction():
                    name: str = _Base.type(self)
                on_gpu = machine.gpu_of(self) is not None
                return name.replace("torch.", "torch.cuda.", 1) if on_gpu else name
            legacy = legacy_types.dtype_of(dtype)
            if legacy is not None:
                return move(machine, self, machine.current_gpu(), {"dtype": legacy})
            if isinstance(dtype, torch.dtype):
                return _Base.to(self, dtype)
            return _Base.type(move(machine, self, None, {}), dtype)

        return type_

    def _get_device(self) -> Callable[[torch.Tensor], int]:
        machine = self._machine

        def get_device(self: torch.Tensor) -> int:
            gpu = machine.gpu_of(self)
            return -1 if gpu is None else gpu.index

        return get_device

    def _numpy(self) -> Callable[..., Any]:
        machine = self._machine
        values = machine.values

        def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
            gpu = machine.gpu_of(self)
            if gpu is not None and not force:
                raise TypeError(
                    f"can't convert {gpu.device} device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            array = _read(values, "numpy", self, lambda given: _Base.numpy(given, force=force))
            if machine.kept_files is not None and values is not None and values.lacks_values(self):
                return array.view(ArrayWithoutValues)
            return array

        return numpy

    def _tolist(self) -> Callable[[torch.Tensor], Any]:
        machine = self._machine
        values = machine.values

        def tolist(self: torch.Tensor) -> Any:
            gpu = machine.gpu_of(self)
            if gpu is not None and machine.waits_are_seen:
                machine.synchronize_stream(gpu.index, machine.current_stream(gpu.index))
            return _read(values, "tolist", self, _tolist)

        return tolist

    def _new_tensor(self) -> Callable[..., torch.Tensor]:
        def new_tensor(
            self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any
        ) -> torch.Tensor:
            return torch.tensor(
                data, dtype=dtype or self.dtype, device=device or self.device, **kwargs
            )

        return new_tensor

    def _new(self) -> Callable[..., torch.Tensor]:
        machine = self._machine

        def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if len(args) != 1 or machine.gpu_of(self) is None or not _is_data(args[0]):
                return _Base.new(self, *args, **kwargs)
            device = kwargs.get("device") or self.device
            return torch.tensor(args[0], dtype=self.dtype, device=device)

        return new

    def _record_stream(self) -> Callable[..., None]:
        machine = self._machine

        def record_stream(self: torch.Tensor, stream: Any) -> None:
            allocation = machine.allocations.find(self)
            if allocation is not None and allocation.address:
                gpu = allocation.gpu
                gpu.locked(gpu.allocator.record_stream, allocation.address, stream.stream_id)

        return record_stream

    def _share_memory(self) -> Callable[[torch.Tensor], torch.Tensor]:
        machine = self._machine
        share: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.share_memory_

        def share_memory_(self: torch.Tensor) -> torch.Tensor:
            return share(self) if machine.gpu_of(self) is None else self

        return share_memory_


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
        names = ["cpu" if each is None else "cuda" for each in (other, gpu)]
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


def _backward(
    self: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """``Tensor.backward`` that is no single call: hooks and custom functions make their own."""
    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def _getter(name: str) -> Callable[[torch.Tensor], Any]:
    getter: Callable[[torch.Tensor], Any] = vars(_Base)[name].__get__
    return getter


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
