"""The answer for a job as text, of at most 60 lines, and as a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from ..profiles.job import Job, RankEnd, Spread, by_state, first_failure, ranks_text
from .table import Table

_GROUPS = 8
_STATES = 5
_NOTES = 3
_LINES = 12
_CATEGORIES = 8


def text(job: Job, called: str, width: int = 80) -> str:
    """The worst rank, who died first, the groups of ranks, and the spread of lines."""
    tables = [
        _spreads("peak of a line", job.lines, _LINES, job),
        _spreads("category at the peak", job.categories, _CATEGORIES, job),
    ]
    return _joined([*_parts(job, called), _groups(job), *tables], width)


def summary(job: Job, called: str) -> str:
    """The first lines of the text: the ends, and the worst rank."""
    return _joined(_parts(job, called), 1000)


def _parts(job: Job, called: str) -> list[Iterator[str]]:
    return [_heading(job, called), _ends(job), _worst(job)]


def _joined(parts: Sequence[Iterator[str]], width: int) -> str:
    blocks = ["\n".join(_cut(line, width) for line in part) for part in parts]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _cut(line: str, width: int) -> str:
    line = printable(line)
    return line if len(line) <= width else line[: width - 3] + "..."


def _heading(job: Job, called: str) -> Iterator[str]:
    ends = job.last_ends
    program = os.path.basename(job.program) or "a program"
    launcher = f", started by {job.launcher}" if job.launcher else ""
    attempts = f", attempt {job.attempt + 1}" if job.attempt else ""
    nodes = len({end.node for end in ends})
    on_nodes = f" on {nodes} nodes" if nodes > 1 else ""
    ranks = f"{len(ends)} rank" + "s" * (len(ends) != 1)
    yield f"{called}: {ranks} of {program}{on_nodes}{launcher}{attempts}"
    if job.missing:
        yield f"without a file, of {job.world_size}: ranks {ranks_text(job.missing)}"
    yield from job.notes[:_NOTES]
    if job.notes[_NOTES:]:
        yield f"{len(job.notes) - _NOTES} more files are left out"


def _ends(job: Job) -> Iterator[str]:
    for attempt in range(max(0, job.attempt - 2), job.attempt + 1):
        ends = [end for end in job.ends if end.attempt == attempt]
        before = f"attempt {attempt + 1}: " if job.attempt else ""
        first = first_failure(ends)
        if first is not None:
            at = f" at {first.line}" if first.line else ""
            yield f"{before}rank {first.rank} failed first, at {_clock(first)}{at}: {first.state}"
        for end in [end for end in ends if end.has_failed and not end.has_end][:3]:
            at = f" at {end.line}" if end.line else ""
            yield f"{before}rank {end.rank}, written at {_clock(end)}{at}: the process did not end"
        states = by_state(ends)
        for state, ranks in states[:_STATES]:
            yield f"  {state}: {_ranks(ranks)}"
        if states[_STATES:]:
            yield f"  {len(states) - _STATES} other ends"


def _clock(end: RankEnd) -> str:
    return f"{end.when[11:19]} UTC"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def _worst(job: Job) -> Iterator[str]:
    peak = job.peak
    if not peak.most:
        yield "no rank used the memory of a GPU"
        return
    of = f" of {prose_size(job.capacity)}" if job.capacity else ""
    yield f"peak {prose_size(peak.most)} on rank {peak.rank}{of}"
    if peak.most > peak.median > 0:
        more = prose_size(peak.most - peak.median)
        yield (
            f"  {more} above the median of {prose_size(peak.median)}"
            f" ({peak.most / peak.median:.2f} times)"
        )


def _groups(job: Job) -> Iterator[str]:
    for group in job.groups[:_GROUPS]:
        why = ""
        if group.line:
            source = job.sources.get(group.line, "")
            why = f", because {group.line} holds {prose_size(group.more)} more  {source}".rstrip()
        yield f"{_ranks(group.ranks)}: {prose_size(group.active)}{why}"
    rest = job.groups[_GROUPS:]
    if rest:
        count = sum(len(group.ranks) for group in rest)
        yield f"{count} other ranks: {prose_size(rest[-1].active)} to {prose_size(rest[0].active)}"


def _spreads(what: str, spreads: Sequence[Spread], most: int, job: Job) -> Iterator[str]:
    if not spreads:
        return
    rows = [
        (
            prose_size(spread.most),
            str(spread.rank),
            prose_size(spread.median),
            prose_size(spread.least),
            f"{spread.name}  {job.sources.get(spread.name, '')}",
        )
        for spread in spreads[:most]
    ]
    heads = ("max", "rank", "median", "min", what)
    yield from Table(heads, rows, "{:>10} {:>5} {:>10} {:>10}  {}").lines()
    if spreads[most:]:
        yield f"{len(spreads) - most} more, of which none differs more between ranks"
