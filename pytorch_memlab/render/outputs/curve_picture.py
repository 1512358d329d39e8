"""The curve of ``fit --vary`` as a picture."""

from __future__ import annotations

from ..output_format import OutputFormat, SearchResults


class CurvePicture(OutputFormat[SearchResults]):
    """A curve for each combination of the other variables, by matplotlib."""

    shows = SearchResults
    endings = (".svg", ".png")
    order = 1

    def check(self) -> None:
        from ..picture import check_installed

        check_installed("")

    def render(self, results: SearchResults) -> bytes:
        from .. import curve

        return curve.picture(self.ending, results.search)
