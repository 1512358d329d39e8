"""One entry of the table of kernels: what it takes, where that is known from, how well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .registry import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable

    from .op_call import OpCall


Basis = Provenance


def nothing(call: OpCall) -> None:
    """``take`` of an entry whose kernels take nothing more once their results are made."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernels of one family of ops take."""

    take: Callable[[OpCall], None]
    source: str
    basis: Basis
    prepare: Callable[[OpCall], None] | None = None
    make: Callable[[OpCall], None] | None = None
