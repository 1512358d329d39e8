"""The memory of private pools, of CUDA graphs and of ``torch.cuda.MemPool``, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size
from .rows import WIDTH, file_and_line

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..simulation.inspect import PrivateMemory

_PLACES: Final = 2


def keepers(private: PrivateMemory) -> str:
    """Graphs, or also other pools: a snapshot does not tell them apart."""
    return "CUDA graphs" if private.captures else "CUDA graphs or memory pools"


def made_at(private: PrivateMemory, lines: Sequence[tuple[str, int]] = ()) -> str:
    """The captures and their lines, or those whose requests took the memory; empty for none."""
    places = private.captures or lines
    if not places:
        return ""
    names = list(dict.fromkeys(file_and_line(*place, WIDTH) for place in places))
    more = ", …" if len(names) > _PLACES else ""
    what = counted(len(places), "capture") if private.captures else "requested at"
    end = ":" if private.captures else ""
    return f" ({what}{end} {', '.join(names[:_PLACES])}{more})"


def at_peak(holders: PeakHolders) -> str:
    """The memory of private pools at a peak; empty if there was none."""
    private = holders.peak.private
    if not private.reserved:
        return ""
    places, free = made_at(private, holders.private_lines()), ""
    if private.unused:
        free = f"; of it, {prose_size(private.unused)} is free, and no other code gets it"
    return f"reserved by {keepers(private)} {prose_size(private.reserved)}{places}{free}"
