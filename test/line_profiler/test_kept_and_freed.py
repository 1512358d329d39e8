"""The bytes that a hit of a line kept and freed: the same numbers wherever they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.sample_reports import CUDA0, MIB, OUTER, entry

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.line_profiler.line_store import DeviceLine
from pytorch_memlab.records import DeviceInfo, LineEntry, NoteKind, Remark
from pytorch_memlab.scopes import ZERO, Sample

COLUMNS = ["kept", "freed", "delta", "hits"]


def scores(held: list[torch.Tensor]) -> None:
    for _ in range(3):
        att = torch.zeros(4096, 4096, device="cuda")
        att = torch.softmax(att, -1)
        held.append(att * 2)
        passed(held)
        del att


def passed(held: list[torch.Tensor]) -> int:
    more = held[-1] + 1
    held[-1] = more
    return more.numel()


SIZE = 64 * MIB
ROWS = {
    "scores": [
        (0, 0, 0, 1),
        (0, 0, 0, 4),
        (SIZE, 0, SIZE, 3),
        (SIZE, SIZE, 0, 3),
        (SIZE, 0, SIZE, 3),
        (SIZE, SIZE, 0, 3),
        (0, SIZE, -SIZE, 3),
    ],
    "passed": [(0, 0, 0, 3), (SIZE, 0, SIZE, 3), (0, SIZE, -SIZE, 3), (0, 0, 0, 3)],
}
"""Of each line, by function."""


@pytest.fixture(scope="module")
def profile() -> LineProfiler:
    with (
        simulate("4GiB", compute=False),
        LineProfiler(scores, passed) as profiler,
    ):
        scores([])
    return profiler


def rows_of(records: object) -> dict[str, list[tuple[int, ...]]]:
    tables = records.display(columns=COLUMNS).report.tables  # type: ignore[attr-defined]
    return {one.function.qual_name: list(one.rows.values()) for one in tables}


@pytest.mark.knows_simulation("CUDA counts bytes, and does not tell which block was freed")
def test_a_line_that_replaces_a_tensor_keeps_the_new_one_and_frees_the_old_one(
    profile: LineProfiler,
) -> None:
    assert rows_of(profile) == ROWS


@pytest.mark.knows_simulation("CUDA counts bytes, and does not tell which block was freed")
def test_the_terminal_frames_files_and_pages_have_the_same_numbers(
    profile: LineProfiler, tmp_path: Path
) -> None:
    frame = profile.records().to_dataframe()
    for name, rows in ROWS.items():
        of_function = frame[frame["function"] == name]
        assert [tuple(row) for row in of_function[COLUMNS].to_numpy().tolist()] == rows
    profile.save(tmp_path / "p.json")
    assert rows_of(load(tmp_path / "p.json")) == ROWS
    lines = json.loads((tmp_path / "p.json").read_text())["lines"]
    assert [(*line[5:7], line[3]) for line in lines] == [
        (kept, freed, hits) for rows in ROWS.values() for kept, freed, _, hits in rows
    ]
    profile.to_html(tmp_path / "p.html")
    rows = re.findall(r"<tr><th>\d+(.*)", (tmp_path / "p.html").read_text())
    cells = [
        tuple(re.findall(r"<td[^>]*>([^<]*)", row)[1:4])
        for row in "\n".join(rows).replace("<tr", "\n").splitlines()
        if row.endswith(("softmax(att, -1)", "passed(held)"))
    ]
    # kept, freed and self: the called function has what it added at its own lines.
    assert cells == [("64.0 MiB", "64.0 MiB", ""), ("64.0 MiB", "64.0 MiB", "")]
    text = str(profile.display(columns=COLUMNS))
    assert "64.00M 64.00M   0.00B    3" in text


@pytest.mark.knows_simulation("CUDA counts bytes, and does not tell which block was freed")
def test_a_function_that_is_left_and_entered_again_keeps_what_it_had() -> None:
    def produce() -> Iterator[int]:
        kept = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        yield 1
        kept = kept.clone()
        yield 2
        del kept

    with simulate("1GiB"), LineProfiler(produce) as profiler:
        for _ in produce():
            torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
        [table] = profiler.display(columns=COLUMNS).report.tables
    assert list(table.rows.values()) == [
        (0, 0, 0, 1),
        (MIB, 0, MIB, 1),
        (0, 0, 0, 1),
        (MIB, MIB, 0, 1),
        (0, 0, 0, 1),
        (0, MIB, -MIB, 1),
    ]


def test_a_mean_of_hits_is_whole_and_its_parts_add_up() -> None:
    """The bytes of 3 hits together do not divide by 3."""
    with simulate("1GiB"):

        def grow(held: list[torch.Tensor], size: int) -> None:
            held.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))

        with LineProfiler(grow) as profiler:
            held: list[torch.Tensor] = []
            for size in (512, 1024, 512):
                grow(held, size)
        [row] = [row for row in rows_of(profiler)[grow.__qualname__] if row[0]]
    assert row == (683, 0, 683, 3)


def sample(nbytes: int) -> Sample:
    return Sample(ZERO.row, nbytes)


def test_hardware_does_not_tell_so_both_are_the_least_that_the_difference_allows() -> None:
    class Device:
        info = DeviceInfo("cuda:0", "T4", simulated=False)

    line = DeviceLine(Device())  # type: ignore[arg-type]
    line.add(sample(10), sample(50), 0)
    line.add(sample(50), sample(20), 0)
    assert (line.kept, line.kept - line.delta) == (40, 30)


def test_a_note_says_so_where_a_line_both_allocated_and_freed() -> None:
    real = DeviceInfo("cuda:0", "T4", simulated=False)
    note = Remark(NoteKind.KEPT_AT_LEAST, ("cuda:0",))

    def notes(device: DeviceInfo, allocated: int, freed: int, columns: list[str]) -> list[object]:
        stats = {
            "active_bytes.all.peak": 5 * MIB,
            "allocated_bytes.all.allocated": allocated,
            "allocated_bytes.all.freed": freed,
        }
        line = LineEntry(1, 8, device, 1, 0.1, MIB, 0, stats)
        return list(LineRecords([line], {1: OUTER}).display(None, columns).report.notes)

    assert notes(real, 2 * MIB, MIB, ["kept"]) == [note]
    assert notes(real, 2 * MIB, MIB, ["peak", "delta"]) == []
    assert notes(real, MIB, 0, ["freed"]) == []
    assert notes(CUDA0, 2 * MIB, MIB, ["kept", "freed"]) == []
    assert entry(1, 8, 0, delta=-5).delta == -5
