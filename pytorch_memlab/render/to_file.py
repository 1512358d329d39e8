"""A report in a file, of the format that the file's name asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .._common.atomic_write import check_writable, write_file
from . import renderer_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..records import Report


def file_writer(
    path: str, otherwise: Callable[[Report], str] | None = None
) -> Callable[[Report], None]:
    """A function that writes a report to a file; the path is checked now."""
    render = renderer_for(path, otherwise)
    check_writable(path)
    file = Path(path).absolute()
    return lambda report: write_file(file, render(report), called=path)
