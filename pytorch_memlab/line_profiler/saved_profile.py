"""Profiles in files: written, read, and shown as the profiler shows them."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from .._common.call_results import is_result_dropped
from .._common.checked_file import check_free, check_writable, write_file
from .._common.ranks import path_of_rank
from ..errors import HistoryError, ProfileError
from ..profiles.merging import over_devices
from ..render import saved_profile
from .line_records import LineRecords, RecordsDisplay, show, write
from .registration import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from typing import TextIO

    from ..history.holders import PeakHolders
    from ..history.model import AllocationHistory
    from ..profiles.recorded import RecordedProfile
    from ..records import Report

NO_HISTORY = "the profile has no history: record it with run --history"

_PICKLE = b"\x80"
_ZIP = b"P"
_BEGINNING = re.compile(rb'\s*\{\s*"format"')


class SavedProfile:
    """A profile of a file, which displays as the profiler that recorded it."""

    def __init__(self, recorded: RecordedProfile) -> None:
        self._recorded = recorded

    def recorded(self) -> RecordedProfile:
        """Everything in the file."""
        return self._recorded

    def records(self) -> LineRecords:
        """All lines, as data."""
        recorded = self._recorded
        infos = dict(enumerate(recorded.functions))
        return LineRecords(
            recorded.entries, infos, recorded.notes, recorded.ends, recorded.failures
        )

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
            raise HistoryError("the profile has no peak: no memory was recorded in use")
        if device is None:
            return max(peaks.values(), key=lambda one: one.peak.active)
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
        found = self._recorded.all_histories()
        if not found:
            raise HistoryError(NO_HISTORY)
        labels = " or ".join(found)
        if run is None and len(found) > 1:
            raise HistoryError(f"the profile has several histories: choose {labels}")
        if run is not None and run not in found:
            raise HistoryError(f"the profile has no history of {run}: there is {labels}")
        return next(iter(found.values())) if run is None else found[run]

    def display(
        self, func: object = None, columns: str | Iterable[str] | None = None
    ) -> RecordsDisplay:
        """The recorded lines: a table with bars in a notebook, text elsewhere.

        It is shown at once where nothing gets the result, as in a script.

        Args:
            func: a function, its qualified name, or several; None for those that the run showed.
            columns: as ``LineProfiler.display`` takes them; None for those that the run showed.

        Returns:
            an object that renders itself.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not in the file.
        """
        result = self._display(func, columns)
        if is_result_dropped(sys._getframe(1)):
            show(result)
        return result

    def print_stats(
        self,
        func: object = None,
        columns: str | Iterable[str] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """Print what was recorded.

        Args:
            func: as ``display`` takes it.
            columns: as ``display`` takes them.
            stream: where to; the ``sys.stdout`` of this moment if None.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not in the file.
        """
        write(self._display(func, columns), sys.stdout if stream is None else stream)

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the profile to a file; see ``LineProfiler.save``.

        Args:
            path: of the file.
            force: write it also where there is such a file already.

        Raises:
            UsageError: there is one, or it cannot be written.
        """
        save(self._recorded, path, force=force)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write a page that shows the profile in a browser; see ``LineProfiler.to_html``.

        Args:
            path: of the file.

        Raises:
            UsageError: it cannot be written.
        """
        write_page(self._recorded, self.report_of_each_device(None, None), path)

    def report_of_each_device(
        self, func: object = None, columns: str | Iterable[str] | None = None
    ) -> Report:
        """The tables, in a merged profile one for each function and device.

        Args:
            func: as ``display`` takes it.
            columns: as ``display`` takes them.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not in the file.
        """
        found = self._of_each_device(func, columns).report
        if self._recorded.sections:
            found = replace(found, sections=(*found.sections, *self._recorded.sections))
        return found

    def __repr__(self) -> str:
        """The program, and how much was recorded of it."""
        return f"<{type(self).__name__} of {self._recorded.summary()}>"

    def _repr_html_(self) -> str:
        """The tables that the run showed: a notebook shows them for a profile that ends a cell."""
        return self._display(None, None)._repr_html_()

    def _display(self, func: object, columns: str | Iterable[str] | None) -> RecordsDisplay:
        found = self.report_of_each_device(func, columns)
        return RecordsDisplay(found if len(self._recorded.runs) < 2 else over_devices(found))

    def _of_each_device(self, func: object, columns: str | Iterable[str] | None) -> RecordsDisplay:
        recorded = self._recorded
        names = recorded.columns if columns is None else columns
        if func is not None or recorded.shown is None:
            return self.records().display(_by_name(func), names)
        shown = {number: recorded.functions[number] for number in recorded.shown}
        records = LineRecords(
            recorded.entries, shown, recorded.notes, recorded.ends, recorded.failures
        )
        return records.display([info.qual_name for info in shown.values()], names)


def save(recorded: RecordedProfile, path: str | PathLike[str], *, force: bool) -> None:
    """Write a profile to a file; ``{rank}`` and ``{pid}`` in its name are filled in.

    Raises:
        UsageError: there is one and ``force`` is False, or it cannot be written.
    """
    name = path_of_rank(os.fspath(path))
    check_writable(name)
    if not force:
        check_free(name)
    write_file(name, saved_profile.render(recorded))


def write_page(recorded: RecordedProfile, report: Report, path: str | PathLike[str]) -> None:
    """Write a profile to a file as a page, with the tables of a report.

    Raises:
        UsageError: it cannot be written.
    """
    from ..render import report_page

    name = path_of_rank(os.fspath(path))
    check_writable(name)
    write_file(name, report_page.render(recorded, report))


def load(path: str | PathLike[str]) -> SavedProfile:
    """Read a file that ``LineProfiler.save`` or ``pytorch-memlab run -o`` wrote, executing nothing.

    Raises:
        ProfileError: the file is no saved profile; the message says what it is.
    """
    return SavedProfile(saved_profile.load(read_text(path), os.fspath(path)))


def is_saved_profile(path: str | PathLike[str]) -> bool:
    """True if a file begins as a saved profile does, of any version."""
    try:
        with open(path, "rb") as file:
            return _BEGINNING.match(file.read(64)) is not None
    except OSError:
        return False


def read_text(path: str | PathLike[str]) -> str:
    """The text of a file that may be a saved profile.

    Raises:
        ProfileError: it cannot be read, or is no text; the message says what it is.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            head = file.read(1)
            rest = b"" if head in (_PICKLE, _ZIP) else file.read()
    except OSError as error:
        raise ProfileError(f"cannot read {name}: {error.strerror or error}") from None
    if not head:
        raise ProfileError(f"{name} is empty")
    if head == _PICKLE:
        raise ProfileError(
            f"{name} is a pickle, such as a memory snapshot, and no profile: pytorch-memlab peak "
            "reads snapshots"
        )
    if head == _ZIP:
        raise ProfileError(f"{name} is not a profile of pytorch_memlab: it is no JSON")
    return (head + rest).decode("utf-8", "surrogateescape")


def _by_name(func: object) -> object:
    """Functions as the names under which a file has them."""
    if func is None or isinstance(func, str):
        return func
    asked = func if isinstance(func, (list, tuple, set, frozenset)) else [func]
    return [
        name
        for one in asked
        for name in ([one] if isinstance(one, str) else [f.qual_name for f in resolve(one)])
    ]
