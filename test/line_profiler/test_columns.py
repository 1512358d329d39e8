"""The columns that exist."""

import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from support.sample_reports import CUDA0

from pytorch_memlab import (
    LineProfiler,
    clear_global_line_profiler,
    profile_every,
    simulate,
)
from pytorch_memlab.columns import COLUMNS, KNOWN_COLUMNS
from pytorch_memlab.errors import UnknownColumnError, UsageError
from pytorch_memlab.line_profiler.columns import DEFAULT_COLUMNS, checked_columns
from pytorch_memlab.records import LineEntry
from pytorch_memlab.render import html, text

ROOT = Path(__file__).parents[2]


def test_default_columns_are_the_two_peaks() -> None:
    assert DEFAULT_COLUMNS == ("active_bytes.all.peak", "reserved_bytes.all.peak")
    assert checked_columns(DEFAULT_COLUMNS) == DEFAULT_COLUMNS


def test_none_stands_for_the_default_columns(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        return 1

    with LineProfiler(work) as recorded:
        work()
    assert recorded.display(columns=None).report.columns == DEFAULT_COLUMNS
    profile_every(1, columns=None)(work)()
    clear_global_line_profiler()
    head = capsys.readouterr().out.splitlines()[2]
    assert head == "active_bytes reserved_bytes line  code"


def test_the_documentation_has_every_column_with_its_text() -> None:
    page = (ROOT / "docs" / "reference" / "columns.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (\w+) \|$", page, re.MULTILINE)
    described = {name: text.replace("`", "") for name, text, _ in rows}
    assert [(name, over) for name, _, over in rows] == [
        (column.name, column.over_hits.value) for column in COLUMNS
    ]
    for column in COLUMNS:
        assert column.text in described[column.name]


def test_fields_and_columns_that_are_none_are_known() -> None:
    asked = ("requested_bytes.large_pool.freed", "segment.small_pool.current", "time", "delta")
    assert checked_columns(asked) == asked


def test_order_stays_and_repetitions_go() -> None:
    assert checked_columns(["time", "hits", "time"]) == ("time", "hits")


def test_one_name_is_a_column() -> None:
    assert checked_columns("active.all.peak") == ("active.all.peak",)


def test_misspelt_column_names_the_near_ones() -> None:
    with pytest.raises(UnknownColumnError) as caught:
        checked_columns(["hits", "active_bytes.all.peek"])
    message = str(caught.value)
    start = "unknown column 'active_bytes.all.peek': did you mean "
    assert message.startswith(f"{start}active_bytes.all.peak or ")
    assert message.endswith("?")
    assert "\n" not in message


def test_column_near_to_nothing_names_the_kinds() -> None:
    with pytest.raises(UnknownColumnError) as caught:
        checked_columns("zzz")
    assert str(caught.value) == (
        "unknown column 'zzz': a column is a field of torch.cuda.memory_stats() such as "
        "active_bytes.all.peak, or one of peak, reserved, current, hits, kept, freed, "
        "delta, temporary, time"
    )


def test_column_that_is_no_text_is_unknown() -> None:
    with pytest.raises(UnknownColumnError, match="unknown column 3: "):
        checked_columns([3])  # type: ignore[list-item]


def test_recorded_field_is_known() -> None:
    entries = [LineEntry(1, 1, CUDA0, 1, 0.0, 0, 0, {"new_bytes.all.peak": 1})]
    assert checked_columns("new_bytes.all.peak", entries) == ("new_bytes.all.peak",)
    with pytest.raises(UnknownColumnError):
        checked_columns("new_bytes.all.peak")


def test_no_columns_is_an_error() -> None:
    with pytest.raises(UsageError, match="no columns given"):
        checked_columns([])


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("peaks", "peak"), ("reserve", "reserved"), ("num_oom", "num_ooms"), ("dleta", "delta")],
)
def test_misspelt_short_names_have_near_ones(wrong: str, near: str) -> None:
    with pytest.raises(UnknownColumnError, match=f"did you mean {near}( or |\\?)"):
        checked_columns(wrong)


