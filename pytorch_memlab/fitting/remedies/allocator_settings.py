"""Settings of PyTorch's caching allocator, as remedies: the program itself stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...simulation.inspect import AllocatorSettings, settings_string
from .remedy import Finding, Remedy, already_used, applied

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


class AllocatorSetting(Remedy):
    """One setting, added to those of the environment."""

    def __init__(self, name: str, setting: str, what_it_changes: str) -> None:
        self.name = name
        self.what_it_changes = what_it_changes
        before = settings_string()
        key = setting.partition(":")[0]
        others = [
            item
            for item in re.split(r",(?![^\[]*\])", before)
            if item.strip() and item.partition(":")[0].strip() != key
        ]
        self._setting = setting
        self._joined = ",".join([*others, setting])
        self._is_in_force = AllocatorSettings.parse(self._joined) == AllocatorSettings.parse(before)

    def environment(self) -> Mapping[str, str]:
        """The variable with the setting and those that it had."""
        return {VARIABLE: self._joined}

    def finding(self) -> Finding:
        """Already used if the environment has the setting."""
        if self._is_in_force:
            return already_used(f"{self._setting} is set")
        return applied([f"{VARIABLE}={self._joined}"])


def expandable_segments() -> Remedy:
    """Segments that grow: what is cached is rarely in pieces that are too small."""
    return AllocatorSetting(
        "expandable_segments", "expandable_segments:True", "nothing the program computes; Linux"
    )


def max_split_size(size: str = "128") -> Remedy:
    """Large blocks are not split."""
    return AllocatorSetting(
        "max_split_size", f"max_split_size_mb:{size}", "nothing the program computes"
    )


def roundup(divisions: str = "8") -> Remedy:
    """Sizes are rounded up, so that blocks serve later requests."""
    return AllocatorSetting(
        "roundup", f"roundup_power2_divisions:{divisions}", "nothing the program computes"
    )
