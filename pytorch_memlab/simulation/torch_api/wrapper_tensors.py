"""Tensors that wrap others (DTensor's pieces in flight, jagged tensors): labelled, without memory.

PyTorch lets their classes name any device. C++ would take a GPU's name at its word, and its
autograd would look for CUDA; so C++ is told that they are on the host, like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..machine.machine import HOST

if TYPE_CHECKING:
    from ..._common.patches import Patches
    from ..machine.machine import Machine

_CPU = torch.device("cpu")


def install(machine: Machine, patches: Patches) -> None:
    """Make wrappers for simulated GPUs, until undone.

    Args:
        machine: the simulated machine.
        patches: who puts the original back.
    """
    original = torch.Tensor._make_wrapper_subclass

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        place = HOST
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            place = machine.index_of(device)
            kwargs["device"] = device if place == HOST else _CPU
        else:
            for position, value in enumerate(args):
                if isinstance(value, torch.device) and value.type == "cuda":
                    place = machine.index_of(value)
                    args = (*args[:position], _CPU, *args[position + 1 :])
        wrapper: torch.Tensor = original(*args, **kwargs)
        if place != HOST:
            machine.label(torch._C.TensorBase.untyped_storage(wrapper), place)
        return wrapper

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))
