"""Ranks of a job in JSON: the digest at the head of each rank's file, and the answer of all.

A job of thousands of ranks is read by the heads of their files alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, Final

from .._common.shared_paths import stored
from ..profiles.job import Job
from ..profiles.rank_digest import RankDigest
from .checked import DamagedError, member, reader_of, record
from .document import FileFormat
from .profile_file import run_of

FORMAT: Final = FileFormat("pytorch_memlab.job", 1, noun="answer of a job", damaged="a damaged job")
_KEY: Final = '"job":'
_BEFORE_KEY: Final = 400
"""Characters of a file in which the digest begins."""


def digest_data(digest: RankDigest) -> dict[str, Any]:
    """The digest as an object of columns."""
    return {
        **asdict(replace(digest, lines={})),
        "run": {**asdict(digest.run), "program": stored(digest.run.program)},
        "lines": list(digest.lines),
        "peaks": [peak for peak, _ in digest.lines.values()],
        "kept": [kept for _, kept in digest.lines.values()],
    }


def digest_in(head: str) -> RankDigest | None:
    """The digest in the beginning of a file; None if it has none, or not all of it.

    Raises:
        DamagedError: it is none that ``digest_data`` made.
    """
    start = head.find(_KEY, 0, _BEFORE_KEY)
    if start < 0:
        return None
    try:
        data, _ = json.JSONDecoder().raw_decode(head, start + len(_KEY))
    except ValueError:
        return None
    names = reader_of(tuple[str, ...])("lines", member(data, "lines"))
    columns = [reader_of(tuple[int, ...])(name, member(data, name)) for name in ("peaks", "kept")]
    if any(len(column) != len(names) for column in columns):
        raise DamagedError("a line of the digest has no size")
    lines = dict(zip(names, zip(*columns, strict=True), strict=True))
    return record(RankDigest, data, run=run_of(member(data, "run")), lines=lines)


def text_of(job: Job) -> str:
    """The answer as one JSON document."""
    return FORMAT.text_of({**asdict(job), "program": stored(job.program)})


def load(text: str, file: str) -> Job:
    """The answer that ``text_of`` made the text of."""
    return FORMAT.load(text, file, lambda data: record(Job, data))
