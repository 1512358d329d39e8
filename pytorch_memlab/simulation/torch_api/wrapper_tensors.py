"""Tensors that wrap others (DTensor's pieces in flight, jagged tensors): labelled, without memory.

PyTorch lets their classes name any device. C++ would take a GPU's name at its word, and its
autograd would look for CUDA; so for C++ they are on the CPU, like all others.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine

_CPU = torch.device("cpu")


def install(machine: Machine, patches: Patches) -> None:
    """Make wrappers for simulated GPUs, until undone."""
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

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))
