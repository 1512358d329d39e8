"""All remedies by name, in the order in which a table has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..._common.quoted import shortened
from ...errors import UsageError
from .allocator_settings import expandable_segments, max_split_size, roundup
from .attention_backend import AttentionBackend
from .autocast import Autocast
from .checkpointing import Checkpointing
from .names import NAMES, WITH_VALUE, nearest
from .optimizer_implementation import OptimizerImplementation
from .remedy import Remedy
from .set_to_none import SetToNone
from .sharding import Sharding

_ROUNDING: Final = "sums in another order"

REMEDIES: Final[dict[str, Callable[..., Remedy]]] = {
    "expandable_segments": expandable_segments,
    "max_split_size": max_split_size,
    "roundup": roundup,
    "set_to_none": SetToNone,
    "fused": partial(OptimizerImplementation, "fused", f"faster steps, {_ROUNDING}"),
    "foreach": partial(OptimizerImplementation, "foreach", "faster steps"),
    "for_loop": partial(OptimizerImplementation, "for_loop", "slower steps"),
    "autocast_bf16": Autocast,
    "checkpoint": Checkpointing,
    "sdpa_flash": partial(AttentionBackend, "sdpa_flash", f"kernels; {_ROUNDING}"),
    "sdpa_efficient": partial(AttentionBackend, "sdpa_efficient", f"kernels; {_ROUNDING}"),
    "sdpa_cudnn": partial(AttentionBackend, "sdpa_cudnn", f"kernels; {_ROUNDING}"),
    "sdpa_math": partial(AttentionBackend, "sdpa_math", f"slower attention; {_ROUNDING}"),
    "shard": Sharding,
}
"""Factories of remedies; those of ``WITH_VALUE`` take a text."""


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
    make = REMEDIES.get(name)
    if make is None:
        near = nearest(name)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}"
        raise UsageError(f"there is no remedy {shortened(name) or text!r}: {hint}")
    if not equals:
        return make()
    if name not in WITH_VALUE:
        raise UsageError(f"the remedy {name} takes no value {shortened(value)!r}")
    return make(value)
