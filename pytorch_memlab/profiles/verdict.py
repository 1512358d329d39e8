"""The verdict on a device: did the program have enough memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ..records import ApproximationKind, LineEntry

if TYPE_CHECKING:
    from .recorded import MeasuredDevice, RecordedProfile

OUT_OF_MEMORY: Final = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
"""Beginning of the exception that ends a program without enough memory."""


class Outcome(Enum):
    """The outcome of a program on the memory of a device."""

    FITS = "fits"
    FITS_AS_COUNTED = "fits as far as memory is counted"
    FITTED_UNTIL_END = "fitted until the program ended early"
    HANDLED = "ran out of memory, which the program handled"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The verdict on the memory of one device."""

    measured: MeasuredDevice
    outcome: Outcome

    @property
    def free(self) -> int:
        one = self.measured
        return max(one.capacity - (one.taken or 0) - one.peak_reserved, 0)


def verdicts(profile: RecordedProfile) -> tuple[DeviceVerdict, ...]:
    """A verdict on each device that had memory in use, and whose memory is known."""
    if len(profile.runs) != 1:
        return ()
    known = [
        one
        for one in profile.devices
        if one.capacity and one.taken is not None and one.peak_active and one.device.name != "cpu"
    ]
    ran_out, uncounted = requests_that_failed(profile.entries), not_counted(profile.entries)
    failed = _failed_devices(profile, [one.device.name for one in known], ran_out)
    ended_early = any(run.exception for run in profile.runs)
    found = []
    for one in known:
        name = one.device.name
        if name in failed:
            outcome = Outcome.DOES_NOT_FIT
        elif ran_out.get(name):
            outcome = Outcome.HANDLED
        elif ended_early:
            outcome = Outcome.FITTED_UNTIL_END
        else:
            outcome = Outcome.FITS_AS_COUNTED if name in uncounted else Outcome.FITS
        found.append(DeviceVerdict(one, outcome))
    return tuple(found)


def not_counted(entries: Iterable[LineEntry]) -> set[str]:
    """Names of devices on which a simulation did not count all memory."""
    kinds = (ApproximationKind.UNMODELLED, ApproximationKind.UNCOUNTED)
    return {
        one.device.name
        for one in entries
        if any(approximation.kind in kinds for approximation in one.approximations)
    }


def requests_that_failed(entries: Iterable[LineEntry]) -> Mapping[str, int]:
    """Device name -> the most requests that failed in one hit of a line."""
    found: defaultdict[str, int] = defaultdict(int)
    for entry in entries:
        failed = entry.stats.get("num_ooms", 0)
        found[entry.device.name] = max(found[entry.device.name], failed)
    return found


def _failed_devices(
    profile: RecordedProfile, names: list[str], ran_out: Mapping[str, int]
) -> set[str]:
    """Devices that ran out of memory for good: those with a failed request, or the only one."""
    run = profile.runs[0]
    ended = run.exit_status not in (0, None) or run.exception
    if not (ended and profile.failures) and not run.exception.startswith(OUT_OF_MEMORY):
        return set()
    return {name for name in names if ran_out.get(name)} or set(names if len(names) == 1 else ())
