"""Ranks of a job in JSON: the digest at the head of each rank's file, and the answer of all.

A job of thousands of ranks is read by the heads of their files alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from .._common.text.shared_paths import stored
from ..profiles.job import Job
from ..profiles.rank_digest import RankDigest
from ..profiles.recorded import Run
from .checked import DamagedError, data_of, record
from .document import FileFormat
from .profile_file import with_masked_arguments

FORMAT: Final = FileFormat("pytorch_memlab.job", 1, noun="answer of a job", damaged="a damaged job")
_KEY: Final = '"job":'
_BEFORE_KEY: Final = 400
"""Characters of a file in which the digest begins."""


@dataclass(frozen=True, slots=True)
class _Digest:
    """A digest as a file has it: ``RankDigest`` with its lines in columns."""

    run: Run
    device: str
    capacity: int
    active: int
    reserved: int
    categories: dict[str, int]
    held: dict[str, int]
    lines: tuple[str, ...]
    peaks: tuple[int, ...]
    kept: tuple[int, ...]
    taken: int = 0  # which older files lack


def digest_data(digest: RankDigest) -> dict[str, Any]:
    """The digest as an object of columns."""
    return {
        **asdict(replace(digest, lines={})),
        "run": data_of(digest.run),
        "lines": list(digest.lines),
        "peaks": [peak for peak, _ in digest.lines.values()],
        "kept": [kept for _, kept in digest.lines.values()],
    }


def digest_in(head: str) -> RankDigest | None:
    """The digest in the beginning of a file; None if it has none, or not all of it."""
    # Raises DamagedError for a digest that ``digest_data`` did not make.
    start = head.find(_KEY, 0, _BEFORE_KEY)
    if start < 0:
        return None
    try:
        data, _ = json.JSONDecoder().raw_decode(head, start + len(_KEY))
    except ValueError:
        return None
    digest = record(_Digest, data)
    if not len(digest.lines) == len(digest.peaks) == len(digest.kept):
        raise DamagedError("a line of the digest has no size")
    sizes = zip(digest.peaks, digest.kept, strict=True)
    return RankDigest(
        with_masked_arguments(digest.run),
        digest.device,
        digest.capacity,
        digest.active,
        digest.reserved,
        digest.categories,
        digest.held,
        dict(zip(digest.lines, sizes, strict=True)),
        digest.taken,
    )


def text_of(job: Job) -> str:
    """The answer as one JSON document."""
    return FORMAT.text_of({**asdict(job), "program": stored(job.program)})


def load(text: str, file: str) -> Job:
    """The answer that ``text_of`` made the text of."""
    return FORMAT.load(text, file, lambda data: record(Job, data))
