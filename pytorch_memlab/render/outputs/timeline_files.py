"""The memory of GPUs over time, as a page and as pictures."""

from __future__ import annotations

from ..output_format import OutputFormat, TimelineResults


class TimelinePage(OutputFormat[TimelineResults]):
    """A page to explore, by pointer or by keys."""

    shows = TimelineResults
    endings = (".html",)
    order = 1

    def render(self, results: TimelineResults) -> str:
        from .. import timeline

        return timeline.render(results.timelines, results.title)


class TimelineDrawing(OutputFormat[TimelineResults]):
    """A picture by matplotlib, which ``run`` draws too."""

    shows = TimelineResults
    endings = (".svg", ".png")
    order = 2

    def check(self) -> None:
        from ..picture import check_installed

        check_installed()

    def render(self, results: TimelineResults) -> bytes:
        from .. import timeline

        return timeline.picture(self.ending, results.timelines, results.title)
