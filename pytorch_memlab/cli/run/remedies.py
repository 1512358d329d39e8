"""Remedies for a program under ``run``, tried before they are shown."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ..._common.process.ranks import prints
from ..._common.process.standard_output import print_to_stdout
from ..common_options import memory_overhead, simulated_gpus
from ..notices import tell, tell_in_terminal

if TYPE_CHECKING:
    from ..._common.process.uncaught_errors import ErrorReport
    from ...advice.trial_records import TrialProgram
    from .program_profile import Profile
    from .steps import Steps

_STEPS_BEYOND: Final = 2
"""Optimizer steps that a trial goes on for after those before the error."""


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


def trial_program(
    options: argparse.Namespace, steps: Steps, folder: str, environment: Mapping[str, str]
) -> TrialProgram | None:
    """The program as it was started; None on a real GPU."""
    from ...advice.trial_records import TrialProgram
    from ...devices import simulated_machine
    from ...fitting.target import ProgramTarget
    from ...fitting.trial import Settings

    machine = simulated_machine()
    if machine is None:
        return None
    context, others = memory_overhead(options)
    return TrialProgram(
        ProgramTarget(options.script, tuple(options.arguments), options.is_module),
        machine.gpus[0].model,
        Settings(
            least_steps=steps.done + _STEPS_BEYOND,
            num_gpus=simulated_gpus(options),
            context=context,
            others=others,
        ),
        folder,
        environment,
        computes=not options.dry_run,
    )
