"""The files of ``run -o``, of all formats, and that of ``run --oom-report``."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..._common.process.checked_file import CheckedFile
from ..._common.process.own_frames import text_of
from ..._common.process.ranks import path_of_rank, prints
from ..._common.process.uncaught_errors import uncaught
from ..._common.text.secrets_in_arguments import masked
from ..._common.text.shared_paths import private_names
from ...errors import UsageError
from ...history.private_snapshot import private_snapshot
from ...history.whole_run import WholeRunHistory
from ...jobs.black_box import BlackBox
from ...jobs.folder import ENDING, JobFolder, is_job_folder
from ...profiles.recorded import ProgramError
from ...render.output_format import RunResults, TimelineResults
from ...render.outputs import output_formats
from ...simulation.inspect import active
from ..output import OutputFile, is_profile, tell_headline, writer_to

if TYPE_CHECKING:
    from ..._common.process.uncaught_errors import ErrorReport
    from ...history.model import AllocationHistory
    from .program_profile import Profile
    from .remedies import RemedyTrials

_TRACES = (".pickle", ".pkl")

_PROTOCOL = 4
"""The newest that PyTorch's web viewer reads."""


class RunFiles:
    """The files that a run writes at its end, checked before the program runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        names: Sequence[str] = options.outputs or ()
        of_report = output_formats(RunResults)
        of_picture = tuple(
            ending for ending in output_formats(TimelineResults) if ending not in of_report
        )
        jobs = [name for name in names if is_job_folder(name)]
        _check_formats(names, (*of_report, *_TRACES, *of_picture, ENDING))
        _check_options(options, names, jobs)
        self._has_page = any(name.lower().endswith(".html") for name in names)
        self._saves_history = options.history
        traces = [name for name in names if name.lower().endswith(_TRACES)]
        pictures = [name for name in names if name.lower().endswith(of_picture)]
        reports = [name for name in names if name not in (*traces, *pictures, *jobs)]
        force = options.force
        arguments = () if options.private else masked(options.arguments)
        command = " ".join([os.path.basename(options.script), *arguments])
        self.names = names
        self.has_report = bool(reports or jobs)
        self.are_written = True
        """False once one of them could not be written."""
        self._is_private = options.private
        self._names_job = not options.job_is_temporary
        self._write_report = writer_to(reports, force=force, is_private=options.private)
        self._writes_reports = bool(reports) or not jobs
        self.history = WholeRunHistory(keeps_events=bool(traces or pictures))
        self._traces = [CheckedFile(path_of_rank(trace), keeps_older=not force) for trace in traces]
        self._pictures = [TimelinePicture(picture, command, options.device) for picture in pictures]
        self.black_box: BlackBox | None = None
        """What writes the profile into the folder of the job, if that is asked for."""
        if jobs:
            folder = JobFolder(jobs[0], replaces_older=force)
            every = options.save_every
            self.black_box = BlackBox(folder, every, is_private=options.private)

    @property
    def need_history_of_torch(self) -> bool:
        """True if PyTorch's own memory history is written, or drawn for a real GPU."""
        return bool(self._traces or (self._pictures and active.machine is None))

    @property
    def need_allocations(self) -> bool:
        """True if the profile keeps every allocation on simulated GPUs."""
        is_drawn = self._has_page and active.machine is not None
        return bool(self._pictures) or self._saves_history or is_drawn

    def write(self, results: RunResults) -> None:
        """Write the report, or print it."""
        is_written = self._write_to_job(results)
        if self._writes_reports or not is_written:
            is_written &= self._write_report(results)
        self._note(is_written)
        if self.has_report and is_written:
            tell_headline(results)

    def _write_to_job(self, results: RunResults) -> bool:
        if self.black_box is None:
            return True
        try:
            name = self.black_box.finish(results.recorded, sys.exc_info()[1])
        except UsageError as error:
            print(error, file=sys.stderr)
            return False
        if name is not None and self._names_job and prints():
            print(f"memory profile written to {name}", file=sys.stderr)
        return True

    def finish_with(self, ending: ExitStack, profile: Profile) -> None:
        """Let traces and pictures be written when a stack closes, the traces first."""
        process = os.getpid()

        def finish(write: Callable[..., bool], *data: object) -> None:
            if os.getpid() == process:  # not in one that the program forked
                self._note(write(*data))

        for picture in reversed(self._pictures):  # the stack ends with the first one
            ending.callback(finish, picture.finish, profile, self.history)
        for trace in self._traces:
            ending.callback(finish, self._write_trace, trace)

    def _write_trace(self, file: CheckedFile) -> bool:
        """Write the memory history of a run, in PyTorch's own format."""
        snapshot = self.history.snapshot()
        if self._is_private:
            snapshot = private_snapshot(snapshot)
        name = file.write_or_tell(lambda: lambda opened: pickle.dump(snapshot, opened, _PROTOCOL))
        if name is not None and prints():
            count = sum(map(len, snapshot["device_traces"]))
            print(f"memory history written to {name}: {count:,} events", file=sys.stderr)
        return name is not None

    def _note(self, is_written: bool) -> None:
        self.are_written &= is_written


