"""The error of CUDA calls that are not simulated, which names the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedCUDACallError

if TYPE_CHECKING:
    from collections.abc import Callable


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
