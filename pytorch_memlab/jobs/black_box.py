"""The black box of a process: its profile in a file, every few seconds and when the process ends.

Note [Profiles of a running program]
A thread takes the profile while the program goes on. Python switches between threads at any
instruction, and tables must not change while they are read. So the thread asks for longer turns
first, waits until no other thread is within this package, and reads the tables in one turn, of
some milliseconds. It makes and writes the text afterwards, in turns as short as before. If the
program is within this package for ``_PATIENCE`` seconds, as in the simulation of one large op, the
tables are read as they are.

What was written stays until the next file is whole. A file without an end says when it was written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Final

from .._common.frames.thread_frames import thread_frames
from .._common.frames.user_code import OWN_FOLDER, is_of_user
from .._common.process.garbage_collection import no_garbage_collection
from .._common.process.ranks import LIGHTNING, SPAWN, JobRank, this_rank
from .._common.text.shared_paths import private_names, shown
from ..errors import UsageError
from ..profiles.privacy import without_private_facts
from ..profiles.rank_digest import digest_of
from ..profiles.recorded import RecordedProfile
from ..render.notes import in_words
from ..saved import profile_file
from ..saved.job_file import digest_data
from .folder import JobFolder

SAVE_EVERY: Final = 30.0
"""Seconds between two files of a process."""

_SHARE: Final = 200
"""By default the CPU time of a file is at most this part of the time until the next one."""

_TURN: Final = 0.1
"""Seconds of a turn in which the tables are read; it ends as soon as they are."""

_PAUSE: Final = 0.02
_PATIENCE: Final = 3.0


class BlackBox:
    """Writes the profile of this process into the folder of its job."""

    def __init__(self, folder: JobFolder, every: float | None, *, is_private: bool) -> None:
        self.folder = folder
        self.rank = this_rank()
        """The rank of this process as it was last known: Lightning takes it back at its end."""
        self._is_default = every is None
        self._every = SAVE_EVERY if every is None else every
        self._is_private = is_private
        self._process = os.getpid()
        self._wakes = threading.Event()
        self._is_done = False
        self._writing = threading.Lock()  # of the file
        self._has_failed = False

    def start(self, process: ExitStack, take: Callable[[], RecordedProfile]) -> None:
        """Write what ``take`` returns from time to time, until a stack closes."""
        thread = threading.Thread(
            target=self._save_always, args=(take,), name="pytorch-memlab black box", daemon=True
        )
        thread.start()
        process.callback(self._stop)

    def save_now(self) -> None:
        """Let the file be written as soon as possible; the caller does not wait."""
        self._wakes.set()

    @property
    def is_finished(self) -> bool:
        """True once ``finish`` was called: it has the last profile."""
        return self._is_done

    def finish(self, profile: RecordedProfile, error: BaseException | None) -> str | None:
        """Write the profile of a process that has ended; the name of its file, None without one."""
        # Raises UsageError if the profile cannot be written.
        if os.getpid() != self._process:
            return None
        self._stop()
        if _used_no_gpu(profile) and not self._rank_now().launcher and self.folder.has_files():
            return None  # it started the ranks, and is none
        acquired = self._writing.acquire(timeout=_PATIENCE)
        try:
            return self._write(profile, _line_of(error))
        finally:
            if acquired:
                self._writing.release()

    def _stop(self) -> None:
        self._is_done = True
        self._wakes.set()

    def _save_always(self, take: Callable[[], RecordedProfile]) -> None:
        while not self._is_done:
            self._wakes.wait(self._every)
            self._wakes.clear()
            began = time.thread_time()
            if not self._is_done:
                self._save(take)
            if self._is_default:
                self._every = max(SAVE_EVERY, (time.thread_time() - began) * _SHARE)

    def _save(self, take: Callable[[], RecordedProfile]) -> None:
        try:
            profile, line = taken(take)
            if _used_no_gpu(profile) and not self._rank_now().launcher:
                return  # it may be about to start the ranks
            with self._writing:
                if not self._is_done:
                    self._write(profile, line)
            self._has_failed = False
        except UsageError as error:
            if not self._has_failed:
                _warn(error)
            self._has_failed = True  # the disk may have room again the next time
        except RuntimeError as error:
            _warn(f"no profile was taken: {error}")

    def _rank_now(self) -> JobRank:
        """The rank that a launcher gave, or that the program itself has by now."""
        own = this_rank()
        if not own.launcher:
            own = self.rank
        distributed = sys.modules.get("torch.distributed")
        is_by_program = own.launcher in ("", LIGHTNING, SPAWN)
        if is_by_program and distributed and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
            own = replace(own, rank=rank, world_size=world_size)
        self.rank = own
        return own

    def _write(self, profile: RecordedProfile, line: str) -> str:
        rank = self._rank_now()
        run = replace(
            profile.runs[0],
            rank=rank.rank,
            world_size=rank.world_size,
            local_rank=rank.local_rank,
            node=rank.node,
            attempt=rank.attempt,
            launcher=rank.launcher,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            save_every=round(self._every, 1),
            last_line=line,
        )
        profile = replace(profile, runs=(run,))
        if self._is_private:
            profile = without_private_facts(profile)
        with private_names(self._is_private):
            text = profile_file.text_of(in_words(profile), digest_data(digest_of(profile)))
        name = self.folder.claim(rank)
        self.folder.write(text)
        return name


def _warn(message: object) -> None:
    with suppress(OSError, ValueError, AttributeError):  # standard error may be closed, or full
        print(f"pytorch-memlab: {message}", file=sys.stderr, flush=True)


def _used_no_gpu(profile: RecordedProfile) -> bool:
    return not any(
        device.peak_reserved for device in profile.devices if device.device.name != "cpu"
    )


def taken(take: Callable[[], RecordedProfile]) -> tuple[RecordedProfile, str]:
    """The profile, and the line of the main thread; see Note [Profiles of a running program]."""
    patience = time.monotonic() + _PATIENCE
    with _long_turns():
        while True:
            time.sleep(_PAUSE)  # threads that wait for their turn ask for it with the old length
            is_late = time.monotonic() > patience
            if is_late or not _is_measuring():
                try:
                    with no_garbage_collection():
                        return take(), _line_of(None, running=True)
                except RuntimeError:  # a table changed after all
                    if is_late:
                        raise


@contextmanager
def _long_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(max(before, _TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _is_measuring() -> bool:
    """True if another thread is within this package, which the program called."""
    own = threading.get_ident()
    return any(
        is_within_package(frame) for thread, frame in thread_frames().items() if thread != own
    )


def is_within_package(frame: FrameType | None) -> bool:
    """True if the user's code called into this package, and the innermost call has not ended."""
    is_within = False
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_of_user(filename):
            return is_within
        is_within = is_within or filename.startswith(OWN_FOLDER)
        frame = frame.f_back
    return False  # a thread of this package or of a library


def _line_of(error: BaseException | None, *, running: bool = False) -> str:
    """The line of an error, or else at which the main thread is; empty for a program that ended."""
    if isinstance(error, SystemExit) or (error is None and not running):
        return ""
    places = []
    trace = None if error is None else error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    places.reverse()
    if not any(is_of_user(filename) for filename, _ in places):  # a signal, which came anywhere
        frame = thread_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            places.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
    for filename, line in places:
        if is_of_user(filename):
            return f"{shown(filename)}:{line}"
    return ""
