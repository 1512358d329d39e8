"""Sizes as people read them."""

from __future__ import annotations

from math import isnan

from calmsize import size as calmsize

__all__ = [
    "readable_size",
]


def readable_size(num_bytes: float | None) -> str:
    """A size with two decimals and the letter of its unit.

    Units are powers of 1024: B, K, M, G, T, P.

    Args:
        num_bytes: size in bytes, may be negative; None or NaN where there is no number. A size
            that takes no format, such as a symbolic one of ``torch.compile``, is given as its text.

    Returns:
        The text, empty where there is no number.

    >>> readable_size(40960)
    '40.00K'
    >>> readable_size(-2 * 1024**3)
    '-2.00G'
    """
    if num_bytes is None or _is_nan(num_bytes):
        return ""
    size = calmsize(num_bytes)
    try:
        return f"{size:.2f}"
    except TypeError:
        return str(size)


def _is_nan(number: float) -> bool:
    try:
        return isnan(number)
    except TypeError:  # a symbolic size
        return False
