"""``torch.Generator`` under simulation: it makes generators of simulated GPUs too."""

from __future__ import annotations

from typing import Any

import torch

from ..._common.patches import Patches
from ..machine.cuda_generator import SimulatedGenerator
from ..machine.machine import Machine

_Generator = torch._C.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Generator)


def install(machine: Machine, patches: Patches) -> None:
    """Make ``torch.Generator`` accept simulated devices, until undone."""

    class Generator(metaclass=_GeneratorType):
        """``torch.Generator`` for the CPU and simulated GPUs."""

        __module__, __qualname__ = "torch", "Generator"  # where pickle finds it

        def __new__(cls, device: Any = "cpu") -> Any:
            gpu = None if device is None else machine.find_gpu(device)
            return _Generator() if gpu is None else SimulatedGenerator(gpu.index)

    patches.set(torch, "Generator", Generator)
