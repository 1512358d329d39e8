"""The profile of a run, which ``pytorch-memlab show`` reads."""

from __future__ import annotations

from ..output_format import OutputFormat, RunResults


class SavedProfileFile(OutputFormat[RunResults]):
    """Everything that was recorded."""

    shows = RunResults
    endings = (".json",)
    order = 3

    def render(self, results: RunResults) -> str:
        from ...saved import profile_file
        from ..notes import in_words

        return profile_file.text_of(in_words(results.recorded))
