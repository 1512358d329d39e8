"""A program on a GPU beside the same program simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .._common.frames.user_code import base_name
from ..history.model import AllocationHistory
from ..history.recording_comparison import FileLine, RequestComparison, compare
from ..records import Approximation, mark
from .recorded import RecordedProfile


@dataclass(frozen=True, slots=True)
class Verification:
    """A recording, and the comparison of each of its GPUs with the simulation."""

    recording: str  # what it is, such as the name of its file
    gpu: str  # that was simulated
    comparisons: tuple[RequestComparison, ...]  # one for each GPU of the recording
    marks: Mapping[FileLine, str]  # of the lines of the simulated program, as its table has them
    is_dry_run: bool

    @property
    def is_equal(self) -> bool:
        return all(comparison.is_equal for comparison in self.comparisons)


def verification(
    name: str,  # the recording's
    recorded: AllocationHistory,  # of a GPU
    # a run with its history, from the first allocation of the program on
    simulated: RecordedProfile,
    *,
    is_whole: bool,  # the recording is of the whole program too
) -> Verification:
    """Compare a recording with a simulated run of its program."""
    # Raises LookupError if the simulation has no history, or has not used a GPU of the recording.
    history = simulated.history
    if history is None:
        raise LookupError("the simulated run has no history")
    return Verification(
        name,
        simulated.devices[0].device.description if simulated.devices else "",
        tuple(
            compare(recorded, history, device, is_whole=is_whole)
            for device in recorded.used_devices()
        ),
        _marks(simulated),
        simulated.runs[0].is_dry_run,
    )


def _marks(profile: RecordedProfile) -> dict[FileLine, str]:
    approximations: defaultdict[FileLine, list[Approximation]] = defaultdict(list)
    for entry in profile.entries:
        file = base_name(profile.functions[entry.code_id].filename)
        approximations[FileLine(file, entry.line)] += entry.approximations
    return {line: mark(of_line) for line, of_line in approximations.items()}
