"""What was measured, as plain data: the step between who asks and who renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as reports name it.

    Args:
        name: as torch names it, such as ``cuda:0``.
        description: what the hardware is, such as ``NVIDIA H100 80GB HBM3``.
        simulated: True when no such hardware was there.
    """

    name: str
    description: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A profiled function and its source.

    Args:
        qual_name: the function's ``__qualname__``.
        filename: the file that its code names.
        first_line: number of the first line of ``source``.
        source: the lines without their ends, None where there is no source to be had.
    """

    qual_name: str
    filename: str
    first_line: int
    source: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class LineEntry:
    """One line of one function on one device, over all its hits.

    Args:
        code_id: key of the function.
        line: line number in the file.
        device: where it was measured.
        hits: how often the line was begun.
        time: seconds spent in the line, calls included.
        delta: bytes allocated when the line ended less those when it began, summed over hits.
        stats: ``group.pool.metric`` -> the maximum over the hits, in bytes or counts.
    """

    code_id: int
    line: int
    device: DeviceInfo
    hits: int
    time: float
    delta: int
    stats: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """One function's lines on one device.

    Args:
        function: what was profiled.
        device: where it was measured.
        rows: line number -> values in the order of ``Report.columns``, None where not measured.
    """

    function: FunctionInfo
    device: DeviceInfo
    rows: Mapping[int, tuple[int | float | None, ...]]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a renderer needs.

    Args:
        columns: names of the columns, such as ``active_bytes.all.peak``, ``hits``.
        tables: one for each function and device.
        notes: lines said below the tables, such as which GPU was simulated or why there is no data.
    """

    columns: tuple[str, ...]
    tables: tuple[FunctionTable, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnmodelledOp:
    """An op of whose kernels' own memory a simulation knows nothing.

    Args:
        name: of the op, without namespace and overload.
        calls: how many there were.
        nbytes: bytes of all that it returned.
    """

    name: str
    calls: int
    nbytes: int
