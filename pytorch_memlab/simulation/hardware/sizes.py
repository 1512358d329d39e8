"""Sizes as people write them: ``24GiB``, ``450 MB``, a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..._common.text.quoted import quoted
from ...errors import UsageError

_TOO_LARGE = 2**63  # a count of bytes is an ``int64`` in CUDA and PyTorch

_SMALLEST_BLOCK = 512
"""Bytes of the smallest block of PyTorch's allocator."""

_SIZE = re.compile(r"([+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """The bytes that a text stands for, rounded down; None if the text is no size.

    >>> parse_size("1.5GiB"), parse_size("450 mb"), parse_size("450 sheep")
    (1610612736, 450000000, None)
    """
    # A size is a number of bytes, or one with a unit: K, M, G, T and KiB, MiB, GiB, TiB are powers
    # of 1024; KB, MB, GB, TB powers of 1000.
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix, suffix = match.groups()
    base = 1000 if suffix and suffix.lower() == "b" else 1024
    exponent = " kmgt".index(prefix.lower()) if prefix else 0
    whole, _, decimals = number.partition(".")
    nbytes = int(whole + decimals) * base**exponent
    rounded_down: int = abs(nbytes) // 10 ** len(decimals)
    return rounded_down if nbytes >= 0 else -rounded_down


def checked_size(
    size: object,  # bytes, or a text that ``parse_size`` reads
    expected: str,  # the start of the error, which says what is a size and gives an example
    # what the error suggests for a small number without a unit
    units: Sequence[str] = ("MiB", "GiB"),
) -> int:
    """The bytes that a user gives as a size, which may be 0.

    >>> checked_size("64MiB", "a limit is a size such as 20GiB"), checked_size("512", "")
    (67108864, 512)
    """
    # Raises UsageError if the argument is no size, or is a text of less than a block without a
    # unit.
    read = parse_size(size) if isinstance(size, str) else size
    if not isinstance(read, int) or isinstance(read, bool) or not 0 <= read < _TOO_LARGE:
        raise UsageError(f"{expected}, not {quoted(size)}")
    if isinstance(size, str) and size.strip().isdecimal() and 0 < read < _SMALLEST_BLOCK:
        *first, last = (f"{read}{unit}" for unit in units)
        meant = f"{', '.join(first)} or {last}"
        raise UsageError(f"{expected}, not {quoted(size)} (did you mean {meant}?)")
    return read


def read_size(name: str, size: str | int) -> int:
    """The bytes of an argument that is a size, which may be 0.

    >>> read_size("context", "450MiB")
    471859200
    """
    return checked_size(size, f"{name} is a size such as '450MiB', or bytes")
