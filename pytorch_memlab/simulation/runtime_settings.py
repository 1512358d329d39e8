"""The allocators' settings: from the environment at first, then as the program changes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .machine import Machine


def settings_string(environment: Mapping[str, str] = os.environ) -> str:
    """The settings that the environment has, as torch 2.13 reads them: the older name wins.

    Args:
        environment: of the process.

    >>> settings_string({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "backend:native"})
    ''
    """
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in environment:
            return environment[name]
    return ""


class RuntimeSettings:
    """What a program asks and sets of the allocators' settings while it runs.

    They hold for all GPUs, as PyTorch has one such configuration for the process
    (c10/core/AllocatorConfig.h).

    Args:
        machine: whose GPUs.
        text: what they began with.
    """

    def __init__(self, machine: Machine, text: str) -> None:
        self._machine = machine
        self._text = text

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch._C`` that answer, by name; torch 2.4 has the last one."""
        return {
            "_accelerator_getAllocatorSettings": lambda: self._text,
            "_accelerator_setAllocatorSettings": self._change,
            "_cuda_cudaCachingAllocator_set_allocator_settings": self._change,
        }

    def _change(self, text: str) -> None:
        gpus = self._machine.known_gpus
        settings = gpus[0].allocator.settings.changed_by(text)
        for gpu in gpus:
            gpu.call("change_settings", settings)
        self._text = text
