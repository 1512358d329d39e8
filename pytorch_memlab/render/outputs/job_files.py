"""The answer for a job of many ranks."""

from __future__ import annotations

from ..output_format import JobResults, OutputFormat


class JobText(OutputFormat[JobResults]):
    """The text that the terminal shows."""

    shows = JobResults
    endings = (".txt",)
    order = 1

    def render(self, results: JobResults) -> str:
        from .. import job

        return job.text(results.job, results.called)


class JobPage(OutputFormat[JobResults]):
    """The text, then all groups, lines, and ranks."""

    shows = JobResults
    endings = (".html",)
    order = 2

    def render(self, results: JobResults) -> str:
        from .. import job_page

        return job_page.render(results.job, results.called)


class SavedJobFile(OutputFormat[JobResults]):
    """Everything that is known of the job, which ``pytorch-memlab show`` reads."""

    shows = JobResults
    endings = (".json",)
    order = 3

    def render(self, results: JobResults) -> str:
        from ...saved import job_file

        return job_file.text_of(results.job)
