"""A recording beside the simulation of its program, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable
from ..history.model import device_name
from .rows import cut_place, document, wrapped

if TYPE_CHECKING:
    from ..history.comparison import Comparison, Difference, FileLine
    from ..history.model import Event
    from ..profiles.verification import Verification

_MOST: Final = 5
"""How many differences, and lines that differ, are shown."""

_MOST_REQUESTS: Final = 3
"""How many requests of a difference are shown."""

_PLACE: Final = 30
_WHAT: Final = {"alloc": "allocates", "free_completed": "frees"}


def text(found: Verification) -> str:
    """The answer, the peaks, the first differences, and the lines that differ."""
    how = "simulated without values" if found.is_dry_run else "simulated with values"
    head = wrapped(printable(f"{found.recording}, beside the program {how} on {found.gpu}"))
    lines = list(head)
    for comparison in found.comparisons:
        lines += ["", *_comparison(comparison, found)]
    return document(lines)


def _comparison(found: Comparison, whole: Verification) -> Iterator[str]:
    name = device_name(found.device)
    if found.is_equal:
        yield from wrapped(f"{name}: equal: all {found.total:,} allocations and frees, in order")
    else:
        yield from wrapped(
            f"{name}: {found.equal:,} of {found.total:,} allocations and frees are equal, in order"
        )
    yield ""
    yield f"{'':18}{'recorded':>12}{'simulated':>12}{'differs by':>12}"
    yield _row("peak active", found.recorded.active, found.simulated.active)
    yield _row("peak reserved", found.recorded.reserved, found.simulated.reserved)
    yield from _rest(found)
    if found.differences:
        yield ""
        yield f"the first of {counted(len(found.differences), 'difference')}"
        for difference in found.differences[:_MOST]:
            yield from _difference(difference, whole)
    if found.lines:
        yield ""
        yield "bytes allocated by the lines that differ most"
        for row in found.lines[:_MOST]:
            yield (
                f"  {_place(row.line):{_PLACE - 2}}{prose_size(row.recorded):>12}"
                f"{prose_size(row.simulated):>12}{signed(row.simulated - row.recorded, '+'):>12}"
            )
        if len(found.lines) > _MOST:
            yield f"  {len(found.lines) - _MOST:,} more"


def _rest(found: Comparison) -> Iterator[str]:
    parts = []
    if found.before:
        parts.append(f"begins after {found.before:,} allocations and frees of the program")
    if found.after:
        parts.append(f"ends before {found.after:,} more")
    if parts:
        yield from wrapped(f"the recording {' and '.join(parts)}")


def _row(name: str, recorded: int, simulated: int) -> str:
    differs = "0" if recorded == simulated else _percent(recorded, simulated)
    return f"  {name:16}{prose_size(recorded):>12}{prose_size(simulated):>12}{differs:>12}"


def _percent(recorded: int, simulated: int) -> str:
    if not recorded:
        return signed(simulated, "+")
    share = 100 * (simulated - recorded) / recorded
    return f"{share:+.3f}%" if abs(share) >= 0.001 else signed(simulated - recorded, "+")


def _difference(found: Difference, whole: Verification) -> Iterator[str]:
    yield f"  {_place(found.line)}, after {counted(found.index, 'recorded request')}"
    yield f"    on the GPU   {_requests(found.recorded)}"
    yield f"    simulated    {_requests(found.simulated)}"
    yield f"    {_mark(found, whole)}"


def _requests(events: Sequence[Event]) -> str:
    parts = [f"{_WHAT[event.action]} {event.size:,} B" for event in events[:_MOST_REQUESTS]]
    if len(events) > _MOST_REQUESTS:
        parts.append(f"{len(events) - _MOST_REQUESTS:,} more")
    return ", ".join(parts) or "nothing"


def _mark(found: Difference, whole: Verification) -> str:
    mark = "" if found.line is None else whole.marks.get(found.line, "")
    return f"this line is marked {mark}" if mark else "this line has no mark"


def _place(line: FileLine | None) -> str:
    if line is None:
        return "no line of the program"
    return cut_place(printable(f"{line.file}:{line.number}"), _PLACE)
