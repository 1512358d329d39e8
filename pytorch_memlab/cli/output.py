"""The report of a command, in the terminal or in a file of the format that its name asks for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Generic, TypeVar

from .._common.process.checked_file import CheckedFile
from .._common.process.ranks import path_of_rank, prints
from .._common.process.standard_output import write_to_stdout
from .._common.text.shared_paths import private_names
from ..errors import UsageError
from ..render.output_format import RunResults
from ..render.outputs import output_formats
from .exit_codes import USAGE_ERROR

if TYPE_CHECKING:
    from ..profiles.overview import Choice
    from ..profiles.recorded import RecordedProfile

T = TypeVar("T")


class OutputFile(Generic[T]):
    """A file for one kind of results: checked now, and written in the format of its ending."""

    def __init__(
        self,
        name: str,
        kind: type[T],
        *,
        keeps_older: bool = False,
        is_private: bool = False,
    ) -> None:
        formats = output_formats(kind)
        longest_first = sorted(formats, key=len, reverse=True)
        ending = next(
            (candidate for candidate in longest_first if name.lower().endswith(candidate)), None
        )
        if ending is None:
            raise UsageError(f"cannot tell the format of {name}: end it in {', '.join(formats)}")
        self._file = CheckedFile(name, keeps_older=keeps_older)
        self.format = formats[ending]
        self._is_private = is_private
        self.format.check()

    def write(self, data: T, what: str, *, says_where: bool = True) -> bool:
        """Write it whole, or not at all."""
        with private_names(self._is_private):
            name = self._file.write_or_tell(lambda: self.format.render(data))
        if name is not None and says_where:
            print(f"{what} written to {name}", file=sys.stderr)
        return name is not None


def write_all(files: Sequence[OutputFile[T]], data: T, what: str) -> int:
    """Write all files of a command; the exit code."""
    written = [file.write(data, what) for file in files]
    return 0 if all(written) else USAGE_ERROR


def results_of(
    profile: RecordedProfile,
    columns: Sequence[str] | None,
    choice: Choice | None,
    *,
    tells_runs: bool,
) -> RunResults:
    """The results of a profile with some columns; without any, with those that the run showed."""
    from ..line_profiler.columns import DEFAULT_COLUMNS
    from ..line_profiler.saved_profile import SavedProfile
    from ..profiles.device_verdicts import verdicts
    from ..profiles.overview import COLUMNS, Choice, overview
    from ..render.run_notes import run_note, run_notes, sentences

    limits = choice not in (None, Choice())
    if limits and len(profile.runs) > 1:
        raise UsageError(
            "the profile is of several runs: --top, --sort and --all are for the report of one run"
        )
    saved = SavedProfile(profile)
    of_each_device = saved.report_of_each_device(None, columns)
    report = saved.over_devices(of_each_device)
    run_overview = None
    shows_usual = columns is not None or profile.columns == DEFAULT_COLUMNS
    if choice is not None and len(profile.runs) == 1 and (shows_usual or limits):
        all_shown = saved.display(None, columns or (COLUMNS if shows_usual else None)).report
        notes = (*all_shown.notes, *map(run_note, profile.runs if tells_runs else ()))
        run_overview = (
            overview(profile, replace(all_shown, notes=notes), choice) if all_shown.tables else None
        )
    verdict = sentences(verdicts(profile)) if report.tables else ()
    of_runs = run_notes(profile) if tells_runs else ()
    report = replace(report, notes=(*verdict, *report.notes, *of_runs))
    recorded = replace(profile, columns=of_each_device.columns)
    return RunResults(report, run_overview, recorded, recorded, of_each_device)


def writer_to(
    paths: Sequence[str], *, force: bool = False, is_private: bool = False
) -> Callable[[RunResults], bool]:
    """A function that writes results to files, or without any to standard output."""
    # The files are checked now. Each process that ``torchrun`` started writes its own, and one of
    # them prints. If a file cannot be written after all, standard output gets the tables, and the
    # function returns False.
    if not paths:
        return _to_terminal if prints() else lambda _results: True
    files = [
        OutputFile(
            path_of_rank(path),
            RunResults,
            keeps_older=is_profile(path) and not force,
            is_private=is_private,
        )
        for path in paths
    ]

    def write(results: RunResults) -> bool:
        written = [file.write(results, "memory profile", says_where=prints()) for file in files]
        if not all(written):
            _to_terminal(results)
        return all(written)

    return write


def tell_headline(results: RunResults) -> None:
    """Print the peaks and verdicts of a run whose report went to files, on standard error."""
    from ..profiles.overview import headlines_of
    from ..render import text

    if not prints() or sys.stderr is None:
        return
    run_overview = results.overview
    opening = (
        headlines_of(results.recorded)
        if run_overview is None
        else (run_overview.headlines, run_overview.failure)
    )
    text.write_headline(*opening, sys.stderr)


def is_profile(path: str) -> bool:
    """True for a name that ends in ``.json``."""
    return PurePath(path).suffix.lower() == ".json"


def _to_terminal(results: RunResults) -> bool:
    from ..render import text

    write_to_stdout(partial(text.write, results.overview or results.report))
    return True
