"""Sizes and numbers of things in sentences."""

from __future__ import annotations


def prose_size(nbytes: int) -> str:
    """A size in MiB or GiB, as sentences and reports of a history have it.

    >>> prose_size(3 * 2**30), prose_size(5 * 2**20), prose_size(100)
    ('3.00 GiB', '5.0 MiB', '100 B')
    >>> prose_size(2**20 - 1), prose_size(2**30 - 1)
    ('1.0 MiB', '1.00 GiB')
    """
    if nbytes < 2**10:
        return f"{nbytes} B"
    # Just below the next unit, a size is rounded up to it.
    if nbytes < 2**20 - 2**10 // 20:
        return f"{nbytes / 2**10:.1f} KiB"
    if nbytes < 2**30 - 2**20 // 20:
        return f"{nbytes / 2**20:.1f} MiB"
    return f"{nbytes / 2**30:.2f} GiB"


def signed(size: float, plus: str = "", minus: str = "-") -> str:
    """A size with its sign.

    >>> signed(-(3 << 20)), signed(512, "+")
    ('-3.0 MiB', '+512 B')
    """
    return f"{minus if size < 0 else plus}{prose_size(round(abs(size)))}"


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "line"), counted(0, "line"), counted(2000, "more line")
    ('1 line', '0 lines', '2,000 more lines')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
