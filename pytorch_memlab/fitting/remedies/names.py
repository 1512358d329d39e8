"""The names of all remedies, in the order in which a table has them. Nothing heavy is loaded."""

from __future__ import annotations

import difflib
from typing import Final

NAMES: Final = (
    "expandable_segments",
    "max_split_size",
    "roundup",
    "set_to_none",
    "fused",
    "foreach",
    "for_loop",
    "autocast_bf16",
    "checkpoint",
    "sdpa_flash",
    "sdpa_efficient",
    "sdpa_cudnn",
    "sdpa_math",
    "shard",
)

WITH_VALUE: Final = {"max_split_size": "MiB", "roundup": "N", "shard": "N"}
"""Names that may be followed by ``=`` and a value, and what the value is."""


def nearest(name: str) -> str:
    """The remedy that a word is closest to, without a value; empty if none is close.

    >>> nearest("expandable-segments"), nearest("checkpoints=3"), nearest("train")
    ('expandable_segments', 'checkpoint', '')
    """
    return next(iter(difflib.get_close_matches(name.partition("=")[0], NAMES, n=1)), "")