def test_every_field_of_this_torch_and_of_the_simulation_is_a_column() -> None:
    with simulate("1GiB"):
        kept = torch.ones(1, device="cuda")
        fields = set(torch.cuda.memory_stats())
    assert kept is not None
    assert {"num_ooms", "num_alloc_retries", "max_split_size", "segment.all.peak"} < fields
    assert fields <= KNOWN_COLUMNS


empty = partial(torch.empty, dtype=torch.uint8, device="cuda")


def grow_and_fail() -> None:
    kept = list(map(empty, [20 << 20] * 3))
    with suppress(torch.OutOfMemoryError):
        empty(1 << 40)
    del kept
    torch.cuda.empty_cache()


def test_counts_are_those_of_a_single_hit_and_settings_as_they_are() -> None:
    columns = (
        "num_ooms",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "max_split_size",
        "oversize_segments.peak",
        "allocation.all.allocated",
    )
    with simulate("1GiB"), LineProfiler(grow_and_fail) as profiler:
        for _ in range(2):
            grow_and_fail()
    (table,) = profiler.display(columns=columns).report.tables
    first = grow_and_fail.__code__.co_firstlineno
    rows = {line - first: row for line, row in table.rows.items()}

    assert rows[1] == (0, 0, 3, 0, -1, 0, 3)
    assert rows[3] == (1, 1, 0, 0, -1, 0, 0)
    assert rows[5] == (0, 0, 0, 3, -1, 0, 0)


def test_short_names_are_the_heads_of_their_columns() -> None:
    long = ("active_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.current")
    with simulate("1GiB"), LineProfiler(grow_and_fail) as profiler:
        grow_and_fail()
    short = profiler.display(columns=("peak", "reserved", "current", "delta")).report

    assert short.columns == ("peak", "reserved", "current", "delta")
    (expected,) = profiler.display(columns=(*long, "delta")).report.tables
    assert short.tables[0].rows == expected.rows
    head, first, second, *_ = text.render(short).splitlines()[2:]
    assert head.split() == ["peak", "reserved", "current", "delta", "line", "code"]
    assert first.split()[:4] == ["0.00B"] * 4
    assert second.split()[:4] == ["60.00M"] * 4
    for name in short.columns:
        assert f">{name}</th>" in html.render(short)


def test_temporary_is_the_most_that_a_hit_had_beyond_its_start_and_its_end() -> None:
    def work(sizes: list[int]) -> list[torch.Tensor]:
        kept = []
        for size in sizes:
            kept.append(torch.ones(size * 256, device="cuda").clone())  # noqa: PERF401
        return kept

    with simulate("24GiB"), LineProfiler(work) as recorded:
        kept = work([2, 8, 4] * 20)  # more hits than are merged at once
        del kept
        work([])
    first = work.__code__.co_firstlineno
    rows = recorded.display(columns=["hits", "kept", "delta", "temporary"]).report.tables[0].rows
    mean = round((280 << 10) / 60)
    assert rows[first + 3] == (60, mean, mean, 8 << 10)
    assert [rows[first + line][3] for line in (0, 1, 2, 4)] == [0, 0, 0, 0]
    frame = recorded.records().to_dataframe()
    assert frame["temporary"].max() == 8 << 10


def test_memory_that_was_in_use_before_and_is_freed_is_not_temporary() -> None:
    def work(held: list[torch.Tensor]) -> None:
        held.clear()

    with simulate("24GiB"), LineProfiler(work) as recorded:
        work([torch.ones(1024, device="cuda")])
    first = work.__code__.co_firstlineno
    [table] = recorded.display(columns=["peak", "kept", "freed", "temporary"]).report.tables
    assert table.rows[first + 1] == (4096, 0, 4096, 0)
