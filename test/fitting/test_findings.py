"""Findings that changes make in the process of a trial."""

from __future__ import annotations

from contextlib import contextmanager

from support.trials import run_trial

from pytorch_memlab.fitting.change import Change
from pytorch_memlab.fitting.target import FunctionTarget
from pytorch_memlab.fitting.trial import Ending
from pytorch_memlab.simulation.hardware.presets import find_gpu


class Counts(Change):
    """Finds how often the program ran while it was applied."""

    calls = 0
    was_on = False

    @contextmanager
    def applied(self):
        self.was_on = True
        yield

    def finding(self):
        return self.was_on, self.calls


def test_a_trial_brings_back_what_each_change_found():
    counts = Counts()

    def program():
        counts.calls += 1

    trial = run_trial(FunctionTarget(program), find_gpu("24GiB"), [Change(), counts])
    assert trial.ending is Ending.SETTLED
    assert trial.findings == (None, (True, 3))
    assert counts.calls == 0, "the trial ran in another process"


def test_a_program_that_fails_has_findings_too():
    counts = Counts()

    def program():
        counts.calls += 1
        raise ValueError("no data")

    trial = run_trial(FunctionTarget(program), find_gpu("24GiB"), [counts])
    assert trial.ending is Ending.ERROR
    assert trial.findings == ((True, 1),)
