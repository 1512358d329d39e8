"""Errors of calls that are not simulated, which name the call, and of mixtures of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._common.frames.traceback_frames import without_frames
from ...errors import UnsupportedCUDACallError
from .simulated_gpu import SimulatedGPU


def unsupported(name: str) -> UnsupportedCUDACallError:
    """The error of a call, by its name as the program writes it."""
    return UnsupportedCUDACallError(
        f"{name} is not covered by the simulated GPU; run this part on a real one"
    )


def refusal(name: str) -> Callable[..., Any]:
    """A function that stands for a call and raises its error."""

    @without_frames
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name)

    return refuse


def mixed_devices(op: Any, gpu: SimulatedGPU, other: str) -> RuntimeError:
    """PyTorch's error for tensors of two devices in a call of an op."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{gpu.device} and {other}! (when checking arguments of {op._schema.name})"
    )
