"""Messages on how far a long simulated run is: in a terminal only."""

from __future__ import annotations

import io
import sys
import threading

import torch

from pytorch_memlab import simulate
from pytorch_memlab.cli.run.steps import progress_shown
from pytorch_memlab.simulation.machine import active


class Terminal(io.StringIO):
    """A terminal that says when something was written to it."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        count = super().write(text)
        if "\n" in text:
            self.written.set()
        return count


def test_a_line_says_the_steps_and_the_peak(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    before = threading.enumerate()

    with simulate("24GiB"):
        torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        with progress_shown(active.machine, lambda: 7, seconds=(0.0, 600.0)):
            assert terminal.written.wait(60)
            assert threading.enumerate() == before

    (line,) = terminal.getvalue().splitlines()
    assert "pytorch-memlab: running for 0:0" in line
    assert ", 7 optimizer steps, peak so far 3.0 MiB" in line


def test_nothing_runs_where_nobody_looks_on(monkeypatch):
    threads = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: threads.append(1))

    with simulate("24GiB"), progress_shown(active.machine, lambda: 0):
        pass
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_shown(None, lambda: 0):
        pass
    assert threads == []
    with simulate("24GiB"), progress_shown(active.machine, lambda: 0):
        pass
    assert threads == [1]
