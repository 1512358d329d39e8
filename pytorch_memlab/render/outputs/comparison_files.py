"""Two saved profiles, or the tests of two files, compared."""

from __future__ import annotations

from ..output_format import ComparedTests, ComparisonResults, OutputFormat


class ComparisonText(OutputFormat[ComparisonResults]):
    """The text that the terminal shows."""

    shows = ComparisonResults
    endings = (".txt",)
    order = 1

    def render(self, results: ComparisonResults) -> str:
        from .. import differences, memory_of_tests

        of = results.of
        if isinstance(of, ComparedTests):
            return memory_of_tests.differences(of.names, of.changed, of.most_rows)
        return differences.text(of.names, of.before, of.after, of.differences, of.most_rows)


class ComparisonPage(OutputFormat[ComparisonResults]):
    """Both side by side, their timelines on one axis."""

    shows = ComparisonResults
    endings = (".html",)
    order = 2

    def render(self, results: ComparisonResults) -> str:
        from .. import difference_page

        of = results.of
        if isinstance(of, ComparedTests):
            return difference_page.render_tests(of.names, of.changed)
        return difference_page.render(of.names, of.before, of.after, of.differences)
