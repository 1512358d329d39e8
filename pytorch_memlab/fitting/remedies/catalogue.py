"""All remedies by name, in the order of their table. A remedy loads when it is chosen."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ..._common.quoted import shortened
from ...errors import UsageError

if TYPE_CHECKING:
    from .remedy import Remedy

_SETTING: Final = "allocator_settings:AllocatorSetting"
_OPTIMIZER: Final = "optimizer_implementation:OptimizerImplementation"
_ATTENTION: Final = "attention_backend:AttentionBackend"
_NOTHING: Final = "nothing the program computes"
_ROUNDING: Final = "sums in another order"

_REMEDIES: Final = {
    "expandable_segments": (_SETTING, f"{_NOTHING}; Linux", "expandable_segments", "True"),
    "max_split_size": (_SETTING, _NOTHING, "max_split_size_mb", "128"),
    "roundup": (_SETTING, _NOTHING, "roundup_power2_divisions", "8"),
    "set_to_none": ("set_to_none:SetToNone",),
    "fused": (_OPTIMIZER, f"faster steps, {_ROUNDING}"),
    "foreach": (_OPTIMIZER, "faster steps"),
    "for_loop": (_OPTIMIZER, "slower steps"),
    "autocast_bf16": ("autocast:Autocast",),
    "checkpoint": ("checkpointing:Checkpointing",),
    "sdpa_flash": (_ATTENTION, f"kernels; {_ROUNDING}"),
    "sdpa_efficient": (_ATTENTION, f"kernels; {_ROUNDING}"),
    "sdpa_cudnn": (_ATTENTION, f"kernels; {_ROUNDING}"),
    "sdpa_math": (_ATTENTION, f"slower attention; {_ROUNDING}"),
    "shard": ("sharding:Sharding", "needs {} GPUs, each with its own batch", "8"),
}
"""Module and class of each remedy, what it changes, and what else makes it: a value comes last."""

NAMES: Final = tuple(_REMEDIES)

WITH_VALUE: Final = {"max_split_size": "MiB", "roundup": "N", "shard": "N"}
"""Names that may be followed by ``=`` and a value, and what the value is."""


def nearest(name: str) -> str:
    """The remedy that a word is closest to, without a value; empty if none is close.

    >>> nearest("expandable-segments"), nearest("checkpoints=3"), nearest("train")
    ('expandable_segments', 'checkpoint', '')
    """
    return next(iter(difflib.get_close_matches(name.partition("=")[0], NAMES, n=1)), "")


def chosen(names: Sequence[str] = ()) -> list[Remedy]:
    """The remedies of some names.

    >>> [one.name for one in chosen(["checkpoint", "shard=4"])]
    ['checkpoint', 'shard=4']
    """
    found = [_one(name) for name in names or NAMES]
    names = [one.name for one in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"the remedy {twice[0]} is named twice")
    return found


def _one(text: str) -> Remedy:
    name, equals, value = text.strip().partition("=")
    if name not in _REMEDIES:
        near = nearest(name)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}"
        raise UsageError(f"there is no remedy {shortened(name) or text!r}: {hint}")
    if equals and name not in WITH_VALUE:
        raise UsageError(f"the remedy {name} takes no value {shortened(value)!r}")
    place, *arguments = _REMEDIES[name]
    if equals:
        arguments[-1] = value
    module, _, kind = place.partition(":")
    make = getattr(import_module(f".{module}", __package__), kind)
    remedy: Remedy = make(name, *arguments) if arguments else make()
    return remedy
