"""Marks and notes for what a simulation did not know, shared by all renderers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytorch_memlab._common.prose_size import prose_size
from pytorch_memlab.records import FunctionTable, Gap, GapKind, PeakShare, joined

_NAMED_IN_LINE = 3
_NAMED_IN_ALL = 5
_LINES_WITH_NOTES = 10

_HEADS = {
    GapKind.UNMODELLED: "not modelled",
    GapKind.UNCOUNTED: "not counted",
    GapKind.ESTIMATED: "estimated",
    GapKind.ASSUMED: "dry run",
}
_TAILS = {
    GapKind.UNMODELLED: "only outputs are counted, so the true peak may be higher",
    GapKind.UNCOUNTED: "the true peak may be higher",
    GapKind.ESTIMATED: "the true peak may differ",
    GapKind.ASSUMED: "a real run may branch differently",
}


def mark(gaps: Sequence[Gap]) -> str:
    """The mark after the number of a line.

    >>> mark([Gap(GapKind.ESTIMATED, "mean", 1, 512)])
    '~'
    """
    if not gaps:
        return ""
    return "~" if all(gap.kind is GapKind.ESTIMATED for gap in gaps) else "?"


def line_mark(table: FunctionTable, line: int) -> str:
    """The sign behind the number of a line of a table."""
    return "!" if line in table.failed else mark(table.gaps.get(line, ()))


def line_notes(gaps: Sequence[Gap]) -> list[str]:
    """Notes on one line, a sentence for each kind of gap."""
    anywhere = joined(replace(gap, place="") for gap in gaps)
    return [
        f"{_HEADS[kind]}: {_named(found, _NAMED_IN_LINE)}"
        + (f": {_TAILS[kind]}" if kind is GapKind.ASSUMED else "")
        for kind, found in _by_kind(anywhere)
    ]


def table_notes(table: FunctionTable) -> list[str]:
    """Notes below a table: a few of its marked lines, estimates only where there is room."""
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
    """Notes below all tables, a sentence for each kind of gap."""
    return [
        f"{_HEADS[kind]}: {_named(found, _NAMED_IN_ALL)}: {_TAILS[kind]}"
        for kind, found in _by_kind(gaps)
    ]


def own_notes(notes: Iterable[str], found: Iterable[Gap]) -> tuple[str, ...]:
    """The notes without the summaries of gaps that are in other lines only."""
    kinds = {gap.kind for gap in found}
    others = tuple(f"{head}: " for kind, head in _HEADS.items() if kind not in kinds)
    return tuple(note for note in notes if not note.startswith(others))


def share(peak: PeakShare) -> str | None:
    """The share of a GPU's peak that is exact, in a sentence.

    >>> share(PeakShare("cuda:0", 1000, 13, (Gap(GapKind.ESTIMATED, "mean", 1, 512),)))
    'cuda:0: 98.7 % of the peak of 1000 B is exact, 1.3 % (13 B) estimated'
    """
    kinds = {gap.kind for gap in peak.gaps}
    if not peak.active or kinds <= {GapKind.ASSUMED}:
        return None
    # Rounded down: what is not all exact is never 100 %.
    exact = (peak.active - peak.estimated) * 1000 // peak.active
    parts = [f"{_percent(exact)} of the peak of {prose_size(peak.active)} is exact"]
    if peak.estimated:
        parts.append(f"{_percent(1000 - exact)} ({prose_size(peak.estimated)}) estimated")
    uncounted = _uncounted(peak.gaps)
    if uncounted:
        parts.append(f"{uncounted} not counted")
    if GapKind.ASSUMED in kinds:
        parts.append("if the assumed values hold")
    return f"{peak.device}: {', '.join(parts)}"


def _percent(thousandths: int) -> str:
    return "100 %" if thousandths == 1000 else f"{thousandths / 10:.1f} %"


def _uncounted(gaps: Iterable[Gap]) -> str:
    """Memory that is not counted: kinds of memory, then ops whose results alone are counted."""
    found = dict(_by_kind(gaps))
    kinds = dict.fromkeys(gap.unknown for gap in found.get(GapKind.UNCOUNTED, ()))
    ops = dict.fromkeys(gap.name for gap in found.get(GapKind.UNMODELLED, ()))
    parts = [_enumerated([*kinds], "kinds of memory")] if kinds else []
    if ops:
        parts.append(f"kernel memory of {_enumerated([*ops], 'ops')}")
    return ", ".join(parts)


def _enumerated(names: Sequence[str], noun: str) -> str:
    """A few names.

    >>> _enumerated(["mv", "mm", "bmm", "dot", "lu"], "ops")
    'mv, mm, bmm and 2 more ops'
    """
    others = len(names) - _NAMED_IN_LINE
    if others > 0:
        names = [*names[:_NAMED_IN_LINE], f"{others} more {noun}"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _by_kind(gaps: Iterable[Gap]) -> list[tuple[GapKind, list[Gap]]]:
    """The gaps of each kind that there is, the largest first."""
    ordered = sorted(gaps, key=lambda gap: (-gap.nbytes, -gap.calls, gap.name, gap.place))
    kinds = [(kind, [gap for gap in ordered if gap.kind is kind]) for kind in GapKind]
    return [(kind, found) for kind, found in kinds if found]


def _named(gaps: Sequence[Gap], most: int) -> str:
    named = ", ".join(map(_name, gaps[:most]))
    return named + (f" and {len(gaps) - most} more" if len(gaps) > most else "")


def _name(gap: Gap) -> str:
    calls, size = f"{gap.calls} call{'s' * (gap.calls != 1)}", prose_size(gap.nbytes)
    if gap.kind is GapKind.UNMODELLED:
        return f"{gap.name} ({calls}, {size} of outputs)"
    if gap.kind is GapKind.UNCOUNTED:
        return f"{gap.unknown} of {gap.name} ({calls})"
    if gap.kind is GapKind.ESTIMATED:
        return f"{gap.name} ({calls}, {size} of kernel memory)"
    place = f" at {gap.place}" if gap.place else ""
    times = "once" if gap.calls == 1 else f"{gap.calls} times"
    return f"{gap.name}{place} ({times}, assumed {gap.assumption})"
