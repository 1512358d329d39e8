"""``torch.Generator`` under simulation: it makes generators of simulated GPUs too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..dispatch.transfers import place_of_device
from ..machine.cuda_generator import SimulatedGenerator
from ..machine.machine import HOST

if TYPE_CHECKING:
    from ..._common.patches import Patches
    from ..machine.machine import Machine

_Generator = torch._C.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Generator)


def install(machine: Machine, patches: Patches) -> None:
    """Make ``torch.Generator`` accept simulated devices, until the patches are undone.

    Args:
        machine: the simulated machine.
        patches: who puts it back.
    """

    class Generator(metaclass=_GeneratorType):
        """``torch.Generator`` for the host and simulated GPUs."""

        __module__, __qualname__ = "torch", "Generator"  # where pickle finds it

        def __new__(cls, device: Any = "cpu") -> Any:
            place = HOST if device is None else place_of_device(machine, device)
            return _Generator() if place == HOST else SimulatedGenerator(place)

    patches.set(torch, "Generator", Generator)
