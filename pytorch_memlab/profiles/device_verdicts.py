"""The verdict on each device that a program used: whether its memory was enough."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..records import NOT_COUNTED, ApproximationKind
from .recorded import UNKNOWN_STATUS, MeasuredDevice, RecordedProfile

OUT_OF_MEMORY: Final = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
"""Beginning of the exception that ends a program without enough memory."""


_AT_MOST: Final = ApproximationKind.AT_MOST.value
_AT_LEAST: Final = ApproximationKind.AT_LEAST.value


class FitOutcome(Enum):
    """The outcome of a program on the memory of a device."""

    FITS = "fits"
    FITS_EITHER_WAY = "fits either way"
    FITS_AS_COUNTED = "fits as far as memory is counted"
    MAY_NOT_FIT = "may not fit"
    FITS_AS_ASSUMED = "fits with the assumed sizes"
    FITTED_UNTIL_END = "fitted until the program ended early"
    HANDLED = "ran out of memory, which the program handled"
    DOES_NOT_FIT = "does not fit"
    DOES_NOT_FIT_AS_ASSUMED = "does not fit with the assumed sizes"


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The verdict on the memory of one device."""

    measured: MeasuredDevice
    outcome: FitOutcome
    # bytes that the allocator takes of a device with room, if it had to empty its cache on this
    # one and the history is there
    with_room: int | None = None

    @property
    def room(self) -> int:
        """Bytes beside the allocator's and those that the program could not have."""
        measured = self.measured
        return max(measured.capacity - (measured.taken or 0) - measured.peak_reserved, 0)

    @property
    def free(self) -> int:
        """Bytes of that room that NCCL leaves, by its estimate."""
        return max(self.room - self.measured.nccl, 0)


def verdicts(profile: RecordedProfile) -> tuple[DeviceVerdict, ...]:
    """A verdict on each device that had memory in use, and whose memory is known."""
    if len(profile.runs) != 1:
        return ()
    measured_devices = [
        device
        for device in profile.devices
        if device.capacity
        and device.taken is not None
        and device.peak_active
        and device.device.name != "cpu"
    ]
    ran_out = {entry.device.name for entry in profile.entries if entry.stats.get("num_ooms")}
    uncounted = uncounted_devices(profile)
    failed = _failed_devices(
        profile, [measured.device.name for measured in measured_devices], ran_out
    )
    ended_early = any(run.exception for run in profile.runs)
    devices = []
    for measured in measured_devices:
        name = measured.device.name
        if name in failed:
            is_sure = measured.assumed_sizes in ("", _AT_LEAST)
            outcome = FitOutcome.DOES_NOT_FIT if is_sure else FitOutcome.DOES_NOT_FIT_AS_ASSUMED
        elif name in ran_out:
            outcome = FitOutcome.HANDLED
        elif ended_early:
            outcome = FitOutcome.FITTED_UNTIL_END
        else:
            is_sure = measured.assumed_sizes in ("", _AT_MOST)
            outcome = FitOutcome.FITS if is_sure else FitOutcome.FITS_AS_ASSUMED
            if name in uncounted:
                outcome = _fits_with_uncounted(measured, is_sure=is_sure)
            elif DeviceVerdict(measured, outcome).room < measured.nccl_at_most:
                outcome = FitOutcome.MAY_NOT_FIT
        devices.append(DeviceVerdict(measured, outcome, _with_room(profile, measured)))
    return tuple(devices)


def _fits_with_uncounted(measured: MeasuredDevice, *, is_sure: bool) -> FitOutcome:
    """The outcome where some memory is not counted. See Note [Room for what is not counted]."""
    needed = measured.needed_at_most
    if needed is None:
        return FitOutcome.FITS_AS_COUNTED
    if DeviceVerdict(measured, FitOutcome.FITS).room < needed + measured.nccl_at_most:
        return FitOutcome.MAY_NOT_FIT
    return FitOutcome.FITS_EITHER_WAY if is_sure else FitOutcome.FITS_AS_ASSUMED


# Note [Room for what is not counted]
# A library's workspace lives for one call. If the device has room for the largest one on top of all
# that was ever reserved, each call finds room: what others left in the cache is either large enough
# or given back. So the peaks of workspaces are not added up. A convolution needs no room: PyTorch
# takes the next plan where there is none for the workspace of one (native/cudnn/Conv_v8.cpp).


def _with_room(profile: RecordedProfile, measured: MeasuredDevice) -> int | None:
    """Bytes reserved of a device on which no cache has to be emptied; None if not known."""
    if not measured.retries or profile.history is None:
        return None
    from ..history.model import device_name
    from ..history.replay import replay

    for device in profile.history.used_devices():
        if device_name(device) == measured.device.name:
            if profile.history.of_device(device).dropped != 0:
                return None
            return replay(profile.history, device).peak_reserved
    return None


def uncounted_devices(profile: RecordedProfile) -> set[str]:
    """Names of devices on which a simulation did not count all memory."""
    in_lines = {
        entry.device.name
        for entry in profile.entries
        if any(approximation.kind in NOT_COUNTED for approximation in entry.approximations)
    }
    return in_lines | {device.device.name for device in profile.devices if device.is_lower_bound}


def _failed_devices(profile: RecordedProfile, names: list[str], ran_out: set[str]) -> set[str]:
    """Devices that ran out of memory for good: those with a failed request, or the only one."""
    run = profile.runs[0]
    ended = run.exit_status not in (0, None, UNKNOWN_STATUS) or run.exception
    if not (ended and profile.failures) and not run.exception.startswith(OUT_OF_MEMORY):
        return set()
    return ran_out.intersection(names) or set(names if len(names) == 1 else ())
