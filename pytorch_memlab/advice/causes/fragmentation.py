"""Cached memory lies in pieces that are too small."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied
from ..cause import Basis, Cause, NamedChange, Remedy, Results

_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ON_LINUX: Final = "expandable_segments"


class AllocatorSetting(AroundProgram):
    """One setting, added to those of the environment."""

    has_other_values = False

    def __init__(self, name: str, key: str, value: str) -> None:
        from ...simulation.inspect import AllocatorSettings, settings_string, split_settings

        self.name = name
        self.what_it_changes = "nothing the program computes"
        if key == _ON_LINUX:
            self.what_it_changes += "; Linux"
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
        return dict.fromkeys(_VARIABLES, self._joined)

    def finding(self) -> Finding:
        if self._is_in_force:
            return already_used(f"{self._setting} is set")
        return applied([f"{_variable()}={self._joined}"])


def _variable() -> str:
    """The variable of the allocator's settings that each release of this build reads."""
    import torch

    return "PYTORCH_HIP_ALLOC_CONF" if torch.version.hip else _VARIABLES[0]


def _named(name: str, key: str, value: str, unit: str = "") -> NamedChange:
    return NamedChange(name, partial(AllocatorSetting, name, key), value, unit)


class Fragmentation(Cause):
    """Enough memory is cached, but no block is large enough."""

    name = "fragmentation"
    order = 140
    results = Results.SAME
    tried_by_name = (
        _named(_ON_LINUX, _ON_LINUX, "True"),
        _named("max_split_size", "max_split_size_mb", "128", "MiB"),
        _named("roundup", "roundup_power2_divisions", "8", "N"),
    )

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        if oom.cached < oom.request.requested or oom.cached * 8 < oom.request.capacity:
            return None
        check = next((check for check in oom.checks if check.fits and check.settings), None)
        if check is None:
            return None
        word, later = (
            ("checked", "later ones may not") if check.is_whole else ("about", "others may not")
        )
        return self.found(
            oom.cached,
            f"{prose_size(oom.cached)} are cached in pieces that are too small",
            f"{_variable()}={check.settings}",
            basis=Basis.CHECKED,
            change=AllocatorSetting(self.name, *_last_of(check.settings)),
            effect=f"{word}: this request and the {check.requests:,} before it fit; {later}",
        )


def _last_of(settings: str) -> tuple[str, str]:
    """The key and the value that were added to the settings in force."""
    from ...simulation.inspect import split_settings

    key, _, value = list(split_settings(settings))[-1].strip().partition(":")
    return key, value
