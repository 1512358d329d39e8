"""The mark of arrays and bytes that come from tensors without values."""

from __future__ import annotations

from typing import Any


class WithoutValues:
    """Base of what is known to have no values."""


def is_marked(data: Any) -> bool:
    """True if an array, its bytes or a view of them is known to have no values."""
    return isinstance(data.obj if isinstance(data, memoryview) else data, WithoutValues)
