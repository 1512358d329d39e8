"""The answer for a job as a page: what the text says, and all groups, lines, and ranks."""

from __future__ import annotations

from ..profiles.job import Job, ranks_text
from . import job as job_text
from .page import Fragment, fill, page


def render(job: Job, called: str) -> str:
    """The page, which loads nothing."""
    html = fill(
        "job.html",
        job=job,
        summary=job_text.summary(job, called),
        groups=[(ranks_text(group.ranks), group) for group in job.groups],
        tables=[("Peaks of lines", job.lines), ("Categories at the peak", job.categories)],
    )
    return page(called, [Fragment(html)])
