"""Notes on the runs of a profile: program, versions, devices and their peaks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .._common.prose_size import prose_size
from .._common.quoted import printable

if TYPE_CHECKING:
    from ..profiles.recorded import MeasuredDevice, RecordedProfile, Run


def run_notes(profile: RecordedProfile) -> list[str]:
    """A line for each run, and one for each device."""
    return [*map(run_note, profile.runs), *map(device_note, profile.devices)]


def command(run: Run) -> str:
    """The command line, without the folder of the program."""
    return printable(" ".join([os.path.basename(run.program) or "a notebook", *run.arguments]))


def device_note(measured: MeasuredDevice) -> str:
    """The peaks of a device."""
    device = measured.device
    kind = f"simulated {device.description}" if device.simulated else device.description
    capacity = f", {prose_size(measured.capacity)}" if measured.capacity else ""
    return (
        f"{device.name} ({kind}{capacity}): peak {prose_size(measured.peak_active)} active, "
        f"{prose_size(measured.peak_allocated)} allocated, "
        f"{prose_size(measured.peak_reserved)} reserved"
    )


def run_note(run: Run) -> str:
    """The program, when it ran, and how it ended."""
    label = f"{run.label}: " if run.label else ""
    when = f" on {run.started}" if run.started else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    dry = ", shapes only" if run.is_dry_run else ""
    end = f"; {ending(run)}" if ending(run) else ""
    return f"{label}recorded of {command(run)}{when} ({run.seconds:.1f} s{dry}; {versions}){end}"


def ending(run: Run) -> str:
    """The failure of a run; empty if it did not fail."""
    if run.exception:
        return f"ended with {printable(run.exception)}"
    return f"exit status {run.exit_status}" if run.exit_status else ""
