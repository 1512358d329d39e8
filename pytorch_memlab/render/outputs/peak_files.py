"""The holders of a peak as a page, as text, and as stacks that flame graph viewers read."""

from __future__ import annotations

from ..output_format import OutputFormat, PeakResults


class PeakPage(OutputFormat[PeakResults]):
    """Tables, the tree of modules and a flame graph."""

    shows = PeakResults
    endings = (".html",)
    order = 1

    def render(self, results: PeakResults) -> str:
        from .. import peak_html

        title = f"What holds the GPU memory at its peak: {results.called}"
        return peak_html.render(results.peaks, title)


class CollapsedStacks(OutputFormat[PeakResults]):
    """The stacks of all GPUs; of several, each below its GPU."""

    shows = PeakResults
    endings = (".collapsed.txt",)
    order = 3

    def render(self, results: PeakResults) -> str:
        if len(results.peaks) == 1:
            return results.peaks[0].collapsed_stacks()
        return "".join(
            f"{holders.peak.name};{line}"
            for holders in results.peaks
            for line in holders.collapsed_stacks().splitlines(keepends=True)
        )


class PeakText(OutputFormat[PeakResults]):
    """The text that the terminal shows."""

    shows = PeakResults
    endings = (".txt",)
    order = 5
    has_rows = True

    def render(self, results: PeakResults) -> str:
        from .. import peak

        by = results.by
        return "\n".join(
            holders.collapsed_stacks() if by == "stack" else peak.text(holders, results.top, by)
            for holders in results.peaks
        )
