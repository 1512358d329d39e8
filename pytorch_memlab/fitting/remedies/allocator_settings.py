"""Settings of PyTorch's caching allocator, as remedies: the program itself stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from ...simulation.inspect import AllocatorSettings, settings_string, split_settings
from .remedy import Finding, Remedy, already_used, applied

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


class AllocatorSetting(Remedy):
    """One setting, added to those of the environment."""

    def __init__(self, name: str, what_it_changes: str, key: str, value: str) -> None:
        self.name = name
        self.what_it_changes = what_it_changes
        before = settings_string()
        others = [
            item
            for item in split_settings(before)
            if item.strip() and item.partition(":")[0].strip() != key
        ]
        self._setting = f"{key}:{value}"
        self._joined = ",".join([*others, self._setting])
        self._is_in_force = AllocatorSettings.parse(self._joined) == AllocatorSettings.parse(before)

    def environment(self) -> Mapping[str, str]:
        return {VARIABLE: self._joined}

    def finding(self) -> Finding:
        if self._is_in_force:
            return already_used(f"{self._setting} is set")
        return applied([f"{VARIABLE}={self._joined}"])
