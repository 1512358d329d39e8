"""The runs of a profile in sentences: programs, devices, peaks, and whether memory is enough."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from .._common.text.prose_size import prose_size
from .._common.text.quoted import printable
from ..profiles.device_verdicts import DeviceVerdict, FitOutcome
from ..profiles.recorded import UNKNOWN_STATUS, MeasuredDevice, RecordedProfile, Run
from ..records import hardware

_WITHOUT_ROOM = (FitOutcome.DOES_NOT_FIT, FitOutcome.DOES_NOT_FIT_AS_ASSUMED, FitOutcome.HANDLED)


def run_notes(profile: RecordedProfile) -> list[str]:
    """A line for each run, and one for each device."""
    return [*map(run_note, profile.runs), *map(device_note, profile.devices)]


def command(run: Run) -> str:
    """The command line, without the folder of the program."""
    return printable(" ".join([os.path.basename(run.program) or "a notebook", *run.arguments]))


def device_note(measured: MeasuredDevice) -> str:
    """The peaks of a device."""
    device = measured.device
    kind = hardware(device.description, device.simulated)
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
    dry = ", shapes only" if run.is_dry_run else ""
    end = f"; {ending(run)}" if ending(run) else ""
    return (
        f"{label}recorded of {command(run)}{when} ({run.seconds:.1f} s{dry}; {versions(run)}){end}"
    )


def versions(run: Run) -> str:
    """The versions of what ran."""
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())


def ending(run: Run) -> str:
    """The failure of a run; empty if it did not fail."""
    if run.exception:
        return f"ended with {printable(run.exception)}"
    is_known = run.exit_status not in (0, None, UNKNOWN_STATUS)
    return f"exit status {run.exit_status}" if is_known else ""


def sentence(verdict: DeviceVerdict) -> str:
    """The memory that was needed, the memory that there is, and whether that is enough."""
    measured = verdict.measured
    taken, parts = measured.taken or 0, []  # bytes of the device that the program could not have
    if taken and measured.context is None:
        parts = [(taken, "context and other programs")]
    elif taken and measured.context is not None:
        parts = [(measured.context, "context"), (taken - measured.context, "of other programs")]
    more = "".join(f" + {prose_size(size)} {name}" for size, name in parts if size > 0)
    if measured.nccl_at_most:
        low, high = prose_size(measured.nccl_at_least), prose_size(measured.nccl_at_most)
        more += f" + {prose_size(measured.nccl)}~ NCCL ({low} to {high})"
    free = ""
    if verdict.outcome not in _WITHOUT_ROOM:
        free = (
            after_retries(measured.retries, verdict.with_room)
            or f", {prose_size(verdict.free)} free"
        )
        if measured.is_lower_bound and measured.uncounted_at_most:
            free += f", up to {prose_size(measured.uncounted_at_most)} not counted"
    graphs = f" ({prose_size(measured.private)} of it by CUDA graphs)" if measured.private else ""
    at_most = "at most " * (measured.assumed_sizes == "at most" and not measured.is_lower_bound)
    return (
        f"peak {at_most}{prose_size(measured.peak_reserved)} reserved{graphs}{more} of"
        f" {prose_size(measured.capacity)}: {verdict.outcome.value}{free}"
    )


def after_retries(retries: int, with_room: int | None) -> str:
    """The part of a verdict on a device whose memory held the peak down; empty for others.

    >>> after_retries(3, 3 << 30)
    ', after 3 retries that emptied the cache; 3.00 GiB where there is room'
    >>> after_retries(1, None), after_retries(0, None)
    (', after 1 retry that emptied the cache', '')
    """
    if not retries:
        return ""
    times = "1 retry" if retries == 1 else f"{retries:,} retries"
    more = "" if with_room is None else f"; {prose_size(with_room)} where there is room"
    return f", after {times} that emptied the cache{more}"


def sentences(verdicts: Sequence[DeviceVerdict]) -> list[str]:
    """A sentence for each device, with its name where there are several."""
    if len(verdicts) < 2:
        return [*map(sentence, verdicts)]
    return [
        f"{printable(verdict.measured.device.name)}: {sentence(verdict)}" for verdict in verdicts
    ]


def cache_notes(unused: Mapping[str, int]) -> Iterator[str]:
    """The cache of earlier cells that lay unused at the peak of a cell, by devices.

    >>> list(cache_notes({"cuda:0": 2**20}))
    ['1.0 MiB more reserved is cache of earlier cells: exact with --empty-cache']
    """
    for name, size in unused.items():
        if size:
            device = f"{name}: " if len(unused) > 1 else ""
            cached = f"{prose_size(size)} more reserved is cache of earlier cells"
            yield f"{device}{cached}: exact with --empty-cache"
