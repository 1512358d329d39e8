"""The answer for a job, from its folder or from the file that ``merge`` made of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from .._common.frames.user_code import base_name
from ..errors import ProfileError
from ..profiles.job import Job, JobSummary
from ..profiles.rank_digest import RankDigest, digest_of
from ..profiles.recorded import RecordedProfile
from ..saved import job_file, profile_file
from ..saved.checked import DamagedError
from .folder import rank_files

_HEAD: Final = 1 << 16
"""Characters of a file that mostly have the whole digest."""


def is_job(path: str) -> bool:
    """True for the folder of a job, and for the file of a merged one."""
    if os.path.isdir(path):
        return True
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return job_file.FORMAT.begins(file.read(200))
    except OSError:
        return False


def read_job(path: str) -> Job:
    """The answer for all ranks, of a job that has ended or goes on."""
    # Raises ProfileError if there is no rank, or the file is damaged.
    if os.path.isdir(path):
        return _job_of_folder(path)
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return job_file.load(file.read(), path)


def _job_of_folder(path: str) -> Job:
    summary, notes, worst = JobSummary(datetime.now(UTC)), [], None
    for file in rank_files(path):
        try:
            digest = digest_of_file(file)
        except (OSError, ProfileError, DamagedError) as error:
            notes.append(f"{file.name} is left out: {error}")
            continue
        summary.add(digest)
        key = (digest.run.attempt, digest.active)
        if worst is None or key > worst[0]:
            worst = key, file
    if worst is None:
        first = f": {notes[0]}" if notes else ""
        raise ProfileError(
            f"{path} has no profile of a rank{first or ': none has been written so far'}"
        )
    job = summary.job(_sources(worst[1]))
    named = {line.name for line in job.lines} | {group.line for group in job.groups}
    sources = {line: text for line, text in job.sources.items() if line in named}
    return replace(job, sources=sources, notes=tuple(notes))


def digest_of_file(file: Path) -> RankDigest:
    """The digest of the profile of a rank, from the head of its file if it is there."""
    # Raises ProfileError for a damaged file, DamagedError for a damaged digest, and OSError for a
    # file that cannot be read.
    with open(file, encoding="utf-8", errors="surrogateescape") as opened:
        head = opened.read(_HEAD)
        digest = job_file.digest_in(head)
        if digest is not None:
            return digest
        text = head + opened.read()
    return job_file.digest_in(text) or digest_of(profile_file.load(text, file.name))


def profile_of_file(file: Path) -> RecordedProfile:
    """The profile of a rank; ProfileError for a damaged file, OSError for an unreadable one."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    return profile_file.load(text, file.name)


def _sources(file: Path) -> dict[str, str]:
    """The text of each line of the functions of a profile."""
    try:
        return dict(_lines(profile_of_file(file)))
    except ProfileError:  # its digest is whole, and its end is not
        return {}


def _lines(profile: RecordedProfile) -> Iterator[tuple[str, str]]:
    for function in profile.functions:
        for place, text in enumerate(function.source or ()):
            yield f"{base_name(function.filename)}:{function.first_line + place}", text.strip()
