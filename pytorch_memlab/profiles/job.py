"""Many ranks as one answer: the worst, the first that died, those that are alike, the spread."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median_low
from typing import Final

from .rank_digest import RankDigest
from .recorded import UNKNOWN_STATUS, Run

_ALIKE: Final = 0.01
"""Ranks whose peaks differ by this part of the higher one, or less, are alike."""

_ALIKE_BYTES: Final = 1 << 20
_ALIKE_OF_LITTLE: Final = 0.1
"""Small peaks may differ by so many bytes, and by a larger part."""

_RUNNING: Final = "running"
_NO_END: Final = "did not end"
_ENDED_WELL: Final = "exit status 0"
_ENDED: Final = "ended"
_WITHOUT_ERROR: Final = (_ENDED_WELL, _ENDED)

_ENDED_BY_LAUNCHER: Final = ("SIGTERM", "SIGHUP")


@dataclass(frozen=True, slots=True)
class Spread:
    """Bytes of one thing, such as a line, over the ranks that have it."""

    name: str
    most: int
    rank: int  # the first one that has the most
    median: int
    least: int

    @property
    def width(self) -> int:
        return self.most - self.least


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks whose peaks are alike."""

    ranks: tuple[int, ...]
    active: int  # the highest of their peaks
    # the line that holds more than on the ranks of the largest group, and how much more; empty
    # for that group
    line: str
    more: int


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one process of a job."""

    rank: int
    attempt: int
    node: int
    active: int
    reserved: int
    state: str  # the exception, the exit status, or that there was no end
    when: str  # in UTC as ISO 8601
    line: str
    has_failed: bool  # by itself, and not because the launcher ended it
    has_end: bool


@dataclass(frozen=True, slots=True)
class Job:
    """The answer for all ranks of a job."""

    program: str
    launcher: str
    world_size: int
    capacity: int  # bytes of the device of the worst rank
    ends: tuple[RankEnd, ...]  # of all attempts, in the order of ranks
    groups: tuple[RankGroup, ...]  # of the last attempt, the highest peak first
    peak: Spread
    categories: tuple[Spread, ...]  # at the peaks, the widest first
    lines: tuple[Spread, ...]  # the peaks of lines, the widest first
    sources: Mapping[str, str]  # line -> its text, as far as it is known
    notes: tuple[str, ...] = ()  # on files that are left out

    @property
    def attempt(self) -> int:
        return max(end.attempt for end in self.ends)

    @property
    def last_ends(self) -> list[RankEnd]:
        return [end for end in self.ends if end.attempt == self.attempt]

    @property
    def missing(self) -> list[int]:
        """Ranks without a file of the last attempt."""
        there = {end.rank for end in self.last_ends}
        return [rank for rank in range(self.world_size) if rank not in there]


class JobSummary:
    """Adds up ranks one by one: its memory grows with lines times ranks, 8 bytes for each."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._ends: list[RankEnd] = []
        self._attempt = -1
        self._runs: list[Run] = []
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._ranks: list[int] = []
        self._peaks: list[int] = []
        self._capacities: list[int] = []
        self._held: list[dict[str, int]] = []
        self._alike: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self._categories: dict[str, _Column] = {}
        self._lines: dict[str, _Column] = {}

    def add(self, digest: RankDigest) -> None:
        """Add a rank; those of an older attempt than others count by their ends alone."""
        run = digest.run
        self._ends.append(_end(digest, self._now))
        if run.attempt > self._attempt:
            self._begin(run.attempt)
        if run.attempt < self._attempt:
            return
        self._runs[:] = self._runs[:1] or [run]
        self._ranks.append(run.rank)
        self._peaks.append(digest.active)
        self._capacities.append(digest.capacity)
        # Ranks that hold the same share one object.
        self._held.append(self._alike.setdefault(tuple(digest.held.items()), digest.held))
        for name, size in digest.categories.items():
            self._categories.setdefault(name, _Column()).add(run.rank, size)
        for name, (peak, _kept) in digest.lines.items():
            self._lines.setdefault(name, _Column()).add(run.rank, peak)

    def job(self, sources: Mapping[str, str]) -> Job:
        """The answer so far."""
        run = self._runs[0]
        worst = max(range(len(self._peaks)), key=lambda place: self._peaks[place])
        peaks = _Column(self._ranks, self._peaks)
        held = {line for lines in self._alike.values() for line in lines}
        lines = [column.spread(name) for name, column in self._lines.items() if any(column.sizes)]
        categories = [
            column.with_zeros(self._ranks).spread(name) for name, column in self._categories.items()
        ]
        return Job(
            run.program,
            run.launcher,
            run.world_size,
            self._capacities[worst],
            self._ended(),
            self._groups(),
            peaks.spread("peak"),
            tuple(sorted(categories, key=_widest_first)),
            tuple(
                sorted(lines, key=lambda line: (*_widest_first(line)[:2], line.name not in held))
            ),
            sources,
        )

    def _ended(self) -> tuple[RankEnd, ...]:
        """All ends in the order of ranks; no rank runs on after the launcher ended others."""
        over = {
            end.attempt for end in self._ends if end.has_end and end.state not in _WITHOUT_ERROR
        }
        ends = (
            replace(end, state=_NO_END, has_failed=True)
            if end.state == _RUNNING and (end.attempt in over or end.attempt < self._attempt)
            else end
            for end in self._ends
        )
        return tuple(sorted(ends, key=lambda end: (end.rank, end.attempt)))

    def _groups(self) -> tuple[RankGroup, ...]:
        order = sorted(range(len(self._peaks)), key=lambda place: -self._peaks[place])
        groups: list[list[int]] = []
        for place in order:
            highest = self._peaks[groups[-1][0]] if groups else 0
            near = max(highest * _ALIKE, min(_ALIKE_BYTES, highest * _ALIKE_OF_LITTLE))
            if groups and highest - self._peaks[place] <= near:
                groups[-1].append(place)
            else:
                groups.append([place])
        largest = max(groups, key=len)
        usual = self._held[largest[0]]
        return tuple(
            RankGroup(
                tuple(sorted({self._ranks[place] for place in group})),
                self._peaks[group[0]],
                *(("", 0) if group is largest else _excess(self._held[group[0]], usual)),
            )
            for group in groups
        )


