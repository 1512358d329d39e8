"""One trial of a target."""

from __future__ import annotations

from pytorch_memlab.fitting.trial import TrialRequest, run


def run_trial(target, gpu, changes=(), steps=None, **options):
    """Run a program once without values, in another process."""
    return run(TrialRequest(target, gpu, tuple(changes), steps, **options))
