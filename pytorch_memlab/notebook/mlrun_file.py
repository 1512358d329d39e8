"""The file of ``%mlrun -T``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .._common.checked_file import CheckedFile
from ..render import report_page, saved_profile, text

if TYPE_CHECKING:
    from .mlrun import CellRun


class MlrunFile:
    """A page, a profile or text, as the name asks; a cell that runs again overwrites it."""

    def __init__(self, path: str, *, is_quiet: bool) -> None:
        self._path = path
        self._file = CheckedFile(path)
        self._is_quiet = is_quiet

    @property
    def is_page(self) -> bool:
        """True for a page."""
        return self._file.ending == ".html"

    def write(self, run: CellRun, columns: tuple[str, ...]) -> None:
        """Write it, or say on standard error why it cannot be written."""
        name = self._file.write_or_tell(lambda: self._text(run, columns))
        if name is not None and self.is_page and not self._is_quiet:
            from IPython.display import FileLink, display

            display(FileLink(self._path))

    def _text(self, run: CellRun, columns: tuple[str, ...]) -> str:
        if self.is_page:
            return report_page.render(run.recorded(), run.tables(columns))
        if self._file.ending == ".json":
            return saved_profile.render(replace(run.recorded(), columns=columns))
        return text.render(run.display(columns).report)
