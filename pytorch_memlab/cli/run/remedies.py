"""Remedies for a program that ran out of memory under ``run``, tried before they are shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..._common.ranks import prints
from ..notices import tell

if TYPE_CHECKING:
    from ..._common.uncaught_errors import Report
    from ...advice.trials import TrialProgram


class RemedyTrials:
    """Runs the program again with each remedy, in other processes and without values."""

    def __init__(self, program: Callable[[], TrialProgram | None]) -> None:
        self._program = program
        self._began = time.monotonic()

    def add_to(self, report: Report) -> None:
        """Put what helped into a report; a failure here never hides the report."""
        if report.facts is None or report.is_shown or not prints():
            return
        from ...advice.trials import changes_for, seconds_for, tried_advice
        from ...render.oom import text

        program = self._program()
        if program is None or not changes_for(report.facts):
            return
        seconds = seconds_for(time.monotonic() - self._began)
        tell(f"out of memory: trying remedies for at most {seconds:.0f} s (--no-try leaves it out)")
        try:
            report.advice = tried_advice(report.facts, program, seconds)
            report.text = text(report.facts, report.advice)
        except Exception as error:
            tell(f"the remedies could not be tried: {type(error).__name__}: {error}")
