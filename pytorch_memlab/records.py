"""Measured data, as plain records: profilers and reporters make them, renderers show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

Signed = Annotated[int, "may be negative"]
"""An integer that may be negative: other ones of records are from 0 on."""

Path = Annotated[str, "of a file of this machine"]
"""A path, which files of others keep without the folders of this machine."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as reports name it."""

    name: str  # as torch names it, such as ``cuda:0``
    description: str  # what the hardware is, such as ``NVIDIA H100 80GB HBM3``
    simulated: bool  # True when no such hardware was there


def hardware(description: str, simulated: bool) -> str:
    """The name of hardware, and that it is simulated, which the name of a size says itself.

    >>> hardware("Tesla T4", True), hardware("Simulated GPU (24.00 GiB)", True)
    ('simulated Tesla T4', 'Simulated GPU (24.00 GiB)')
    """
    says_so = description.startswith("Simulated GPU")
    return f"simulated {description}" if simulated and not says_so else description


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A profiled function and its source."""

    qual_name: str  # the function's ``__qualname__``
    filename: Path  # the file that its code names
    first_line: int  # number of the first line of ``source``
    # the lines without their ends, None where there is no source to be had
    source: tuple[str, ...] | None
    # first and last lines of parts of the source that are not shown
    folded: tuple[tuple[int, int], ...] = ()

    def __hash__(self) -> int:
        """Of the place: tables look functions up for every line, and the source may be long."""
        return hash((self.qual_name, self.filename, self.first_line))

    def text_of(self, line: int) -> str:
        """The text of a line, by its number; empty where there is no source."""
        index = line - self.first_line
        return self.source[index] if self.source and 0 <= index < len(self.source) else ""

    def folded_lines(self) -> set[int]:
        """Numbers of the lines of the source that are not shown."""
        first, end = self.first_line, self.first_line + len(self.source or ())
        return {
            line
            for begin, last in self.folded
            for line in range(max(begin, first), min(last + 1, end))
        }


class ApproximationKind(Enum):
    """The kinds of things that a simulation does not know.

    ``UNMODELLED``: the memory of an op's kernels on top of its results; none of it is counted.
    ``UNCOUNTED``: the size of some memory that an op's kernels take; the rest is counted.
    ``ESTIMATED``: whether what was counted for them is right. ``ASSUMED``: a value that the
    program read. Of a size that values decide and a dry run does not know: ``AT_MOST``,
    ``AT_LEAST``, ``EITHER`` (it may be more or less), and ``GIVEN`` if the user said how much.
    """

    UNMODELLED = "unmodelled"
    UNCOUNTED = "uncounted"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    EITHER = "more or less"
    GIVEN = "given"


NOT_COUNTED = frozenset({ApproximationKind.UNMODELLED, ApproximationKind.UNCOUNTED})
"""The kinds of memory that is missing in a number."""

ASSUMED_SIZES = frozenset(
    {ApproximationKind.AT_MOST, ApproximationKind.AT_LEAST, ApproximationKind.EITHER}
)
"""The kinds of sizes that a dry run assumed."""

SIZES_OF_VALUES = ASSUMED_SIZES | {ApproximationKind.GIVEN}
"""The kinds of sizes that values decide."""

OF_VALUES = SIZES_OF_VALUES | {ApproximationKind.ASSUMED}
"""The kinds that have to do with values."""

ApproximationKey = tuple[ApproximationKind, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Approximation:
    """Something that a simulation did without knowing all of it."""

    kind: ApproximationKind  # what was not known
    name: str  # of the op, without its overload, or of the call that read
    calls: int  # how often
    # bytes that an unmodelled op returned, bytes that an estimated one took on top of its
    # results, otherwise 0; over all calls
    nbytes: int = 0
    assumption: str = ""  # of a read or a size: what was taken in place of values
    place: str = ""  # of a read or a size: ``file:line`` of the innermost line of the program
    unknown: str = ""  # of memory that is not counted: what it is, such as ``cuDNN workspaces``
    # of memory that is not counted: bytes that one call takes at most; None if no bound is known
    at_most: int | None = None
    gives_way: bool = False  # whether less does where there is no room for so much

    @property
    def key(self) -> ApproximationKey:
        """All but the numbers: what tells two approximations apart."""
        return self.kind, self.name, self.assumption, self.place, self.unknown

    def __add__(self, other: Approximation) -> Approximation:
        return replace(
            self,
            calls=self.calls + other.calls,
            nbytes=self.nbytes + other.nbytes,
            at_most=largest_bound(self.at_most, other.at_most),
            gives_way=self.gives_way and other.gives_way,
        )

    def minus(self, before: Approximation) -> Approximation:
        """The part that came after ``before``."""
        return replace(self, calls=self.calls - before.calls, nbytes=self.nbytes - before.nbytes)


def largest_bound(*bounds: int | None) -> int | None:
    """The bound of several calls, each in bytes; None if one of them has none.

    >>> largest_bound(1024, 512), largest_bound(1024, None)
    (1024, None)
    """
    sizes = [bound for bound in bounds if bound is not None]
    return max(sizes, default=0) if len(sizes) == len(bounds) else None


def uncounted_at_most(
    approximations: Iterable[Approximation], *, is_needed: bool = False
) -> int | None:
    """Bytes that a call takes at most and that are not counted; None if no bound is known."""
    # Needed is memory without which the call fails.
    return largest_bound(
        *(
            approximation.at_most
            for approximation in approximations
            if approximation.kind in NOT_COUNTED and not (is_needed and approximation.gives_way)
        )
    )


def merge_approximations(approximations: Iterable[Approximation]) -> tuple[Approximation, ...]:
    """Approximations of one key added up, in the order in which the keys first come."""
    sums: dict[ApproximationKey, Approximation] = {}
    for approximation in approximations:
        former = sums.get(approximation.key)
        sums[approximation.key] = approximation if former is None else former + approximation
    return tuple(sums.values())


def mark(approximations: Iterable[Approximation]) -> str:
    """The sign of a number, of what is least known of it.

    >>> mark([Approximation(ApproximationKind.ESTIMATED, "mean", 1, 512)])
    '~'
    """
    # ``*`` if it rests on values that are not there, ``?`` if something is not counted, so that it
    # is a lower bound, ``~`` if something is estimated.
    kinds = {approximation.kind for approximation in approximations}
    return "*" if kinds & OF_VALUES else "?" if kinds & NOT_COUNTED else "~" if kinds else ""


@dataclass(frozen=True, slots=True)
class PeakShare:
    """The peak of a simulated GPU, and how well it is known."""

    device: str  # as torch names it, such as ``cuda:0``
    active: int  # most active bytes since the simulation began
    # those among them that no recording confirms: blocks that kernels held on top of their
    # results, and results and workspaces whose sizes are estimates
    estimated: int
    approximations: tuple[Approximation, ...]  # on that GPU since the simulation began
    # active bytes if all memory that is not counted is as large as it can be; None if that is not
    # known
    at_most: int | None = None

    @property
    def is_exact(self) -> bool:
        """True if all memory that was taken is exact, at the peak and elsewhere."""
        exact = {ApproximationKind.ASSUMED, ApproximationKind.GIVEN}
        return not self.active or self.kinds <= exact

    @property
    def is_lower_bound(self) -> bool:
        """True if some memory of that GPU was not counted."""
        return bool(self.kinds & NOT_COUNTED)

    @property
    def assumed_sizes(self) -> str:
        """Assumed sizes are ``at most`` or ``at least`` the true ones, or ``more or less``.

        Empty if none was assumed.
        """
        return bound_of(kind.value for kind in self.kinds & ASSUMED_SIZES)

    @property
    def bound(self) -> str:
        """The same of the peak, which memory that is not counted makes a lower bound."""
        return bound_of([self.assumed_sizes, "at least" * self.is_lower_bound])

    @property
    def kinds(self) -> frozenset[ApproximationKind]:
        """The kinds of what is not known of that GPU."""
        return frozenset(approximation.kind for approximation in self.approximations)


def bound_of(sides: Iterable[str]) -> str:
    """The bound that several make, each ``at most``, ``at least``, ``more or less`` or empty.

    >>> bound_of(["at least", ""]), bound_of(["at least", "at most"])
    ('at least', 'more or less')
    """
    different = {*sides} - {""}
    return "more or less" if len(different) > 1 else "".join(different)


@dataclass(frozen=True, slots=True)
class LineEntry:
    """One line of one function on one device, over all its hits."""

    code_id: int  # key of the function
    line: int  # line number in the file
    device: DeviceInfo  # where it was measured
    hits: int  # how often the line was begun
    time: float  # seconds spent in the line, calls included
    # bytes that a hit allocated, calls included, and that were in use when it ended; and bytes from
    # before that it freed; each the mean of a hit
    kept: int
    freed: int
    # ``group.pool.metric`` -> the maximum over the hits, in bytes or counts; and what
    # ``scopes/intervals.py`` measures, such as ``temporary``
    stats: Mapping[str, int]
    # what a simulation did in the line without knowing all of it, calls included
    approximations: tuple[Approximation, ...] = ()
    # hits in a row that began with as many bytes more than the hit before, and these bytes; a
    # saved profile has the loops that grow in their place
    rises: int = field(default=0, compare=False)
    rise: int = field(default=0, compare=False)

    @property
    def delta(self) -> int:
        """Bytes that a hit added, its mean; negative if it freed more than it kept."""
        return self.kept - self.freed

    @property
    def added(self) -> int:
        """Bytes that all hits added together."""
        return self.delta * self.hits


def mean(total: int, hits: int) -> int:
    """The mean of a hit, in whole bytes."""
    return round(total / max(hits, 1))


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """One function's lines on one device."""

    function: FunctionInfo  # what was profiled
    device: DeviceInfo  # where it was measured
    # line number -> values in the order of ``Report.columns``, None where not measured
    rows: Mapping[int, tuple[int | float | None, ...]]
    # line number -> what a simulation approximated there; only lines that have any, in order
    approximations: Mapping[int, tuple[Approximation, ...]] = field(default_factory=dict)
    # line number -> bytes that the program asked for there when the GPU had too few
    failed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report without lines of functions, such as the holders of the memory."""

    title: str  # what the rows are
    columns: tuple[str, ...] = ()  # headings of the values
    # a name and its values in bytes, None where a value is not known
    rows: tuple[tuple[str, tuple[Signed | None, ...]], ...] = ()
    notes: tuple[str, ...] = ()  # lines said below the rows, or in their place


@dataclass(frozen=True, slots=True)
class FilesOfRun:
    """Files and commands of a dry run."""

    not_changed: tuple[str, ...] = ()  # paths, as the program named them
    started: tuple[str, ...] = ()  # commands whose writes are on the disk
    refused: tuple[str, ...] = ()  # commands that were not started


class NoteKind(Enum):
    """The meaning of a note, which says it of the names that it has."""

    SWITCHED_OFF = "the user turned profiling off"
    SIMULATED_GPUS = "devices were simulated, of one description"
    CPU_TENSORS = "the tensors of the CPU were measured"
    CPU_TENSORS_WITHOUT_GPU = "the same, where there is no GPU"
    FILES_NOT_CHANGED = "files and folders that a dry run did not change"
    COMMANDS_STARTED = "commands of a dry run whose writes it did not hold back"
    COMMANDS_REFUSED = "commands that a dry run did not start"
    UNMET_ASSUMPTIONS = "sizes that the user gave a dry run, and that nothing asked for"
    STALE_SOURCES = "functions whose files had changed before they were registered"
    EDITED_FUNCTIONS = "functions that have other code than when they were registered"
    DID_NOT_RUN = "functions of the report without a line"
    DID_NOT_RUN_BEFORE_END = "the same, where tracing ended"
    IDLE_DEVICES = "devices that were measured, and on which no memory was in use"
    NO_FUNCTIONS = "no function was registered"
    EVENTS_DROPPED = "a device whose history lacks its oldest events; how many are left of how many"
    EVENTS_MAY_BE_MISSING = "the same, where nothing tells whether there were more than are left"
    KEPT_AT_LEAST = "devices that count bytes, and do not tell old ones from new ones"


@dataclass(frozen=True, slots=True)
class Remark:
    """A note of one of the kinds."""

    kind: NoteKind
    names: tuple[str, ...] = ()  # of devices, functions or files; or what the user gave
    description: str = ""  # of simulated GPUs; of a history, its events


def remarks_on_files(all_files: Iterable[FilesOfRun | None]) -> list[Remark]:
    """Notes on what dry runs did not change or hold back, each path and command once."""
    several = [files for files in all_files if files is not None]
    kinds = {
        NoteKind.FILES_NOT_CHANGED: [path for files in several for path in files.not_changed],
        NoteKind.COMMANDS_STARTED: [name for files in several for name in files.started],
        NoteKind.COMMANDS_REFUSED: [name for files in several for name in files.refused],
    }
    return [Remark(kind, tuple(dict.fromkeys(names))) for kind, names in kinds.items() if names]


@dataclass(frozen=True, slots=True)
class Approximated:
    """Approximations in the profiled lines, all of one kind."""

    approximations: tuple[Approximation, ...]


@dataclass(frozen=True, slots=True)
class TracingEnded:
    """Lines of a thread are missing; ``where`` is such as ``at train.py:12``."""

    where: str
    in_main_thread: bool
    began_again: bool


Note = str | Remark | Approximated | PeakShare | TracingEnded
"""A note of a report, which ``render`` puts into words; one of a saved profile has them."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a renderer needs."""

    columns: tuple[str, ...]  # names of the columns, such as ``active_bytes.all.peak``, ``hits``
    tables: tuple[FunctionTable, ...]  # one for each function and device
    # shown below the tables, such as which GPU was simulated or why there is no data
    notes: tuple[Note, ...]
    sections: tuple[Section, ...] = ()  # shown between the tables and the notes
