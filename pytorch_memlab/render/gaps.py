"""What every renderer says of what a simulation did not know: marks, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytorch_memlab.records import FunctionTable, Gap, GapKind, joined
from pytorch_memlab.utils import readable_size

_NAMED_IN_LINE = 3
_NAMED_IN_ALL = 5
_LINES_WITH_NOTES = 10

_HEADS = {
    GapKind.UNMODELLED: "not modelled",
    GapKind.ESTIMATED: "estimated",
    GapKind.ASSUMED: "read values that shapes alone do not have",
}
_TAILS = {
    GapKind.UNMODELLED: "kernels' own memory of these is not counted",
    GapKind.ESTIMATED: "no recording confirms these",
    GapKind.ASSUMED: "what follows rests on these rules",
}


def mark(gaps: Sequence[Gap]) -> str:
    """The sign behind the number of a line.

    Args:
        gaps: of the line.

    Returns:
        ``~`` where something is an estimate, ``?`` where something was not known at all, empty
        where there is no gap.

    >>> mark([Gap(GapKind.ESTIMATED, "mean", 1, 512)])
    '~'
    """
    if not gaps:
        return ""
    return "~" if all(gap.kind is GapKind.ESTIMATED for gap in gaps) else "?"


def line_notes(gaps: Sequence[Gap]) -> list[str]:
    """What is said of one line, a sentence for each kind of gap.

    Args:
        gaps: of the line.
    """
    anywhere = joined(replace(gap, place="") for gap in gaps)
    return [
        f"{_HEADS[kind]}: {_named(found, _NAMED_IN_LINE)}"
        + (": what follows rests on that" if kind is GapKind.ASSUMED else "")
        for kind, found in _by_kind(anywhere)
    ]


def table_notes(table: FunctionTable) -> list[str]:
    """What is said below a table: a few of its marked lines, estimates only where there is room.

    Args:
        table: one function on one device.
    """
    lines = sorted(table.gaps, key=lambda line: (mark(table.gaps[line]) == "~", line))
    notes = [
        f"line {line}: {note}"
        for line in sorted(lines[:_LINES_WITH_NOTES])
        for note in line_notes(table.gaps[line])
    ]
    others = len(lines) - _LINES_WITH_NOTES
    if others > 0:
        notes.append(f"and {others} more line{'s' * (others > 1)} marked above")
    return notes


def summary(gaps: Iterable[Gap]) -> list[str]:
    """What is said below all tables, a sentence for each kind of gap.

    Args:
        gaps: all that there were, in profiled lines and elsewhere.
    """
    return [
        f"{_HEADS[kind]}: {_named(found, _NAMED_IN_ALL)}: {_TAILS[kind]}"
        for kind, found in _by_kind(gaps)
    ]


def _by_kind(gaps: Iterable[Gap]) -> list[tuple[GapKind, list[Gap]]]:
    """The gaps of each kind that there is, the largest first."""
    ordered = sorted(gaps, key=lambda gap: (-gap.nbytes, -gap.calls, gap.name, gap.place))
    kinds = [(kind, [gap for gap in ordered if gap.kind is kind]) for kind in GapKind]
    return [(kind, found) for kind, found in kinds if found]


def _named(gaps: Sequence[Gap], most: int) -> str:
    named = ", ".join(map(_name, gaps[:most]))
    return named + (f" and {len(gaps) - most} more" if len(gaps) > most else "")


def _name(gap: Gap) -> str:
    calls, size = f"{gap.calls} call{'s' * (gap.calls != 1)}", readable_size(gap.nbytes)
    if gap.kind is GapKind.UNMODELLED:
        return f"{gap.name} ({calls}, {size} of outputs)"
    if gap.kind is GapKind.ESTIMATED:
        taken = f"{size} taken" if gap.nbytes else "an unknown size taken"
        return f"{gap.name} ({calls}, {taken} besides its results)"
    place = f" at {gap.place}" if gap.place else ""
    times = "once" if gap.calls == 1 else f"{gap.calls} times"
    return f"{gap.name}{place} ({times}, {gap.assumption})"
