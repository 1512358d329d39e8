"""The report of a run as text."""

from __future__ import annotations

from ..output_format import OutputFormat, RunResults


class TextFile(OutputFormat[RunResults]):
    """The text that the terminal shows."""

    shows = RunResults
    endings = (".txt",)
    order = 1

    def render(self, results: RunResults) -> str:
        from .. import text

        return text.render(results.overview or results.report)
