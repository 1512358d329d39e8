"""The allocators' settings: from the environment at first, then as the program changes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..allocator.settings import AllocatorSettings
from .simulated_gpu import SimulatedGPU


def settings_string(environment: Mapping[str, str] = os.environ) -> str:
    """The settings that the environment has, as torch 2.13 reads them: the older name wins.

    >>> settings_string({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "backend:native"})
    ''
    """
    # A build for ROCm knows its own name too (``instance`` in c10/cuda/CUDAAllocatorConfig.h).
    rocm = ("PYTORCH_HIP_ALLOC_CONF",) if torch.version.hip else ()
    for name in ("PYTORCH_CUDA_ALLOC_CONF", *rocm, "PYTORCH_ALLOC_CONF"):
        if name in environment:
            return environment[name]
    return ""


class RuntimeSettings:
    """The allocators' settings, which the environment gives and the program changes."""

    # They hold for all GPUs, as PyTorch has one such configuration for the process. It reads the
    # environment when a program first uses CUDA (``instance`` in c10/core/AllocatorConfig.h).
    # AllocatorSettingsError is raised for an unknown setting in the environment, and for a value
    # that PyTorch refuses.

    def __init__(self, gpus: Sequence[SimulatedGPU]) -> None:
        self._gpus = gpus
        self.text = ""  # of the environment, or as the program set it
        self._was_changed = False
        self.see_environment()

    def see_environment(self) -> None:
        """Take the settings that the environment has now, unless the program has set its own."""
        text = settings_string()
        if text != self.text and not self._was_changed:
            settings = AllocatorSettings.parse(text)
            for gpu in self._gpus:
                gpu.locked(gpu.allocator.begin_with, settings)
            self.text = text

    def calls(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch._C`` that answer, by name; torch 2.6 has the last one."""
        return {
            "_accelerator_getAllocatorSettings": lambda: self.text,
            "_accelerator_setAllocatorSettings": self._change,
            "_cuda_cudaCachingAllocator_set_allocator_settings": self._change,
        }

    def _change(self, text: str) -> None:
        settings = self._gpus[0].allocator.settings.changed_by(text)
        for gpu in self._gpus:
            gpu.locked(gpu.allocator.change_settings, settings)
        self.text = text
        self._was_changed = True
