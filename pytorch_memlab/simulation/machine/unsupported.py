"""The error of CUDA calls that are not simulated, which names the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedCUDACallError


def unsupported(name: str) -> UnsupportedCUDACallError:
    """The error of a call, by its name as the program writes it."""
    return UnsupportedCUDACallError(
        f"{name} is not covered by the simulated GPU; run this part on a real one"
    )


def refusal(name: str) -> Callable[..., Any]:
    """A function that stands for a call and raises its error."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name)

    return refuse
