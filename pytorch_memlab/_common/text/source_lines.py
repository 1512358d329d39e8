"""The lines of a program's text."""

from __future__ import annotations

import io


def source_lines(text: str, *, keepends: bool = False) -> list[str]:
    r"""The lines that Python numbers: no other character than a line end begins one.

    >>> source_lines("a = 1  # \x0c b\r\n\x0c\nc = 3")
    ['a = 1  # \x0c b', '\x0c', 'c = 3']
    >>> source_lines("a\rb\n", keepends=True)
    ['a\n', 'b\n']
    """
    lines = io.StringIO(text, newline=None).readlines()
    return lines if keepends else [line.removesuffix("\n") for line in lines]
