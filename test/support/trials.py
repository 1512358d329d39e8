"""One trial of a target."""

from __future__ import annotations

from pytorch_memlab.fitting.trial import Settings, TrialRequest
from pytorch_memlab.fitting.trial_run import run


def run_trial(target, gpu, changes=(), steps=None, is_limited=False, **settings):
    """Run a program once without values, in another process."""
    return run(
        TrialRequest(
            target, gpu, Settings(steps=steps, **settings), tuple(changes), is_limited=is_limited
        )
    )
