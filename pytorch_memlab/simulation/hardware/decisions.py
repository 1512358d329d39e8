"""Decisions about kernels that depend on the properties of a GPU.

Note [Decisions of a GPU]
Most kernels ask little of a GPU: whether it is of Ampere or later, into how many blocks a
reduction is split. GPUs that differ in a property, such as the number of multiprocessors, may give
the same answers, and then the same happens on them. So a function whose result follows from a GPU
and from plain arguments alone, not from settings or the environment, is marked by ``decision``.
A watcher learns the function, the arguments and the result; asking the function again tells
whether another GPU decides alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from .gpu import GPU

Function = TypeVar("Function", bound=Callable[..., Any])

Watcher = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""Gets a marked function, the GPU, and the other arguments; returns the result."""

watcher: Watcher | None = None  # makes all decisions while it is set


def decision(function: Function) -> Function:
    """Mark a function of a GPU and of hashable arguments. See Note [Decisions of a GPU]."""

    @wraps(function)
    def decide(gpu: GPU, *arguments: Any, **keywords: Any) -> Any:
        if watcher is None:
            return function(gpu, *arguments, **keywords)
        return watcher(decide, gpu, arguments, keywords)

    return cast("Function", decide)


@decision
def has_major(gpu: GPU, least: int, most: int = 99) -> bool:
    """True if the major number of a GPU's compute capability is in a range."""
    return least <= gpu.major <= most


@decision
def has_capability(gpu: GPU, major: int, minor: int) -> bool:
    """True if a GPU has just this compute capability."""
    return (gpu.major, gpu.minor) == (major, minor)
