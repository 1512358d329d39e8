"""The GPU memory of tests, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HoldingLine:
    """A line whose allocations are in use at the peak of a test.

    Args:
        file: of the source, as seen from the folder of the project.
        line: its number; 0 if the place is not known.
        function: its name.
        code: the line, without the space around it.
        size: bytes.
    """

    file: str
    line: int
    function: str
    code: str
    size: int


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """The GPU memory of a test.

    Args:
        device: the one with the highest peak.
        gpu: what the hardware is.
        simulated: whether there was no such hardware.
        peak: most bytes in use while the test ran.
        reserved: most bytes that PyTorch took from the GPU.
        before: bytes in use when the test began, those of its fixtures among them.
        is_lower_bound: whether a simulation did not count all memory.
        limit: bytes that its mark allows; None without one.
        holders: the lines that hold most of the peak, the largest first.
    """

    device: str
    gpu: str
    simulated: bool
    peak: int
    reserved: int
    before: int
    is_lower_bound: bool
    limit: int | None = None
    holders: tuple[HoldingLine, ...] = ()
