"""Profiles in files: written, read, and shown as the profiler shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike

from ..errors import HistoryError
from ..history.holders import PeakHolders
from ..history.model import AllocationHistory
from ..profiles.merging import over_devices
from ..profiles.recorded import RecordedProfile
from ..records import FunctionInfo, Report
from ..saved import profile_file
from .line_records import LineRecords, RecordsDisplay
from .recorded_lines import RecordedLines
from .registration import resolve


class SavedProfile(RecordedLines):
    """A profile of a file, which displays as the profiler that recorded it."""

    def __init__(self, recorded: RecordedProfile) -> None:
        self._recorded = recorded

    def recorded(self) -> RecordedProfile:
        return self._recorded

    def records(self) -> LineRecords:
        """All lines, as data."""
        return self._records(dict(enumerate(self._recorded.functions)))

    def peak_holders(self, device: str | None = None) -> PeakHolders:
        """The holders of the memory of a device at its peak; see ``LineProfiler.peak_holders``.

        Args:
            device: name, as ``cuda:0`` or, in a merged profile, ``rank0 cuda:0``; None for the one
                with the highest peak.

        Raises:
            HistoryError: nothing was recorded of it.
        """
        peaks = self._recorded.peaks
        if not peaks:
            raise HistoryError(f"the profile {self._recorded.why_no_peak()}")
        if device is None:
            return max(peaks.values(), key=lambda peak: peak.peak.active)
        if device not in peaks:
            raise HistoryError(f"{device} was not recorded: there is {', '.join(peaks)}")
        return peaks[device]

    def history(self, run: str | None = None) -> AllocationHistory:
        """Every allocation and free.

        Args:
            run: label of a run in a merged profile, such as ``rank0``; None for the only one.

        Raises:
            HistoryError: the run did not keep them, or there are several.
        """
        histories = self._recorded.all_histories()
        if not histories:
            raise HistoryError(profile_file.NO_HISTORY)
        labels = " or ".join(histories)
        if run is None and len(histories) > 1:
            raise HistoryError(f"the profile has several histories: choose {labels}")
        if run is not None and run not in histories:
            raise HistoryError(f"the profile has no history of {run}: there is {labels}")
        return next(iter(histories.values())) if run is None else histories[run]

    def report_of_each_device(
        self, func: object = None, columns: str | Iterable[str] | None = None
    ) -> Report:
        """The tables as data, one for each function and device, with the sections of the file."""
        recorded = self._recorded
        if func is not None or recorded.shown is None:
            records, names = self.records(), _by_name(func)
        else:
            shown_functions = {number: recorded.functions[number] for number in recorded.shown}
            records, names = (
                self._records(shown_functions),
                [info.qual_name for info in shown_functions.values()],
            )
        report = records.display(names, recorded.columns if columns is None else columns).report
        return replace(report, sections=(*report.sections, *recorded.sections))

    def over_devices(self, report: Report) -> Report:
        """A report of each device as it is displayed: that of several runs over all devices."""
        return report if len(self._recorded.runs) < 2 else over_devices(report)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._recorded.summary()}>"

    def _display(self, func: object, columns: str | Iterable[str] | None) -> RecordsDisplay:
        return RecordsDisplay(self.over_devices(self.report_of_each_device(func, columns)))

    def _records(self, infos: Mapping[int, FunctionInfo]) -> LineRecords:
        recorded = self._recorded
        return LineRecords(
            recorded.entries, infos, recorded.notes, recorded.ends, recorded.failures
        )


def load(path: str | PathLike[str]) -> SavedProfile:
    """Read a file that ``LineProfiler.save`` or ``pytorch-memlab run -o`` wrote, executing nothing.

    Raises:
        ProfileError: the file is no saved profile; the message says what it is.
    """
    return SavedProfile(profile_file.read(path))


def _by_name(func: object) -> object:
    """Functions as the names under which a file has them."""
    if func is None or isinstance(func, str):
        return func
    asked = func if isinstance(func, (list, tuple, set, frozenset)) else [func]
    return [
        name
        for request in asked
        for name in (
            [request] if isinstance(request, str) else [f.__qualname__ for f in resolve(request)]
        )
    ]
