"""A job that goes on, as its files tell: its ranks, and the lines of one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from .._common.frames.user_code import base_name
from ..errors import ProfileError
from ..profiles.job import age_of, state_of
from ..profiles.rank_digest import RankDigest
from ..profiles.recorded import RecordedProfile
from ..records import LineEntry
from ..saved.checked import DamagedError
from .folder import rank_files
from .reading import digest_of_file, profile_of_file

_AROUND: Final = 4
"""Lines before and after one that is opened."""


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """A process of the job, when it last wrote its file."""

    file: Path
    digest: RankDigest
    state: str  # such as that it runs, or the exception that ended it
    age: float  # seconds since it wrote the file

    @property
    def name(self) -> str:
        """The number of the rank, with that of its attempt after a restart."""
        run = self.digest.run
        return f"{run.rank}" + f" (attempt {run.attempt + 1})" * bool(run.attempt)


@dataclass(frozen=True, slots=True)
class WatchedLine:
    """A line of a rank on the device of its peak."""

    name: str  # such as ``train.py:12``
    source: str
    entry: LineEntry

    @property
    def peak(self) -> int:
        """Allocated bytes, the most while it ran."""
        return self.entry.stats.get("allocated_bytes.all.peak", 0)


@dataclass(frozen=True, slots=True)
class WatchedProfile:
    """The lines of one rank, and the loop of it whose memory grows."""

    profile: RecordedProfile
    lines: tuple[WatchedLine, ...]
    categories: tuple[tuple[str, int], ...]  # name -> bytes at the peak, the largest first
    growth: str  # line of a loop that grows; empty without one
    rise: int  # bytes that an iteration of it leaves

    def around(self, line: WatchedLine) -> list[tuple[int, str]]:
        """The numbers and the text of the lines around one, in its function."""
        function = self.profile.functions[line.entry.code_id]
        first, source = function.first_line, function.source or ()
        start = max(line.entry.line - _AROUND, first)
        end = min(line.entry.line + _AROUND, first + len(source) - 1)
        return [(number, source[number - first]) for number in range(start, end + 1)]


def watched_ranks(folder: str | os.PathLike[str], now: datetime) -> list[WatchedRank]:
    """The ranks that have a file of the last attempt, in the order of their numbers."""
    ranks = []
    for file in rank_files(folder):
        try:
            digest = digest_of_file(file)
        except (OSError, ProfileError, DamagedError):  # it is written again before long
            continue
        age = max(age_of(digest.run, now), 0.0)
        ranks.append(WatchedRank(file, digest, state_of(digest.run, now)[0], age))
    last = max((rank.digest.run.attempt for rank in ranks), default=0)
    return [rank for rank in ranks if rank.digest.run.attempt == last]


def highest_rank(ranks: Sequence[WatchedRank]) -> int:
    """The place of the rank with the highest peak."""
    return max(range(len(ranks)), key=lambda place: ranks[place].digest.active)


def watched_profile(rank: WatchedRank) -> WatchedProfile | None:
    """The lines of a rank; None while its file cannot be read."""
    try:
        profile = profile_of_file(rank.file)
    except (OSError, ProfileError):
        return None
    device = rank.digest.device
    lines = [_line(profile, entry) for entry in profile.entries if entry.device.name == device]
    held = profile.peaks.get(device)
    categories = (
        [] if held is None else [(category.name, category.size) for category in held.by_category()]
    )
    growing = next((loop for loop in profile.growing if loop.device == device), None)
    if growing is None:
        return WatchedProfile(profile, tuple(lines), tuple(categories), "", 0)
    file = base_name(profile.functions[growing.function].filename)
    place = f"{file}:{growing.line}"
    return WatchedProfile(profile, tuple(lines), tuple(categories), place, growing.rise)


def _line(profile: RecordedProfile, entry: LineEntry) -> WatchedLine:
    function = profile.functions[entry.code_id]
    source = function.source or ()
    place = entry.line - function.first_line
    return WatchedLine(
        f"{base_name(function.filename)}:{entry.line}",
        source[place].strip() if 0 <= place < len(source) else "",
        entry,
    )
