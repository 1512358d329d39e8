"""``torch.device(0)``: an index alone means the accelerator, which builds without one refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .patches import Patches

_device = torch.device


class _DeviceType(type):
    """``isinstance(x, torch.device)`` goes on asking for torch's own class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _device)


class Device(metaclass=_DeviceType):
    """``torch.device`` for which a bare index is that of a GPU."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a ``torch.device``."""
        if len(args) == 1 and isinstance(args[0], int) and not kwargs:
            return _device("cuda", args[0])
        return _device(*args, **kwargs)


def install(patches: Patches) -> None:
    """Make ``torch.device`` accept a bare index, until the patches are undone.

    Args:
        patches: who puts it back.
    """
    patches.set(torch, "device", Device)
