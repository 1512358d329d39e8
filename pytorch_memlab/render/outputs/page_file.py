"""The report of a run as a page."""

from __future__ import annotations

from ..output_format import OutputFormat, RunResults


class PageFile(OutputFormat[RunResults]):
    """A page that needs no other file."""

    shows = RunResults
    endings = (".html",)
    order = 2

    def render(self, results: RunResults) -> str:
        from .. import report_page

        return report_page.render(results.of_page, results.of_each_device)
