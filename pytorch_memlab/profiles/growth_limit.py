"""The limit on the growth of a size from one run to the next."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .._common.quoted import quoted
from ..errors import UsageError
from ..simulation.inspect import parse_size

if TYPE_CHECKING:
    from .differences import Change

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def growth_limit(option: str, text: str | None) -> Callable[[Change], bool]:
    """A function that is true for a size that grew too much."""
    if text is None:
        return lambda _: False
    share = _PERCENT.fullmatch(text.strip())
    if share:
        most = float(share[1]) / 100
        return lambda change: change.growth > most * change.before
    size = parse_size(text)
    if size is None or size < 0:
        raise UsageError(
            f"{option} is a share such as 5% or a size such as 64MiB, not {quoted(text)}"
        )
    return lambda change: change.growth > size
