"""Remedies for a program under ``run``, tried before they are shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..._common.process.ranks import prints
from ..._common.process.standard_output import print_to_stdout
from ..notices import tell, tell_in_terminal

if TYPE_CHECKING:
    from ..._common.process.uncaught_errors import ErrorReport
    from ...advice.trials import TrialProgram
    from .profile import Profile


class RemedyTrials:
    """Runs the program again with each remedy, in other processes and without values."""

    def __init__(
        self, program: Callable[[], TrialProgram | None], *, asks_for_all: bool = False
    ) -> None:
        self._program = program
        self._asks_for_all = asks_for_all
        self._began = time.monotonic()

    def add_to(self, report: ErrorReport) -> None:
        """Put what helped into a report; a failure here never hides the report."""
        if report.facts is None or report.is_shown or not prints():
            return
        from ...advice.trials import can_be_tried, seconds_for, tried_advice
        from ...render.oom import text

        program = self._program()
        if program is None or not can_be_tried(report.facts):
            return
        seconds = seconds_for(time.monotonic() - self._began)
        tell(f"out of memory: trying remedies for at most {seconds:.0f} s (--no-try leaves it out)")
        try:
            report.advice = tried_advice(report.facts, program, seconds)
            report.text = text(report.facts, report.advice)
        except Exception as error:
            tell(f"the remedies could not be tried: {type(error).__name__}: {error}")

    def tell_best(self, profile: Profile) -> None:
        """Show what lowers the peak, if the program ended well and it is worth a second run."""
        error = sys.exc_info()[1]
        has_failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if has_failed or not prints() or not (self._asks_for_all or profile.is_critical):
            return
        from ...advice.trials import advice_without_error, seconds_for
        from ...render.advice import without_error

        program = self._program()
        if program is None:
            return
        seconds = seconds_for(time.monotonic() - self._began)
        tell_in_terminal(f"trying what lowers the peak for at most {seconds:.0f} s")
        try:
            advice = advice_without_error(program, seconds, only_faults=not self._asks_for_all)
        except Exception as problem:
            tell(f"the remedies could not be tried: {type(problem).__name__}: {problem}")
            return
        text = without_error(advice, None if self._asks_for_all else 1)
        if text:
            print_to_stdout(f"\n{text}")
        elif self._asks_for_all:
            tell(f"no remedy lowers the peak{': ' * bool(advice.untried)}{advice.untried}")
