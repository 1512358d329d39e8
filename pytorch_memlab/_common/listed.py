"""Names as an enumeration."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 10


def listed(names: Iterable[str]) -> str:
    """Each name once, the first ten, then how many more there are.

    >>> listed(["outer", "inner", "outer"])
    'outer, inner'
    """
    unique = list(dict.fromkeys(names))
    more = len(unique) - _MOST
    return ", ".join(unique[:_MOST]) + (f" and {more} more" if more > 0 else "")
