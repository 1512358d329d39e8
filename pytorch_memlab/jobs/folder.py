"""``NAME.memlab``: the folder of a job, with one file for each rank and attempt.

Note [The folder of a job]
Ranks start at different times, on several machines, and start again after one of them died. So a
rank that finds files in the folder must tell the files of this job from those of an older one. The
first rank leaves the name of the job in ``job.json``; a rank of another job is refused, or with
``--force`` removes the files of the older job. One of several ranks that do this at once moves
``job.json`` away; the others wait until it has come back.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .._common.process.checked_file import check_writable, write_file
from .._common.process.ranks import JobRank, this_rank
from .._common.process.real_files import on_disk
from ..errors import UsageError

ENDING: Final = ".memlab"

JOB_VARIABLE: Final = "PYTORCH_MEMLAB_JOB"
"""The name of the job, for the processes that ``run`` starts."""

_JOB: Final = "job.json"
_RANK_FILE: Final = re.compile(r"rank(\d+)\.attempt(\d+)(?:\.\d+)?\.json")
_PATIENCE: Final = 30.0
"""Seconds to wait for another rank that removes the files of an older job."""


def is_job_folder(path: str) -> bool:
    """True for a name that ends in ``.memlab``."""
    return path.rstrip("/\\").lower().endswith(ENDING)


def rank_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of ranks in the folder of a job, in the order of ranks and attempts."""
    matches = [(_RANK_FILE.fullmatch(path.name), path) for path in Path(folder).iterdir()]
    named = [(int(match[1]), int(match[2]), path) for match, path in matches if match is not None]
    return [path for *_, path in sorted(named)]


class JobFolder:
    """The folder of this job, made and checked before the program runs."""

    def __init__(self, name: str, *, replaces_older: bool, job: str | None = None) -> None:
        self.name = name.rstrip("/\\")
        self._path = Path(self.name).absolute()
        self._own: Path | None = None
        self._replaces_older = replaces_older
        own = this_rank()
        self.job = job or _name_of_job(own)
        with on_disk():
            is_new = not self._path.exists()
            try:
                self._path.mkdir(parents=False, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot make the folder {self.name}: {error.strerror}") from None
            check_writable(self._path / _JOB)
            try:
                self._join()
            except OSError as error:
                if is_new:
                    with suppress(OSError):  # another rank has joined
                        self._path.rmdir()
                raise UsageError(f"cannot write into {self.name}: {error.strerror}") from None
            if not replaces_older and self._file_of(own).exists():
                raise self._taken()

    def claim(self, rank: JobRank) -> str:
        """The name of the file of this process, which stays its own from the first time on."""
        if self._own is None:
            path = self._file_of(rank)
            with on_disk():
                is_taken = path.exists() and not self._replaces_older
            self._own = path.with_name(f"{path.stem}.{os.getpid()}.json") if is_taken else path
        return os.path.join(self.name, self._own.name)

    def write(self, text: str) -> None:
        """Write the file that was claimed, whole or not at all."""
        assert self._own is not None
        write_file(self._own, text, called=os.path.join(self.name, self._own.name))

    def has_files(self) -> bool:
        """True if a rank has written its file."""
        with on_disk():
            return bool(rank_files(self._path))

    def _file_of(self, rank: JobRank) -> Path:
        return self._path / f"rank{rank.rank}.attempt{rank.attempt}.json"

    def _join(self) -> None:
        """Make this folder that of this job; see Note [The folder of a job]."""
        patience = time.monotonic() + _PATIENCE
        while (job := self._job_there()) != self.job:
            if job is not None:
                if not self._replaces_older:
                    raise self._taken()
                self._remove_older()
            elif rank_files(self._path) and time.monotonic() < patience:
                time.sleep(0.05)  # another rank removes them
            elif _made(self._path / _JOB, json.dumps({"job": self.job})):
                return

    def _job_there(self) -> str | None:
        """The name of the job of this folder; None if there is none."""
        try:
            return str(json.loads((self._path / _JOB).read_text())["job"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            return ""  # no job of ours

    def _remove_older(self) -> None:
        away = self._path / f".{_JOB}.{secrets.token_hex(4)}.tmp"
        try:
            os.rename(self._path / _JOB, away)
        except FileNotFoundError:
            return  # another rank was first
        for path in rank_files(self._path):
            path.unlink(missing_ok=True)
        away.unlink()

    def _taken(self) -> UsageError:
        return UsageError(
            f"{self.name} has files of an older run: --force (force=True) removes them, or choose"
            " another name"
        )


def _made(path: Path, content: str) -> bool:
    """Make a file with its content at once; False if there is one."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.write_text(content)
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _name_of_job(own: JobRank) -> str:
    """A text that the ranks of one job have in common, and those of another job do not."""
    job_name = os.environ.get(JOB_VARIABLE)
    if job_name:
        return job_name
    if not own.launcher:
        return secrets.token_hex(8)
    return ".".join(_parts_of_name(own))


def _parts_of_name(own: JobRank) -> Iterator[str]:
    yield own.launcher
    if own.job:
        yield own.job
        return
    if own.local_world_size == own.world_size:  # one machine: one process started all ranks
        import psutil

        parent = psutil.Process(os.getppid())
        yield f"{socket.gethostname()}.{parent.pid}.{parent.create_time()}"
    else:
        yield os.environ.get("TORCHELASTIC_RUN_ID", "")
