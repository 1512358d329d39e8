"""The mark of data without values in files that a program writes."""

from __future__ import annotations

from typing import Any

MARK = b".pytorch_memlab_tensors_without_values"
"""Stands in the bytes of everything that was saved with tensors that have no values."""


class WithoutValues:
    """Base of arrays and bytes that come from tensors without values."""


def is_marked(data: Any) -> bool:
    """True if an array, its bytes or a view of them is known to have no values."""
    return isinstance(data.obj if isinstance(data, memoryview) else data, WithoutValues)
