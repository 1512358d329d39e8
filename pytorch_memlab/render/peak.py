"""The holders of a peak as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from ..history.holders import NO_MODULE, Holder, PeakHolders, Share, innermost_of_user
from ..history.peak import Peak
from .private_pools import at_peak
from .rows import WIDTH, cut, document, place, source_line, wrapped

_FAILURES = 3


def text(holders: PeakHolders, top: int | None = 20, by: str = "line") -> str:
    """The peak of one GPU, and what holds it."""
    lines = [head(holders.peak), *pools(holders), *failures(holders), "", *rows(holders, top, by)]
    if by in ("line", "function"):
        lines += backward_calls(holders)
    return document(lines)


def rows(holders: PeakHolders, top: int | None, by: str = "line") -> Iterator[str]:
    """Rows of the parts that hold a peak, the largest first."""
    all_parts = parts(holders, by)
    total = holders.peak.active
    listed = all_parts if top is None else all_parts[:top]
    for part in listed:
        yield from _rows(part, total)
    if len(all_parts) > len(listed):
        rest = all_parts[len(listed) :]
        yield _row(sum(part.size for part in rest), total, f"{len(rest)} more")


def backward_calls(holders: PeakHolders) -> Iterator[str]:
    """The lines that ran the backward pass; their memory counts at the lines of forward ops."""
    for number, call in enumerate(holders.backward_calls()):
        if not number:
            yield ""
            yield "counted above, at the lines of the forward pass:"
        what = place(call.file, call.line, call.function).strip()
        yield _row(call.size, holders.peak.active, f"{what}, backward pass")


def parts(holders: PeakHolders, by: str) -> Sequence[Holder | Share]:
    """The parts of a peak, the largest first."""
    if by == "module":
        return holders.by_module()
    if by == "category":
        return holders.by_category()
    return holders.by_function() if by == "function" else holders.by_line()


def head(peak: Peak) -> str:
    """The peak of one GPU in a sentence."""
    return peak_sentence(peak.name, peak.active, peak.reserved, peak.event, peak.events)


def number_of_events(events: int, dropped: int | None) -> str:
    """The number of events of a history, after those that were dropped; None if that is not known.

    >>> number_of_events(500, 0), number_of_events(500, 1000), number_of_events(500, None)
    ('500', 'the last 500 of 1,500', 'the last 500')
    """
    if dropped == 0:
        return f"{events:,}"
    return f"the last {events:,}" + (f" of {events + dropped:,}" if dropped else "")


def peak_sentence(
    name: str, active: int, reserved: int, event: int, events: int, dropped: int | None = 0
) -> str:
    """The peak of one device: its bytes, and the event that it follows; -1 for the beginning."""
    moment = "before the first event" if event < 0 else f"event {event + 1:,}"
    return (
        f"{name}: {prose_size(active)} in use at the peak, "
        f"{prose_size(reserved)} reserved ({moment} of {number_of_events(events, dropped)})"
    )


def pools(holders: PeakHolders) -> list[str]:
    """The memory of private pools at the peak."""
    return wrapped(at_peak(holders))


def failures(holders: PeakHolders) -> Iterator[str]:
    """The requests that the GPU had no room for, with their lines of the program."""
    failed = holders.peak.failures
    for index, event in failed[:_FAILURES]:
        where = place(*innermost_of_user(holders.stacks[event.stack]))
        line = f"out of memory at event {index + 1:,}, no room for {prose_size(event.size)}:"
        if len(line) + 2 + len(where) <= WIDTH:
            yield f"{line}  {where}"
        else:
            yield from (line, cut(f"  {where}"))
    if len(failed) > _FAILURES:
        yield f"out of memory {len(failed) - _FAILURES:,} more times"


def _rows(part: Holder | Share, total: int) -> list[str]:
    """A part of the peak, its source, and what of it the backward pass made."""
    source = ""
    if isinstance(part, Share):
        what = printable(part.name) or NO_MODULE
    else:
        what = place(part.file, part.line, part.function)
        source = source_line(part.file, part.line) if part.file else ""
    lines = [_row(part.size, total, what)]
    if source:
        lines.append(cut(f"{'':24}{printable(source)}"))
    if part.backward:
        lines.append(f"{'':24}{prose_size(part.backward)} of it in the backward pass")
    return lines


def _row(size: int, total: int, what: str) -> str:
    return cut(f"{prose_size(size):>12}  {size / max(total, 1):6.1%}  {what}")
