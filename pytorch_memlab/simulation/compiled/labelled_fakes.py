"""Fake tensors of a simulated GPU: for C++ they are on the CPU, as all its tensors are.

Note [Labelled fake tensors]
The compiler traces programs with fake tensors. Autograd ends the process at one that C++ takes for
a tensor of CUDA in a build without CUDA. So a fake tensor of a simulated GPU has the dispatch keys
of the CPU, and answers C++ that it is there; Python asks the fake tensor itself, which names the
GPU. What C++ makes with the options of such a tensor would be on the CPU: `_meant` finds the GPU
that it means, from the tensors of the op, or of the call of the program that is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import FakeTensor, fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ..._common.patching.patches import Patches
from ..dispatch.function_mode import make_device
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, tensors_in

_CPU = torch.device("cpu")
_DEVICE = torch.ops.prim.device.default
_TO_COPY = torch.ops.aten._to_copy.default


def install(machine: Machine, patches: Patches) -> None:
    _install_devices_of_fakes(patches)
    _install_modes(machine, patches)


def _install_devices_of_fakes(patches: Patches) -> None:
    """Let C++ take fake tensors of a simulated GPU for those of the CPU."""
    make = torch.Tensor._make_subclass

    def make_subclass(*args: Any, **kwargs: Any) -> torch.Tensor:
        keys = kwargs.get("device_for_backend_keys")
        if keys is not None and keys.type == "cuda":
            kwargs["device_for_backend_keys"] = _CPU
        made: torch.Tensor = make(*args, **kwargs)
        return made

    patches.set(torch.Tensor, "_make_subclass", staticmethod(make_subclass))
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    patches.set(fake_tensor, "_DISPATCH_META_HANDLERS", {**handlers, _DEVICE: _device_for_cpp})
    dispatch = FakeTensor.__torch_dispatch__

    def torch_dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return _device_for_cpp(args)
        return dispatch(func, types, args, kwargs or {})

    patches.set(FakeTensor, "__torch_dispatch__", classmethod(torch_dispatch))


def _install_modes(machine: Machine, patches: Patches) -> None:
    """Let the modes that trace a graph run its ops on the device that the program means."""

    @patches.around(FunctionalTensorMode, "__torch_dispatch__")
    def run_functional(
        run: Callable[..., Any], mode: Any, op: Any, types: Any, args: Args = (), kwargs: Any = None
    ) -> Any:
        return run(mode, op, types, args, _with_device(machine, op, args, kwargs or {}))

    @patches.around(fake_tensor.FakeTensorMode, "__torch_dispatch__")
    def run_fake(
        run: Callable[..., Any], mode: Any, op: Any, types: Any, args: Args = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if machine.thread.call is not None:
            kwargs = _with_device(machine, op, args, kwargs)
        if any(_is_gpu(value) for value in (*args, kwargs.get("device"))):
            for tensor in tensors_in(args, kwargs):
                if isinstance(tensor, FakeTensor):
                    tensor.constant = None  # PyTorch would compute on the GPU with it
        return run(mode, op, types, args, kwargs)

    @patches.around(proxy_tensor, "unset_fake_temporarily")
    @contextmanager
    def unset_fake(original: Callable[[], Any]) -> Iterator[Any]:
        with original() as mode, OnCPU():  # type: ignore[no-untyped-call]
            yield mode


def _is_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _device_for_cpp(args: Any) -> torch.device:
    (tensor,) = args
    device: torch.device = tensor.device
    return _CPU if device.type == "cuda" else device


class Calls(TorchFunctionMode):
    """Remembers the call of the program that a traced op belongs to."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._thread = machine.thread
        self._replacements: dict[Any, Any] = {**machine.replacements, torch.device: make_device}

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        thread = self._thread
        outer = thread.call
        thread.call = (args, kwargs)
        try:  # no context manager: the compiler asks some 100,000 times
            return self._replacements.get(func, func)(*args, **kwargs)
        finally:
            thread.call = outer


def _with_device(machine: Machine, op: Any, args: Args, kwargs: Kwargs) -> Kwargs:
    """The keyword arguments of a traced op, with the device that its caller means."""
    chosen = machine.thread.output_device
    if chosen is not None and (op is _TO_COPY or kwargs.get("device") == _CPU):
        return {**kwargs, "device": chosen}
    if kwargs.get("device") != _CPU:
        return kwargs
    call_args, call_kwargs = machine.thread.call or ((), {})
    if call_kwargs.get("device") is not None:
        return kwargs
    tensors = (*tensors_in(args, kwargs), *tensors_in(call_args, call_kwargs))
    gpus = (machine.gpu_of(tensor) for tensor in tensors)
    gpu = next((gpu for gpu in gpus if gpu is not None), None)
    if gpu is None and not tensors and torch._C._current_autograd_node() is not None:
        gpu = machine.current_gpu()
    return kwargs if gpu is None else {**kwargs, "device": gpu.device}


class OnCPU(TorchDispatchMode):
    """Makes on the CPU what the compiler computes while it compiles."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, _on_cpu, (args, kwargs or {}))
        return func(*args, **kwargs)


def _on_cpu(_device: torch.device) -> torch.device:
    return _CPU