class _Column:
    """Sizes of one thing by rank."""

    def __init__(self, ranks: Iterable[int] = (), sizes: Iterable[int] = ()) -> None:
        self.ranks = array("q", ranks)
        self.sizes = array("q", sizes)

    def add(self, rank: int, size: int) -> None:
        self.ranks.append(rank)
        self.sizes.append(size)

    def with_zeros(self, ranks: Sequence[int]) -> _Column:
        """The same with 0 for ranks that do not have it."""
        there = set(self.ranks)
        others = [rank for rank in ranks if rank not in there]
        return _Column([*self.ranks, *others], [*self.sizes, *[0] * len(others)])

    def spread(self, name: str) -> Spread:
        most = max(self.sizes)
        rank = min(rank for rank, size in zip(self.ranks, self.sizes, strict=True) if size == most)
        return Spread(name, most, rank, median_low(self.sizes), min(self.sizes))


def _widest_first(spread: Spread) -> tuple[int, int, str]:
    return -spread.width, -spread.most, spread.name


def _excess(held: Mapping[str, int], usual: Mapping[str, int]) -> tuple[str, int]:
    """The line that holds most more than usual; nothing if none holds more."""
    more = {line: size - usual.get(line, 0) for line, size in held.items()}
    line = max(more, key=lambda name: more[name], default="")
    return (line, more[line]) if line and more[line] > 0 else ("", 0)


def _end(digest: RankDigest, now: datetime) -> RankEnd:
    run = digest.run
    state, has_failed = state_of(run, now)
    return RankEnd(
        run.rank,
        run.attempt,
        run.node,
        digest.active,
        digest.reserved,
        state,
        run.written,
        run.last_line,
        has_failed,
        run.exit_status is not None,
    )


def age_of(run: Run, now: datetime) -> float:
    """Seconds since the file of a process was written; 0 if it does not say."""
    return (now - datetime.fromisoformat(run.written)).total_seconds() if run.written else 0.0


def state_of(run: Run, now: datetime) -> tuple[str, bool]:
    """The end of a process, and whether it failed by itself."""
    if run.exit_status is None:
        # Twice the time between two files, and that to write one on a slow disk.
        is_running = age_of(run, now) < 2 * run.save_every + 30
        return (_RUNNING if is_running else _NO_END, not is_running)
    if run.exception:
        return run.exception, run.exception not in _ENDED_BY_LAUNCHER
    if run.exit_status == UNKNOWN_STATUS:
        return _ENDED, False
    return f"exit status {run.exit_status}", run.exit_status != 0


def first_failure(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The process that failed first, of those that say when: None if there is none."""
    failed = [end for end in ends if end.has_failed and end.has_end]
    return min(failed, key=lambda end: (end.when, end.rank), default=None)


def ranks_text(ranks: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> ranks_text([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def by_state(ends: Iterable[RankEnd]) -> list[tuple[str, list[int]]]:
    """The ranks by how they ended, the rarest first."""
    listed = list(ends)
    counts = Counter(end.state for end in listed)
    return [
        (state, [end.rank for end in listed if end.state == state])
        for state, _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))
    ]
