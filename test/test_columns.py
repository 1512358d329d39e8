"""Which columns exist."""

import pytest
from sample_reports import CUDA0

from pytorch_memlab.errors import UnknownColumnError, UsageError
from pytorch_memlab.line_profiler.columns import (
    DEFAULT_COLUMNS,
    KNOWN_COLUMNS,
    checked_columns,
)
from pytorch_memlab.records import LineEntry


def test_default_columns_are_the_two_peaks() -> None:
    assert DEFAULT_COLUMNS == ("active_bytes.all.peak", "reserved_bytes.all.peak")
    assert checked_columns(DEFAULT_COLUMNS) == DEFAULT_COLUMNS


def test_every_field_and_extra_is_known() -> None:
    assert len(KNOWN_COLUMNS) == 9 * 3 * 4 + 3
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
    assert message.startswith("unknown column 'active_bytes.all.peek': near ones are ")
    assert message.split("near ones are ")[1].split(", ")[0] == "active_bytes.all.peak"
    assert "\n" not in message


def test_column_near_to_nothing_names_the_kinds() -> None:
    with pytest.raises(UnknownColumnError) as caught:
        checked_columns("zzz")
    assert str(caught.value) == (
        "unknown column 'zzz': a column is a field of torch.cuda.memory_stats() such as "
        "active_bytes.all.peak, or one of hits, delta, time"
    )


def test_column_that_is_no_text_is_unknown() -> None:
    with pytest.raises(UnknownColumnError, match="unknown column 3: "):
        checked_columns([3])  # type: ignore[list-item]


def test_recorded_field_is_known() -> None:
    entries = [LineEntry(1, 1, CUDA0, 1, 0.0, 0, {"new_bytes.all.peak": 1})]
    assert checked_columns("new_bytes.all.peak", entries) == ("new_bytes.all.peak",)
    with pytest.raises(UnknownColumnError):
        checked_columns("new_bytes.all.peak")


def test_no_columns_is_an_error() -> None:
    with pytest.raises(UsageError, match="no columns given"):
        checked_columns([])
