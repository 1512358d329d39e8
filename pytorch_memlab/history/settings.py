"""The allocator's settings in a snapshot, of whichever PyTorch version wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import AllocatorSettingsError
from ..simulation.allocator.settings import NO_LIMIT, ROUNDUP_INTERVALS, AllocatorSettings


def settings_of(found: Mapping[str, object]) -> AllocatorSettings:
    """The settings of a history's allocators.

    >>> text = "max_split_size_mb:64,a_later_setting:1"
    >>> settings = settings_of({"PYTORCH_CUDA_ALLOC_CONF": text, "expandable_segments": True})
    >>> settings.max_split_size // 2**20, settings.expandable_segments
    (64, True)
    """
    settings = AllocatorSettings.parse(
        ",".join(_known(str(found.get("PYTORCH_CUDA_ALLOC_CONF") or "")))
    )
    return replace(settings, **dict(_numbers(found)))


def _known(text: str) -> Iterator[str]:
    for item in re.split(r",(?![^\[]*\])", text):
        try:
            AllocatorSettings.parse(item)
        except (AllocatorSettingsError, ValueError):
            continue
        yield item


def _numbers(found: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    size = found.get("max_split_size")
    if type(size) is int and size:
        # PyTorch writes no limit as -1: as a signed number.
        yield "max_split_size", NO_LIMIT if size < 0 else size
    threshold = found.get("garbage_collection_threshold")
    if type(threshold) is float and 0 <= threshold < 1:
        yield "garbage_collection_threshold", threshold
    if type(found.get("expandable_segments")) is bool:
        yield "expandable_segments", found["expandable_segments"]
    divisions = found.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and len(divisions) == ROUNDUP_INTERVALS:
        steps = tuple(divisions.values())
        if all(type(one) is int and 0 <= one <= 2**16 for one in steps):
            yield "roundup_power2_divisions", steps
