"""A table of texts has columns as wide as its widest cells."""

from __future__ import annotations

from pytorch_memlab.render.table import Table, fitted


def test_names_begin_at_the_left_of_a_column_and_numbers_end_at_its_right():
    rows = [("embedding", "0", "1.5 GiB", "yes"), ("last", "10, 11", "900.0 MiB", "")]
    table = fitted(("stage", "ranks", "peak", "fits"), rows, {0, 1, 3}, " ")
    assert list(table.lines()) == [
        "stage     ranks       peak fits",
        "embedding 0        1.5 GiB yes",
        "last      10, 11 900.0 MiB",
    ]


def test_a_table_without_rows_has_its_heads():
    assert list(fitted(("peak", "test"), [], {1}, "  ").lines()) == ["peak  test"]


def test_the_rest_of_a_short_row_is_empty_and_what_is_longer_pushes_it():
    rows = [("t4", "1.5 GiB", "yes"), ("t4-long", " differs too much"), ("a100", "0 bytes", "no")]
    assert list(Table(("GPU", "peak", "fits"), rows, "{:6}{:>10}  {}").lines()) == [
        "GPU         peak  fits",
        "t4       1.5 GiB  yes",
        "t4-long differs too much",
        "a100     0 bytes  no",
    ]