def _check_formats(names: Sequence[str], endings: tuple[str, ...]) -> None:
    for name in names:
        if not (name.lower().endswith(endings) or is_job_folder(name)):
            formats = ", ".join(endings)
            raise UsageError(f"cannot tell the format of {name}: end it in {formats}")


def _check_options(options: argparse.Namespace, names: Sequence[str], jobs: Sequence[str]) -> None:
    """Refuse options that are for files which are not written, and two folders of jobs."""
    if options.history and not (jobs or any(map(is_profile, names))):
        raise UsageError("--history is for the profile: give -o FILE.json too")
    if options.history_max is not None and not options.history:
        raise UsageError("--history-max limits --history: give --history too")
    if options.save_every is not None and not jobs:
        raise UsageError("--save-every is for the folder of a job: give -o NAME.memlab too")
    if len(jobs) > 1:
        raise UsageError(f"-o {jobs[0]} and -o {jobs[1]} are two folders: give one")


class TimelinePicture:
    """The file that gets the timeline of a run, checked before there is one."""

    def __init__(self, path: str, command: str, device: str | None = None) -> None:
        self._device = device  # the only one that is drawn
        self._file = OutputFile(path_of_rank(path), TimelineResults)
        self._command = command

    def finish(self, profile: Profile, whole_run: WholeRunHistory) -> bool:
        """Draw and write it; False if it cannot be written."""
        import torch

        from ...devices import get_device
        from ...history.model import device_name
        from ...history.timeline import timeline_of

        history = _history(profile, whole_run)
        measured = None if self._device is None else get_device(self._device).name
        used = [
            used_device
            for used_device in history.used_devices()
            if measured in (None, device_name(used_device))
        ]
        if not used:
            print("no timeline is drawn: the program used no GPU", file=sys.stderr)
            return True
        gpus = [torch.cuda.get_device_properties(device) for device in used]
        timelines = [
            timeline_of(history, device, gpu.total_memory)
            for device, gpu in zip(used, gpus, strict=True)
        ]
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        kind = ", simulated" if active.machine is not None else ""
        drawing = TimelineResults(timelines, f"{self._command} · {names}{kind}")
        return self._file.write(drawing, "timeline", says_where=prints())


def _history(profile: Profile, whole_run: WholeRunHistory) -> AllocationHistory:
    """All allocations of the run; nothing if the program used no GPU."""
    import torch

    from ...history.model import AllocationHistory
    from ...history.snapshot import history_of

    if active.machine is not None:
        return profile.history()
    if not torch.cuda.is_initialized():
        return AllocationHistory((), ((),))
    return history_of(whole_run.snapshot())


def _program_error(error: BaseException, report: ErrorReport | None) -> ProgramError | None:
    """The error that ended the program, as the terminal shows it; None for an interrupt."""
    if not isinstance(error, Exception):
        return None
    text = text_of(error)
    if report is None or report.facts is None:
        return ProgramError(text)
    from ...render import oom

    return oom.program_error(report.facts, report.advice, text)


class OutOfMemoryReport:
    """Explains an out-of-memory error that the program does not handle."""

    def __init__(
        self, path: str | None, remedies: RemedyTrials | None, *, is_private: bool
    ) -> None:
        self._file = None if path is None else CheckedFile(path_of_rank(path))
        self._is_private = is_private
        self._remedies = remedies
        self.is_written = True
        """False if there was a report, and it could not be written."""

    def start(self, process: ExitStack) -> None:
        """Begin to wait for an error, also one of a thread."""
        with uninterrupted(*STANDARD_SIGNALS):
            uncaught.watch()
            process.callback(uncaught.unwatch)
            uncaught.told.append(self._write)
            process.callback(uncaught.told.remove, self._write)

    def finish(self, profile: Profile) -> None:
        """Make the report of the error that ended the program, if it ran out of memory."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, SystemExit):
            return
        report = uncaught.add(error)
        profile.note_failure(error)
        if report is not None and self._remedies is not None:
            self._remedies.add_to(report)
        profile.error = _program_error(error, report)
        if report is not None:
            self._write(error, report)

    def _write(self, error: BaseException, report: ErrorReport) -> None:  # noqa: ARG002 - every function in told gets it
        if self._file is None or report.is_written:
            return
        report.is_written = True
        with private_names(self._is_private):
            text = self._text(report)
        self.is_written = self._file.write_or_tell(lambda: text) is not None

    def _text(self, report: ErrorReport) -> str:
        facts, advice = report.facts, report.advice
        if facts is None or self._file is None:
            return report.text
        from ...render import oom

        if self._is_private and advice is not None:
            advice = replace(advice, untried=advice.untried.partition(":")[0])
        if self._file.ending == ".json":
            return json.dumps(oom.data(facts, advice), indent=1) + "\n"
        return oom.text(facts, advice) if self._is_private else report.text
