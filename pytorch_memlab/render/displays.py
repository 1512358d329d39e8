"""The one list of the classes of data that show themselves, each with its text and its HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from .._common.text.displayed import display_by

if TYPE_CHECKING:
    from ..history.holders import PeakHolders

T = TypeVar("T")


def _register_peaks() -> None:
    from ..history.holders import PeakHolders
    from . import peak

    display_by(PeakHolders, _without_end(peak.text), _peak_html)


def _peak_html(holders: PeakHolders) -> str:
    from . import peak_html

    return peak_html.notebook_fragment(holders)


def _register_memory_reports() -> None:
    from ..reporter.leaks import LeakWatch
    from ..reporter.memory_snapshot import MemorySnapshot
    from ..reporter.snapshot_differences import Difference
    from . import memory_report

    display_by(MemorySnapshot, memory_report.snapshot, memory_report.snapshot_html)
    display_by(Difference, memory_report.difference, memory_report.difference_html)
    display_by(LeakWatch, memory_report.leaks, memory_report.leaks_html)


def _register_fits() -> None:
    from ..fitting.grid import GridSearch
    from ..fitting.verdict import FitReport
    from . import curve, fit

    display_by(FitReport, _without_end(fit.text), fit.fragment)
    display_by(GridSearch, _without_end(curve.text), curve.fragment)


def _without_end(text: Callable[[T], str]) -> Callable[[T], str]:
    """A text without the end of its last line, which ``print`` adds."""
    return lambda value: text(value).rstrip("\n")


REGISTER: Final = (_register_peaks, _register_memory_reports, _register_fits)
"""Each loads a part of the package: the small ones come first, and the search ends with a hit."""
