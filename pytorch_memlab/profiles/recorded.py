"""A profile with everything around it, as a file keeps it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size
from ..records import DeviceInfo, FunctionInfo, LineEntry, Note, Path, Section, Signed

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..history.model import AllocationHistory


UNKNOWN_STATUS: Final = -1
"""The exit status of a program that is over, where nothing tells it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program."""

    program: Path  # as the command line names it; empty in a notebook
    arguments: tuple[str, ...]
    # of ``pytorch_memlab``, ``torch``, ``python`` and, if torch has it, ``cuda``
    versions: Mapping[str, str]
    started: str  # when profiling began, in UTC as ISO 8601; empty if it did not
    seconds: float
    is_dry_run: bool
    exit_status: Signed | None = None  # of the program, or UNKNOWN_STATUS; None if it was not over
    exception: str = ""  # that ended the program, in one line; empty if none did
    rank: int = 0
    world_size: int = 1
    # by which a merged profile names the run, such as ``rank0``; empty in one of a run
    label: str = ""
    local_rank: int = 0
    node: int = 0
    attempt: int = 0  # of starting all ranks again after one of them died
    launcher: str = ""  # that started the ranks
    # of a file of a job: when it was written, in UTC as ISO 8601; the seconds between two times;
    # and the line at which the main thread was then, or at which the program ended
    written: str = ""
    save_every: float = 0.0
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device, and the most that it held while a recorded line ran."""

    device: DeviceInfo  # as reports name it; in a merged profile with the label of the run
    capacity: int  # its bytes
    peak_active: int  # bytes of blocks in use
    peak_allocated: int  # bytes that the program held
    peak_reserved: int  # bytes taken from the device
    # bytes of the capacity that the program could not have, such as those of the CUDA context;
    # None if that is not known
    taken: int | None = None
    # those of them for the CUDA context; None if they are known only with those of other programs
    context: int | None = None
    # whether a simulation did not count all of its memory, in recorded lines or elsewhere
    is_lower_bound: bool = False
    # whether the sizes that a dry run assumed are ``at most`` or ``at least`` the true ones, or
    # ``more or less``; empty if it assumed none
    assumed_sizes: str = ""
    # how often the allocator gave its cache back to the device to serve a request
    retries: int = 0
    # active bytes if all memory that is not counted is as large as it can be; None if that is not
    # known
    peak_at_most: int | None = None
    # bytes that one call takes at most and that are not counted, and those of them without which
    # it fails; None if that is not known
    uncounted_at_most: int | None = None
    needed_at_most: int | None = None
    # bytes of private pools, such as those of CUDA graphs: no other code gets what is free there
    private: int = 0
    # bytes that NCCL takes of the capacity beside them, an estimate with its bounds
    nccl: int = 0
    nccl_at_least: int = 0
    nccl_at_most: int = 0


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A line of the user's code that called a recorded function."""

    callee: int  # index of the function that was called
    caller: int | None  # index of the calling function, None if that was not recorded
    filename: Path
    function: str
    line: int
    hits: int
    # device name -> bytes that all the calls added together
    added: Mapping[str, Signed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrowingLoop:
    """A loop whose iterations leave memory, each as much as the one before."""

    function: int  # index of its function
    line: int  # at which it begins
    device: str
    rise: int  # bytes that one iteration leaves
    rises: int  # how many iterations in a row left so much
    hits: int  # how often its line was begun

    @property
    def nbytes(self) -> int:
        return self.rise * self.rises


@dataclass(frozen=True, slots=True)
class ShownRemedy:
    """A way out of an out-of-memory error, as the terminal shows it."""

    why: str
    code: str  # lines that a person writes; empty if there are none
    diff: str  # of the files of the program; empty where their lines are not known
    outcome: str  # of trying it, or that it was not tried


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The error that ended a program, as the terminal shows it."""

    traceback: str
    # what asked for how much, and what held the memory; empty if a GPU did not run out of it
    explanation: str = ""
    remedies: tuple[ShownRemedy, ...] = ()
    notes: tuple[str, ...] = ()  # what is not known of the remedies
    heading: str = ""  # of the remedies; empty in files of older releases


@dataclass(frozen=True, slots=True)
class RecordedProfile:
    """Everything that was recorded of one run, or of several that were merged."""

    runs: tuple[Run, ...]
    devices: tuple[MeasuredDevice, ...]
    # all that were profiled; lines and calls name them by their index
    functions: tuple[FunctionInfo, ...]
    entries: tuple[LineEntry, ...]  # the lines, whose ``code_id`` is the index of their function
    calls: tuple[RecordedCall, ...]
    columns: tuple[str, ...]
    shown: tuple[int, ...] | None = None  # indexes of the functions that it shows; None for all
    notes: tuple[Note, ...] = ()
    ends: tuple[Note, ...] = ()
    # what was said in addition to the tables, such as what holds the memory at the end
    sections: tuple[Section, ...] = ()
    peaks: Mapping[str, PeakHolders] = field(default_factory=dict)
    # index of a function and line at which a GPU ran out of memory -> bytes that the program
    # asked for there
    failures: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # every allocation and free, if that was asked for; None in a merged profile
    history: AllocationHistory | None = None
    # those of the runs of a merged profile, by their labels
    histories: Mapping[str, AllocationHistory] = field(default_factory=dict)
    errors: tuple[ProgramError, ...] = ()  # that ended the runs
    growing: tuple[GrowingLoop, ...] = ()  # loops of a run

    def all_histories(self) -> dict[str, AllocationHistory]:
        """The histories by the labels of their runs; the label of a single run is empty."""
        return ({} if self.history is None else {"": self.history}) | dict(self.histories)

    def why_no_peak(self, gpu: int | None = None) -> str:
        """Why it is not known what held the peak, in words that follow the name of the profile.

        Args:
            gpu: index of the GPU in question; None for all.
        """
        which = "" if gpu is None else f" of GPU {gpu}"
        end = "" if gpu is None else f"cuda:{gpu}"
        for device in self.devices:
            name = device.device.name
            if device.peak_active and "cuda:" in name and name.endswith(end):
                return (
                    f"does not tell what held the peak{which}: on a GPU run --history and"
                    " LineProfiler(..., history=True) record it"
                )
        return f"has no peak{which}: no memory was recorded in use"

    def __repr__(self) -> str:
        """The program, and how much was recorded of it."""
        return f"<{type(self).__name__} of {self.summary()}>"

    def summary(self) -> str:
        """Programs, how many functions and lines, and the peaks, in a few words."""
        names = dict.fromkeys(os.path.basename(run.program) or "a notebook" for run in self.runs)
        lines = len({(entry.code_id, entry.line) for entry in self.entries})
        parts = [counted(len(self.functions), "function"), counted(lines, "line")]
        parts += [
            f"peak {prose_size(device.peak_active)} on {device.device.name}"
            for device in self.devices
            if device.peak_active
        ]
        return f"{', '.join(names) or 'no run'}: {', '.join(parts)}"
