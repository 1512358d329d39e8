"""The marks of a test: its limits and its GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from .._common.text.quoted import quoted
from ..errors import UsageError
from ..simulation.inspect import checked_size

_LIMIT: Final = "gpu_memory_limit"
_LEAKS: Final = "gpu_leaks"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a test."""

    peak: int | None  # most bytes in use while it runs; None for any
    leaks: int | None  # most bytes that stay in use after it; None for any
    gpu: str | None  # that is simulated where there is none; None for the default


def limits_of(item: pytest.Item) -> Limits:
    """The limits of a test; of several marks of one name the closest counts."""
    peak, gpu = _read(item, _LIMIT, "2 GiB")
    leaks, gpu_of_leaks = _read(item, _LEAKS, "1 MiB")
    if gpu is not None and gpu_of_leaks is not None and gpu != gpu_of_leaks:
        raise UsageError(
            f"{_LIMIT} has gpu={quoted(gpu)} and {_LEAKS} has gpu={quoted(gpu_of_leaks)}:"
            " a test runs on one"
        )
    return Limits(peak, leaks, gpu_of_leaks if gpu is None else gpu)


def _read(item: pytest.Item, name: str, example: str) -> tuple[int | None, str | None]:
    mark = item.get_closest_marker(name)
    if mark is None:
        return None, None
    try:
        size, gpu = _arguments(*mark.args, **mark.kwargs)
    except TypeError:
        written = [
            *map(repr, mark.args),
            *(f"{key}={value!r}" for key, value in mark.kwargs.items()),
        ]
        raise UsageError(
            f'{name} takes a size and a GPU, such as {name}("{example}", gpu="a100"),'
            f" not {name}({', '.join(written)})"
        ) from None
    expected = f'{name} takes a size such as "{example}", or bytes'
    return checked_size(size, expected), _gpu(name, gpu)


def _arguments(size: Any, gpu: Any = None) -> tuple[Any, Any]:
    return size, gpu


def _gpu(name: str, gpu: Any) -> str | None:
    if gpu is None:
        return None
    if not isinstance(gpu, str):
        raise UsageError(f'{name} takes a GPU such as gpu="a100" or gpu="24GiB", not {quoted(gpu)}')
    from ..simulation.inspect import find_gpu

    find_gpu(gpu)
    return gpu
