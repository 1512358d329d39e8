"""Subclasses of tensors for simulated GPUs: wrappers (jagged tensors, DTensor) and fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor, fake_tensor

from ..._common.patches import Patches
from ..dispatch.fake_tensors import BUILD_HAS_CUDA
from ..machine.machine import Machine

_CPU = torch.device("cpu")


def install(machine: Machine, patches: Patches) -> None:
    """Make wrappers and fake tensors of simulated GPUs, until undone."""
    _install_fake_tensors(patches)
    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper_maker(machine)))


def _install_fake_tensors(patches: Patches) -> None:
    """Let PyTorch make fake tensors of a GPU on a machine without one.

    Where ``torch.cuda.is_available()`` says yes, it makes a tensor on the GPU first, and leaves
    out the guard that autograd needs in a build with CUDA (from torch 2.5 on), which stays.
    """
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()
    for name in ("init_gpu_context", "init_cuda_context"):
        if hasattr(fake_tensor, name):
            patches.set(fake_tensor, name, lambda *_device: None)
    if not BUILD_HAS_CUDA:
        patches.set(FakeTensor, "copy_", _copy)


def _copy(self: FakeTensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The op: ``Tensor.copy_`` asks for CUDA's device guard before it comes to the op."""
    result: torch.Tensor = torch.ops.aten.copy_.default(self, src, non_blocking)
    return result


def _wrapper_maker(machine: Machine) -> Any:
    """Makes tensors that wrap others: labelled, without memory.

    PyTorch lets their classes name any device. C++ would take a GPU's name at its word, and its
    autograd would look for CUDA; so for C++ they are on the CPU, like all others.
    """
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
