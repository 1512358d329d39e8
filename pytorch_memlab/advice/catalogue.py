"""All causes. A cause is a module of ``causes``, whose class is found by itself."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final

from ..history.out_of_memory import OutOfMemory
from . import causes
from .cause import Cause, Remedy

_MOST: Final = 3
"""Number of remedies that a report names."""


@cache
def all_causes() -> tuple[Cause, ...]:
    """One of each cause, in the order in which they are looked for."""
    classes = [
        value
        for module in pkgutil.iter_modules(causes.__path__)
        for value in vars(import_module(f"{causes.__name__}.{module.name}")).values()
        if isinstance(value, type)
        and issubclass(value, Cause)
        and value.__module__.endswith(f".{module.name}")
    ]
    return tuple(cause() for cause in sorted(classes, key=lambda cause: cause.order))


def candidates(oom: OutOfMemory) -> list[tuple[Cause, Remedy]]:
    """The remedies of all causes that apply, the one for the most likely cause first."""
    likely: list[tuple[Cause, Remedy]] = []
    for cause in all_causes():
        remedy = cause.remedy(oom)
        if remedy is not None:
            likely.append((cause, remedy))
    # What frees less than the request lacks does not help alone.
    likely.sort(key=lambda pair: pair[1].size < oom.shortage)
    return likely


def most_likely(likely: Sequence[tuple[Cause, Remedy]]) -> list[Remedy]:
    """The remedies that a report names."""
    if any(not cause.scales_with_batch and not cause.is_last_resort for cause, _ in likely):
        likely = [pair for pair in likely if not pair[0].is_last_resort]
    return [remedy for _, remedy in likely[:_MOST]]


def remedies(oom: OutOfMemory) -> list[Remedy]:
    """Up to three remedies, the one for the most likely cause first."""
    return most_likely(candidates(oom))
