"""The program runs, and its tables follow its end, whatever ends it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from ..._common.interrupts.whole_block import WholeStack
from ..._common.patching.patches import Patches
from ..._common.process import main_program
from ..._common.process.own_frames import without_own_frames
from ..._common.text.quoted import quoted
from ..._common.torch.optimizer_steps import ProgramDone
from .. import notices
from ..ending_signals import EndedBySignal, EndingSignals
from ..exit_codes import FAILED
from ..process import CommandProcess
from .max_peak import MaxPeak
from .program_profile import Profile


def run_program(
    program: Callable[[], object],
    starts: Sequence[Callable[[ExitStack], object]],
    ending: ExitStack,
    process: CommandProcess,
    profile: Profile,
    limit: MaxPeak,
    are_written: Callable[[], bool],
    signals: EndingSignals,
) -> int:
    """Run the program; its tables follow its exception, or else its threads and exit handlers."""
    for start in starts:
        start(process)
    measured, threads = WholeStack(), threading.enumerate()

    def end() -> None:
        with signals.report():
            ending.close()
        process.late_status = 0 if are_written() else FAILED

    def finish(status: int) -> int:
        measured.close()
        verdict = 0 if status else limit.exit_code(profile.peaks)
        end()
        return status or verdict or process.late_status

    def report(error: EndedBySignal) -> None:
        try:
            raise error  # the tables tell how the program ended
        except EndedBySignal:
            finish(128 + error.number)

    signals.start(process, report)
    process.last_work = end
    _before_exit(process, finish)
    _before_exec(process, finish)
    with without_own_frames(process):
        try:
            with measured:
                measured.enter_context(profile.measuring())
                program()
        except ProgramDone:
            pass  # the rest is as if the program had come to its end
        except BaseException as error:
            if isinstance(error, SystemExit):
                main_program.join_other_threads(threads)
            has_ended_well = isinstance(error, SystemExit) and not error.code
            verdict = limit.exit_code(profile.peaks) if has_ended_well else 0
            end()
            if verdict:
                return verdict
            if has_ended_well and process.late_status:
                return process.late_status
            raise
        main_program.join_other_threads(threads)
        return limit.exit_code(profile.peaks)


def _before_exit(process: ExitStack, finish: Callable[[int], int]) -> None:
    """Let ``os._exit`` of this process call a function first, which makes the exit code of it."""
    own_process = os.getpid()

    def exit_at_once(original: Callable[[int], NoReturn], status: int) -> NoReturn:
        try:
            if os.getpid() == own_process:
                raise SystemExit(status)  # the tables tell how the program ended
        except SystemExit:
            status = finish(status)
        finally:
            original(status)

    process.enter_context(Patches()).around(os, "_exit")(exit_at_once)


def _before_exec(process: ExitStack, finish: Callable[[int], int]) -> None:
    """Let ``os.exec*`` of this process call a function first: the program does not come back."""
    # All of them call ``os.execv`` or ``os.execve``, some for each folder of ``PATH`` until one has
    # the program.
    own_process = os.getpid()

    def replace_program(original: Callable[..., NoReturn], path: Any, *args: Any) -> NoReturn:
        if os.getpid() == own_process and _is_program(path):
            name = path if isinstance(path, int) else os.fsdecode(path)
            notices.tell(f"the program ends here: {quoted(name)} takes its place")
            try:
                raise SystemExit(0)  # the tables tell how the program ended
            except SystemExit:
                finish(0)
            sys.stdout.flush()
            sys.stderr.flush()
        original(path, *args)

    patches = process.enter_context(Patches())
    for name in ("execv", "execve"):
        if hasattr(os, name):
            patches.around(os, name)(replace_program)


def _is_program(path: Any) -> bool:
    """True if a process can become this file; a file descriptor is one that the program opened."""
    if isinstance(path, int):
        return True
    try:
        return os.path.isfile(path) and os.access(path, os.X_OK)
    except (TypeError, ValueError):
        return False
