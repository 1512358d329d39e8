"""Recorded lines of a profiler or a file: they display, print, compare and save themselves."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from io import TextIOBase
from typing import TYPE_CHECKING, Any, TextIO

from .._common.frames.call_results import is_result_dropped
from .._common.process.checked_file import CheckedFile
from .._common.process.ipython import ipython_shell
from .._common.process.ranks import path_of_rank
from .._common.process.standard_output import without_encoding_errors
from .._common.text.quoted import quoted
from .._common.text.shared_paths import private_names
from ..errors import UsageError
from ..records import Report
from ..render import text
from .line_records import RecordsDisplay

if TYPE_CHECKING:
    from os import PathLike

    from ..profiles.recorded import RecordedProfile
    from .profile_difference import ProfileDifference


class RecordedLines(ABC):
    """Lines that display, print and save themselves: a profiler's, or those of a file."""

    @abstractmethod
    def recorded(self) -> RecordedProfile:
        """Everything recorded so far and what is known of the run, as ``save`` writes it."""

    @abstractmethod
    def _display(self, func: Any, columns: str | Iterable[str] | None) -> RecordsDisplay: ...

    def display(
        self, func: Any = None, columns: str | Iterable[str] | None = None
    ) -> RecordsDisplay:
        """The recorded lines: a table with bars in a notebook, text elsewhere.

        It is shown at once where nothing gets the result, as in a script.

        Args:
            func: a function, its qualified name, or several; None for all, of a saved profile for
                those that the run showed.
            columns: fields of ``torch.cuda.memory_stats()`` such as ``allocated_bytes.all.peak``,
                its short names ``peak`` (active bytes), ``reserved`` (its peak) and ``current``
                (active bytes), or ``hits``, ``kept`` (bytes that a hit
                allocated and did not free), ``freed`` (bytes from before that it freed), ``delta``
                (the first less the second; the mean of a hit, as these), ``temporary``
                (bytes in use beyond those of the start and the end), ``time`` (seconds). A
                statistic over several hits is the maximum; of what is allocated, freed and counted
                (``num_ooms``), that of a single hit. None for ``DEFAULT_COLUMNS``, of a saved
                profile for those that the run showed.

        Returns:
            an object that renders itself.

        Raises:
            UnknownColumnError: the message lists the near ones.
            UsageError: the function is not registered.
        """
        result = self._display(func, columns)
        if is_result_dropped(sys._getframe(1)):
            show(result)
        return result

    def print_stats(
        self,
        func: Any = None,
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
            UsageError: the function is not registered.
        """
        if isinstance(func, TextIOBase):
            raise UsageError("print_stats takes a stream as print_stats(stream=...)")
        stream = sys.stdout if stream is None else stream
        write(self._display(func, columns), stream)

    def report_of_each_device(
        self, func: Any = None, columns: str | Iterable[str] | None = None
    ) -> Report:
        """The tables as data, in a merged profile one for each function and device."""
        return self._display(func, columns).report

    def diff(self, other: RecordedLines) -> ProfileDifference:
        """The differences from these lines to those of another profile, a later one.

        Args:
            other: a ``LineProfiler``, or a profile that ``load`` read.

        Returns:
            an object that a notebook shows as tables and ``print`` as text; ``to_dataframe()``
            has the lines.

        Raises:
            UsageError: it is something else.
        """
        from .profile_difference import ProfileDifference

        if not isinstance(other, RecordedLines):
            raise UsageError(f"diff takes a profiler or a loaded profile, not {quoted(other)}")
        return ProfileDifference(self.recorded(), other.recorded())

    def save(
        self, path: str | PathLike[str], *, force: bool = False, private: bool = False
    ) -> None:
        """Write everything recorded so far to a file, which ``load`` reads.

        The command line reads it too: ``pytorch-memlab show FILE``, ``top``, ``diff`` and others.

        Args:
            path: of the file, such as ``train.memlab.json``. ``{rank}`` and ``{pid}`` are filled
                in.
            force: write it also where there is such a file already.
            private: leave out the program's arguments, the message of its error, and the folders
                of its files, as ``pytorch-memlab run --private`` does.

        Raises:
            UsageError: there is one, or it cannot be written; the older one is as it was.
        """
        from ..profiles.privacy import without_private_facts
        from ..render.notes import in_words
        from ..saved import profile_file

        file = CheckedFile(path_of_rank(os.fspath(path)), keeps_older=not force)
        recorded = self.recorded()
        with private_names(private):
            recorded = without_private_facts(recorded) if private else recorded
            file.write(profile_file.text_of(in_words(recorded)))

    def to_html(self, path: str | PathLike[str], *, private: bool = False) -> None:
        """Write everything recorded so far to a page, which a browser shows without a network.

        The page has the lines with the memory that each kept, what held the memory at the peak,
        and, with ``history=True``, the memory over time. A page that is there is overwritten.

        Args:
            path: of the file, such as ``report.html``. ``{rank}`` and ``{pid}`` are filled in.
            private: leave out the program's arguments, the message of its error, and the folders
                of its files.

        Raises:
            UsageError: it cannot be written; an older page is as it was.
        """
        from ..profiles.privacy import private_report, without_private_facts
        from ..render import report_page

        file = CheckedFile(path_of_rank(os.fspath(path)))
        recorded, report = self.recorded(), self.report_of_each_device()
        if private:
            recorded, report = without_private_facts(recorded), private_report(report)
        with private_names(private):
            file.write(report_page.render(recorded, report))

    def __str__(self) -> str:
        """The tables, as ``print_stats`` prints them."""
        return repr(self._display(None, None))

    def _repr_html_(self) -> str:
        """The tables of all functions: a notebook shows them for an object that ends a cell."""
        return self._display(None, None)._repr_html_()


def show(display: RecordsDisplay) -> None:
    """Show tables now: in IPython as the result of a cell, elsewhere on ``sys.stdout``."""
    if ipython_shell() is not None:
        from IPython.display import display as show_in_cell

        show_in_cell(display)
    else:
        write(display, sys.stdout)


def write(display: RecordsDisplay, stream: TextIO | None) -> None:
    """Write tables as text, with colours in a terminal."""
    if stream is None:  # ``sys.stdout`` where it was closed
        return
    with without_encoding_errors(stream):
        if stream.isatty():
            text.write(display.report, stream)
        else:
            stream.write(f"{display}\n")
