"""Ranks of a job in JSON: the digest at the head of each rank's file, and the answer of all.

A job of thousands of ranks is read by the heads of their files alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, Final

from .._common.shared_paths import stored
from .._common.version import __version__
from ..errors import ProfileError
from ..profiles.job import Job, RankEnd, RankGroup, Spread
from ..profiles.rank_digest import RankDigest
from .checked_json import Checked, DamagedError, check_version
from .checksum import check, with_checksum
from .profile_file import run_of

FORMAT: Final = "pytorch_memlab.job"
VERSION: Final = 1
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
    return _digest(Checked(data))


def _digest(data: Checked) -> RankDigest:
    names = data.texts("lines")
    columns = [data.indexes(name, 1 << 62) for name in ("peaks", "kept")]
    if any(len(column) != len(names) for column in columns):
        raise DamagedError("a line of the digest has no size")
    return data.record(
        RankDigest,
        run=run_of(data.object("run")),
        categories=data.by_name("categories", Checked.count),
        held=data.by_name("held", Checked.count),
        lines=dict(zip(names, zip(*columns, strict=True), strict=True)),
        taken=data.count("taken") if data.has("taken") else 0,
    )


def is_job(text: str) -> bool:
    """True if a text is the answer of a job, perhaps a damaged one."""
    return f'"format":"{FORMAT}"' in text[:200]


def text_of(job: Job) -> str:
    """The answer as one JSON document."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        **asdict(job),
        "program": stored(job.program),
    }
    return with_checksum(json.dumps(data, allow_nan=False, separators=(",", ":")))


def load(text: str, called: str) -> Job:
    """The answer that ``text_of`` made the text of."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ProfileError(f"{called} is cut off or damaged: it is no JSON") from None
    check(text, data, called)
    check_version(data, VERSION, called)
    try:
        return _job(Checked(data))
    except DamagedError as error:
        raise ProfileError(f"{called} is a damaged job: {error}") from None


def _job(data: Checked) -> Job:
    return data.record(
        Job,
        ends=tuple(one.record(RankEnd) for one in data.objects("ends")),
        groups=tuple(
            one.record(RankGroup, ranks=one.indexes("ranks", 1 << 62))
            for one in data.objects("groups")
        ),
        peak=data.object("peak").record(Spread),
        categories=tuple(one.record(Spread) for one in data.objects("categories")),
        lines=tuple(one.record(Spread) for one in data.objects("lines")),
    )
