"""Why PyTorch can use no GPU of this machine, in words."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import torch

NO_GPU: Final = "this machine has no CUDA GPU"

_DRIVERS: Final = {
    "/proc/driver/nvidia/version": "NVIDIA",
    "/dev/nvidiactl": "NVIDIA",
    "/dev/dxg": "WSL",
    "/dev/kfd": "AMD",
}
"""Files of drivers. The second is there in containers too, and WSL has the third one alone."""

_HIDING: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def why_no_gpu() -> str:
    """The reason, where ``torch.cuda.is_available()`` says no."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    for warning in caught:
        words = str(warning.message).partition("\n")[0].partition(". ")[0]
        if "CUDA initialization" in words or "HIP initialization" in words:
            return f"PyTorch cannot use a GPU: {words.partition(': ')[2].rstrip('.')}"
    driver = next((name for path, name in _DRIVERS.items() if Path(path).exists()), None)
    if driver is None:
        return NO_GPU
    if not torch.version.cuda and not torch.version.hip:
        return f"torch {torch.__version__} is built for the CPU, and there is a driver of {driver}"
    for name in _HIDING:
        if name in os.environ:
            return f"{name}={os.environ[name]} shows no GPU"
    return NO_GPU
