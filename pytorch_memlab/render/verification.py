"""A recording beside the simulation of its program, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable
from ..history.model import device_name
from .rows import cut_place, document, wrapped
from .table import Table

if TYPE_CHECKING:
    from ..history.model import Event
    from ..history.recording_comparison import FileLine, RequestComparison, RequestDifference
    from ..profiles.verification import Verification

_MOST: Final = 5
"""How many differences, and lines that differ, are shown."""

_MOST_REQUESTS: Final = 3
"""How many requests of a difference are shown."""

_PLACE: Final = 30
_WHAT: Final = {"alloc": "allocates", "free_completed": "frees"}


def text(verification: Verification) -> str:
    """The answer, the peaks, the first differences, and the lines that differ."""
    how = "simulated without values" if verification.is_dry_run else "simulated with values"
    head = wrapped(
        printable(f"{verification.recording}, beside the program {how} on {verification.gpu}")
    )
    lines = list(head)
    for comparison in verification.comparisons:
        lines += ["", *_comparison(comparison, verification)]
    return document(lines)


def _comparison(comparison: RequestComparison, whole: Verification) -> Iterator[str]:
    name = device_name(comparison.device)
    if comparison.is_equal:
        yield from wrapped(
            f"{name}: equal: all {comparison.total:,} allocations and frees, in order"
        )
    else:
        yield from wrapped(
            f"{name}: {comparison.equal:,} of {comparison.total:,} allocations and frees "
            "are equal, in order"
        )
    yield ""
    recorded, simulated = comparison.recorded, comparison.simulated
    rows = [
        _row("peak active", recorded.active, simulated.active),
        _row("peak reserved", recorded.reserved, simulated.reserved),
    ]
    heads = ("", "recorded", "simulated", "differs by")
    yield from Table(heads, rows, "  {:16}{:>12}{:>12}{:>12}").lines()
    yield from _rest(comparison)
    if comparison.differences:
        yield ""
        yield f"the first of {counted(len(comparison.differences), 'difference')}"
        for difference in comparison.differences[:_MOST]:
            yield from _difference(difference, whole)
    if comparison.lines:
        yield ""
        yield "bytes allocated by the lines that differ most"
        for row in comparison.lines[:_MOST]:
            yield (
                f"  {_place(row.line):{_PLACE - 2}}{prose_size(row.recorded):>12}"
                f"{prose_size(row.simulated):>12}{signed(row.simulated - row.recorded, '+'):>12}"
            )
        if len(comparison.lines) > _MOST:
            yield f"  {len(comparison.lines) - _MOST:,} more"


def _rest(comparison: RequestComparison) -> Iterator[str]:
    parts = []
    if comparison.before:
        parts.append(f"begins after {comparison.before:,} allocations and frees of the program")
    if comparison.after:
        parts.append(f"ends before {comparison.after:,} more")
    if parts:
        yield from wrapped(f"the recording {' and '.join(parts)}")


def _row(name: str, recorded: int, simulated: int) -> tuple[str, ...]:
    differs = "0" if recorded == simulated else _percent(recorded, simulated)
    return name, prose_size(recorded), prose_size(simulated), differs


def _percent(recorded: int, simulated: int) -> str:
    if not recorded:
        return signed(simulated, "+")
    share = 100 * (simulated - recorded) / recorded
    return f"{share:+.3f}%" if abs(share) >= 0.001 else signed(simulated - recorded, "+")


def _difference(difference: RequestDifference, whole: Verification) -> Iterator[str]:
    yield f"  {_place(difference.line)}, after {counted(difference.index, 'recorded request')}"
    yield f"    on the GPU   {_requests(difference.recorded)}"
    yield f"    simulated    {_requests(difference.simulated)}"
    yield f"    {_mark(difference, whole)}"


def _requests(events: Sequence[Event]) -> str:
    parts = [f"{_WHAT[event.action]} {event.size:,} B" for event in events[:_MOST_REQUESTS]]
    if len(events) > _MOST_REQUESTS:
        parts.append(f"{len(events) - _MOST_REQUESTS:,} more")
    return ", ".join(parts) or "nothing"


def _mark(difference: RequestDifference, whole: Verification) -> str:
    mark = "" if difference.line is None else whole.marks.get(difference.line, "")
    return f"this line is marked {mark}" if mark else "this line has no mark"


def _place(line: FileLine | None) -> str:
    if line is None:
        return "no line of the program"
    return cut_place(printable(f"{line.file}:{line.number}"), _PLACE)
