"""``torch.Generator("cuda")``: a generator of the host that answers for its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .machine import HOST
from .transfer import place_of_device

if TYPE_CHECKING:
    from .machine import Machine
    from .patches import Patches

_Generator = torch._C.Generator


class _SimulatedGenerator(_Generator):
    """Draws on the host; the values differ from those of CUDA's own generator."""

    place: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The GPU that it stands for."""
        return torch.device("cuda", self.place)


def make_generator(place: int) -> torch.Generator:
    """A generator for a simulated GPU.

    Args:
        place: index of the GPU.

    Returns:
        a generator of the host whose ``device`` is the GPU.
    """
    generator = _SimulatedGenerator()
    generator.place = place
    return generator


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

        def __new__(cls, device: Any = "cpu") -> Any:
            place = HOST if device is None else place_of_device(machine, device)
            return _Generator() if place == HOST else make_generator(place)

    patches.set(torch, "Generator", Generator)
