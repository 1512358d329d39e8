"""The part of a rank's profile that a job is judged by: small, and alike for all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .._common.frames.user_code import base_name
from .recorded import RecordedProfile, Run

HELD_LINES: Final = 12
"""Lines that hold most memory at the peak, of each rank."""

_PEAK: Final = "allocated_bytes.all.peak"


@dataclass(frozen=True, slots=True)
class RankDigest:
    """A rank at its highest peak, and its lines."""

    run: Run
    device: str  # the one with the highest peak; empty if no device was used
    capacity: int  # its bytes
    active: int  # bytes in use at the peak
    reserved: int  # the most bytes taken from the device
    categories: dict[str, int]  # name -> bytes at the peak
    held: dict[str, int]  # line, such as ``train.py:12`` -> bytes at the peak
    lines: dict[str, tuple[int, int]]  # line -> its peak, and the bytes that a hit kept
    taken: int = 0  # bytes of the device that the program could not have

    @property
    def headroom(self) -> int:
        """Bytes of the device that are left at the most that was taken from it."""
        return self.capacity - self.taken - self.reserved


def digest_of(profile: RecordedProfile) -> RankDigest:
    """The digest of the profile of one run."""
    used = [
        device for device in profile.devices if device.device.name != "cpu" and device.peak_reserved
    ]
    highest = max(used, key=lambda device: device.peak_active, default=None)
    held = None if highest is None else profile.peaks.get(highest.device.name)
    lines: dict[str, tuple[int, int]] = {}
    for name, peak, kept in _lines(profile):
        before = lines.get(name, (0, 0))
        lines[name] = (max(peak, before[0]), max(kept, before[1]))
    return RankDigest(
        profile.runs[0],
        "" if highest is None else highest.device.name,
        0 if highest is None else highest.capacity,
        0 if highest is None else highest.peak_active,
        0 if highest is None else highest.peak_reserved,
        {} if held is None else {share.name: share.size for share in held.by_category()},
        {}
        if held is None
        else {
            f"{base_name(line.file)}:{line.line}": line.size for line in held.by_line()[:HELD_LINES]
        },
        lines,
        0 if highest is None else highest.taken or 0,
    )


def _lines(profile: RecordedProfile) -> Iterator[tuple[str, int, int]]:
    files = [base_name(function.filename) for function in profile.functions]
    for entry in profile.entries:
        if entry.device.name != "cpu":
            name = f"{files[entry.code_id]}:{entry.line}"
            yield name, entry.stats.get(_PEAK, 0), entry.kept
