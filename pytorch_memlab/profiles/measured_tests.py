"""The GPU memory of tests, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HoldingLine:
    """A line whose allocations are in use at the peak of a test."""

    file: str
    line: int  # its number; 0 if the place is not known
    function: str
    code: str  # the line, without the space around it
    size: int


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """The GPU memory of a test."""

    device: str
    gpu: str
    simulated: bool
    peak: int  # most bytes in use while the test ran
    reserved: int  # most bytes that PyTorch took from the GPU
    before: int  # bytes in use when the test began, those of its fixtures among them
    is_lower_bound: bool
    limit: int | None = None  # bytes that its mark allows; None without one
    holders: tuple[HoldingLine, ...] = ()
