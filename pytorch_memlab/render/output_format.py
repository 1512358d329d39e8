"""The formats of the files that commands write: their base class, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from ..fitting.grid import GridSearch
    from ..history.holders import PeakHolders
    from ..history.model import AllocationHistory
    from ..history.timeline import Timeline
    from ..profiles.changed_tests import ChangedTest
    from ..profiles.differences import Differences
    from ..profiles.job import Job
    from ..profiles.overview import Overview
    from ..profiles.recorded import RecordedProfile
    from ..profiles.verification import Verification
    from ..records import Report

T = TypeVar("T")


@dataclass(frozen=True)
class RunResults:
    """The results of a run, for ``run``, ``show``, ``merge`` and ``%mlrun``."""

    report: Report  # the tables asked for
    # the report that text shows in place of the tables; None for the tables themselves
    overview: Overview | None
    recorded: RecordedProfile
    # the profile for a page, which may have a history that is in no file of the profile
    of_page: RecordedProfile
    of_each_device: Report  # the tables for a page


@dataclass(frozen=True)
class PeakResults:
    """The peaks of the GPUs of a file with what holds them, for ``peak``."""

    peaks: Sequence[PeakHolders]
    called: str  # the name of the file
    by: str = "line"
    top: int | None = None  # rows that are shown; None for all


@dataclass(frozen=True)
class TimelineResults:
    """The memory of GPUs over time, for ``timeline`` and for the pictures of ``run``."""

    timelines: Sequence[Timeline]
    title: str


@dataclass(frozen=True)
class ComparedProfiles:
    """Two profiles, for ``diff``."""

    names: tuple[str, str]
    before: RecordedProfile
    after: RecordedProfile
    differences: Differences
    most_rows: int


@dataclass(frozen=True)
class ComparedTests:
    """The tests of two files, for ``diff``."""

    names: tuple[str, str]
    changed: Sequence[ChangedTest]
    most_rows: int


@dataclass(frozen=True)
class ComparisonResults:
    """A comparison, for ``diff``."""

    of: ComparedProfiles | ComparedTests


@dataclass(frozen=True)
class JobResults:
    """The answer for a job of many ranks, for ``show`` and ``merge``."""

    job: Job
    called: str  # the name of its folder


@dataclass(frozen=True)
class SearchResults:
    """The largest values that fit, for ``fit --vary``."""

    search: GridSearch


@dataclass(frozen=True)
class VerifiedResults:
    """The events of a GPU, and how its simulation compares, for ``verify``."""

    history: AllocationHistory
    verification: Verification
    versions: Mapping[str, str]


class OutputFormat(ABC, Generic[T]):
    """A format of files: ``-o`` of the commands that have such results writes it."""

    shows: ClassVar[type]  # the class of its results
    endings: ClassVar[tuple[str, ...]]  # of the names of files, with their dots
    order: ClassVar[int]  # its place in lists of the endings for these results
    has_rows: ClassVar[bool] = False  # which --by and --top of ``peak`` choose

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def check(self) -> None:
        """Raise ``UsageError`` if it cannot be made on this machine."""

    @abstractmethod
    def render(self, results: T) -> str | bytes:
        """The whole file."""
