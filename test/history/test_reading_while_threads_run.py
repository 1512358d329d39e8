"""A recording is read at any time, also while other threads allocate, free or read."""

from __future__ import annotations

import threading

import pytest
import torch

from pytorch_memlab._common.frames import call_stacks as module_of_stacks
from pytorch_memlab._common.frames.call_stacks import CallStacks, TakenStack, capture
from pytorch_memlab.history import live_blocks
from pytorch_memlab.history.live_blocks import LiveBlock, LiveBlocks
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.simulation import simulate

SHORT = 0.3
"""Seconds for another thread that has to wait for this one; none of them decides a result."""


@pytest.fixture
def recording():
    with simulate("24GiB", compute=False):
        torch.zeros(1, device="cuda")
        recording = Recording(history=True)
        recording.begin()
        yield recording
        recording.end()
        recording.forget()


@pytest.fixture
def log(recording):
    return next(iter(recording._peaks)).live[0].log


def in_thread(work):
    """Begin work in another thread, which may have to wait for this one."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SHORT)
    return thread


def actions(recording):
    return [event.action for event in recording.history().of_device(0).events]


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_two_threads_that_read_at_once_find_each_event_once(recording, log):
    found, threads = [], []

    class Interrupted(list):
        def __getitem__(self, index):
            events = super().__getitem__(index)
            if not threads:
                threads.append(None)
                threads[0] = in_thread(lambda: found.append(actions(recording)))
            return events

    x = torch.zeros(10, device="cuda")
    del x
    log.open = Interrupted(log.open)
    found.append(actions(recording))
    threads[0].join()
    expected = ["alloc", "free_completed"]
    assert [[one for one in each if one in expected] for each in found] == [expected, expected]


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_a_free_does_not_wait_for_a_thread_that_reads(recording, log, monkeypatch):
    monkeypatch.setattr(live_blocks, "_MOST_OPEN", 1)
    reads, is_done = threading.Event(), threading.Event()

    def read():
        with log._reading:
            reads.set()
            is_done.wait(5)

    reader = threading.Thread(target=read)
    reader.start()
    reads.wait(5)
    x = torch.zeros(10, device="cuda")
    del x
    is_done.set()
    reader.join()
    assert [one for one in actions(recording) if one != "segment_alloc"] == [
        "alloc",
        "free_completed",
    ]


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_blocks_at_the_peak_are_those_of_one_moment(recording, monkeypatch):
    kept = [torch.zeros(1000, device="cuda")]
    threads, blocks = [], LiveBlocks.blocks

    def interrupted(live):
        found = blocks(live)
        if not threads:
            threads.append(None)
            threads[0] = in_thread(lambda: kept.append(torch.zeros(2000, device="cuda")))
        return found

    monkeypatch.setattr(LiveBlocks, "blocks", interrupted)
    peak = recording.peak_holders().peak
    threads[0].join()
    assert len(kept) == 2
    assert sum(block.size for block in peak.blocks) == peak.active


def test_a_stack_that_is_dropped_while_all_are_read_is_left_out(monkeypatch):
    class Dropped(TakenStack):
        """It is dropped by another thread after the first look at it."""

        @property
        def raw(self):
            raw, self._raw = self._raw, None
            return raw

        @raw.setter
        def raw(self, raw):
            self._raw = raw

    given = []
    monkeypatch.setattr(
        module_of_stacks, "_symbolize", lambda raws: given.extend(raws) or [[] for _ in raws]
    )
    stacks = CallStacks()
    stacks.add(Dropped(capture()))
    stacks.add(TakenStack(capture()))
    stacks.read()
    assert len(given) == 2
    assert None not in given


def test_the_end_of_a_block_that_another_thread_reads_now_is_read_once(monkeypatch):
    block = LiveBlock(512, 512, 512)
    block.end = capture()
    numbers_of, given = live_blocks.call_stacks.numbers_of, []

    class Read(list):
        def __iter__(self):
            yield from super().__iter__()
            block.end = 7

    def noted(raws):
        given.extend(raws)
        return numbers_of(raws)

    monkeypatch.setattr(live_blocks.call_stacks, "numbers_of", noted)
    live_blocks.read_ends(Read([block]))
    assert not any(isinstance(one, int) for one in given)
