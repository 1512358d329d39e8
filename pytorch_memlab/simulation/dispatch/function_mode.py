"""Above autograd: which call of the program an op belongs to."""

from __future__ import annotations

from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import TorchFunctionMode

from ..._common.frames.traceback_frames import clear_internal_frames
from ..machine import active
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, tensors_in
from . import fake_tensors, higher_order
from .fake_tensors import FAKE, mode_of_kind

_is_autocast_enabled = torch.is_autocast_enabled
_AUTOCAST_OF_THE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_PLAIN = frozenset(
    {
        *(OpOverload, FunctionType, BuiltinFunctionType),
        *(MethodDescriptorType, MethodWrapperType, WrapperDescriptorType),
    }
)
"""Types of functions that are no `HigherOrderOperator`, whose check takes longer."""


class SimulatedFunctionMode(TorchFunctionMode):
    """Remembers the arguments of the call that the program makes while it runs."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._thread = machine.thread
        self._replacements: dict[Any, Any] = {**machine.replacements, torch.device: make_device}

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        thread = self._thread
        outer = thread.call
        try:
            if "device" in kwargs:
                if type(kwargs["device"]) is int and func is not torch.device:
                    kwargs["device"] = torch.device("cuda", kwargs["device"])
                if kwargs.get("out") is not None and kwargs["device"] is not None:
                    kwargs = _without_device_of_out(**kwargs)
            kind = type(func)
            if kind not in _PLAIN and isinstance(func, HigherOrderOperator):
                args, kwargs = higher_order.prepare(self._machine, func, args, kwargs)
            if mode_of_kind(FAKE) is not None:
                fake_tensors.check(args, kwargs)
            if kind is not OpOverload or not _belongs_to_another(outer, args):
                thread.call = (args, kwargs)
            run = self._replacements.get(func, func)
            if _is_autocast_enabled("cpu") and _has_gpu_tensor(args, kwargs):
                with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_OF_THE_CPU):
                    return run(*args, **kwargs)
            return run(*args, **kwargs)
        except BaseException as error:
            clear_internal_frames(error)
            del args, kwargs
            raise
        finally:
            thread.call = outer
            del outer


def _has_gpu_tensor(args: Args, kwargs: Kwargs) -> bool:
    """True if the CPU's autocast leaves the call alone; C++ takes GPU tensors for its own."""
    return any(map(active.holds, tensors_in(args, kwargs)))


def _belongs_to_another(outer: Any, args: Args) -> bool:
    """True if a class of tensors passes on an op of a call that is under way, or of autograd's."""
    # C++ filled in the op's device then: that of its tensors, which it takes for tensors of the
    # CPU.
    if outer is None and torch._C._current_autograd_node() is None:
        return False
    return any(isinstance(value, torch.Tensor) for value in args)


def _without_device_of_out(device: Any, out: Any, **kwargs: Any) -> Kwargs:
    """The rule of ``torch/csrc/utils/out_types.cpp``, which takes ``out`` for a CPU tensor."""
    asked = torch.device(device).type
    if out.device.type != asked:
        raise RuntimeError(
            f"device type {asked} does not match device type of out parameter ({out.device.type})"
        )
    return {**kwargs, "out": out}


def make_device(*args: Any, **kwargs: Any) -> torch.device:
    """``torch.device(0)`` is a GPU; builds of PyTorch without an accelerator refuse an index."""
    index = args[0] if len(args) == 1 and not kwargs else kwargs.get("device")
    if isinstance(index, int):
        return torch.device("cuda", index)
    return torch.device(*args, **kwargs)
