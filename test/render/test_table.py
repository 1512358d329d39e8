"""A table of texts has columns as wide as its widest cells."""

from __future__ import annotations

from pytorch_memlab.render.table import Table


def test_names_begin_at_the_left_of_a_column_and_numbers_end_at_its_right():
    rows = [("embedding", "0", "1.5 GiB", "yes"), ("last", "10, 11", "900.0 MiB", "")]
    table = Table(("stage", "ranks", "peak", "fits"), rows, names={0, 1, 3})
    assert list(table.lines()) == [
        "stage     ranks       peak fits",
        "embedding 0        1.5 GiB yes",
        "last      10, 11 900.0 MiB",
    ]


def test_a_table_without_rows_has_its_heads():
    assert list(Table(("peak", "test"), [], names={1}, between="  ").lines()) == ["peak  test"]
