"""Stacks of forward ops: those that are not needed after a recording cost nothing more."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab._common.frames.call_stacks import call_stacks
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.inspect import LoggedBlock


@pytest.fixture
def recording():
    with simulate("24GiB", compute=False):
        recording = Recording()
        recording.begin()
        yield recording
        recording.end()
        recording.forget()


def waiting():
    """Stacks of ops that the next reading would read."""
    unread = [taken for taken in call_stacks._unread if not isinstance(taken, LoggedBlock)]
    return [taken for taken in unread if taken.raw is not None]


def forward():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
    return model(torch.ones(4, 64, device="cuda")).sum()


def test_those_that_no_block_names_are_dropped_with_the_recording(recording):
    call_stacks.read()
    loss = forward()
    assert len(waiting()) >= 9
    recording.end()
    assert waiting() == []
    assert loss.requires_grad


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_those_of_blocks_of_the_backward_pass_are_kept(recording):
    call_stacks.read()
    forward().backward()
    recording.end()
    kept = waiting()
    assert kept
    holders = recording.peak_holders()
    assert all(taken.raw is None for taken in kept)
    made = sum(row.backward for row in holders.by_line())
    assert made == sum(call.backward for call in holders.backward_calls()) > 0
