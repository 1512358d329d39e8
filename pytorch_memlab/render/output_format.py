"""A format of the report of a run, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ..profiles.overview import Overview
    from ..profiles.recorded import RecordedProfile
    from ..records import Report


@dataclass(frozen=True)
class RunResults:
    """The results of a run."""

    report: Report  # the tables asked for
    # the report that text shows in place of the tables; None for the tables themselves
    overview: Overview | None
    recorded: RecordedProfile
    # the profile for a page, which may have a history that is in no file of the profile
    of_page: RecordedProfile
    of_each_device: Report  # the tables for a page


class OutputFormat(ABC):
    """A format of files: ``-o`` of ``run``, ``show``, ``merge`` and ``%mlrun`` writes it."""

    ending: ClassVar[str]  # of the names of files, with its dot
    order: ClassVar[int]  # its place in lists of endings

    @abstractmethod
    def render(self, results: RunResults) -> str:
        """The whole file."""
