"""An error in one line, as a profile keeps it."""

from __future__ import annotations

import pytest

from pytorch_memlab._common.process.uncaught_errors import first_line


class OfModuleError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no file"), "ValueError: no file"),
        (ValueError("no file\nand more"), "ValueError: no file"),
        (ValueError(), "ValueError"),
        (OfModuleError("x"), f"{OfModuleError.__module__}.OfModuleError: x"),
        (SyntaxError("bad", ("train.py", 1, 1, "x y")), "SyntaxError: bad"),
    ],
)
def test_the_line(error, line):
    assert first_line(error) == line


def test_a_note_is_no_message():
    error = ValueError("no file")
    error.add_note("of my own")
    assert first_line(error) == "ValueError: no file"
