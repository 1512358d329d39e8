"""The frames of all threads, asked for while each allocation starts a garbage collection."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

import pytest

from pytorch_memlab._common.frames.thread_frames import thread_frames


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="collections begin between two instructions of Python only"
)
def test_no_garbage_collection_begins_while_the_frames_of_threads_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that lets another thread run would hang the process: python/cpython issue 106883."""
    started, ends = threading.Barrier(9), threading.Event()

    def wait() -> None:
        started.wait()
        ends.wait()

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    callers: list[str] = []
    read = sys._current_frames

    def reading() -> dict[int, FrameType]:
        return read()

    monkeypatch.setattr(sys, "_current_frames", reading)

    def note(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            callers.append(sys._getframe(1).f_code.co_name)

    threshold, enabled = gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(note)
    gc.enable()
    gc.set_threshold(1)
    try:
        frames = thread_frames()
        is_on = gc.isenabled()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
        if not enabled:
            gc.disable()
        ends.set()
        for thread in threads:
            thread.join()

    assert is_on
    assert "reading" not in callers
    assert {thread.ident for thread in threads} <= set(frames)
