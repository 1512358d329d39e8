"""``pytorch-memlab``: reads the command line and hands it to a command."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from ..errors import MemlabError
from .command_line import COMMANDS, command_parser, main_parser, unknown_command
from .notices import tell_usage_error
from .process import CommandProcess


def entry() -> NoReturn:
    """Carry out ``sys.argv``, then end the process: the console script calls this."""
    # What a command put in force stays so until the threads and exit handlers of the program that
    # it ran are done.
    process = CommandProcess()
    atexit.register(process.end_late)  # the first that is registered is done last
    process.end_at_interrupts()
    # Registered after a simulation has registered its own end, and so done before that.
    when_prepared = partial(atexit.register, process.__exit__, None, None, None)
    process.status = _carry_out(sys.argv[1:], process, when_prepared)
    sys.exit(process.status)


def main(arguments: Sequence[str]) -> int:
    """Carry out a command line within this process, and give everything back."""
    with CommandProcess() as process:
        status = _carry_out(arguments, process)
    return status or process.late_status


def _carry_out(
    arguments: Sequence[str],
    process: CommandProcess,
    when_prepared: Callable[[], object] = lambda: None,
) -> int:
    if not arguments:
        main_parser().print_help()
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _without_command(arguments)
    options = command_parser(name).parse(rest)
    try:
        work = COMMANDS[name].prepare(options, process)
    except MemlabError as error:
        return tell_usage_error(name, error)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return tell_usage_error(name, _without_torch())
    finally:
        process.allow_interrupts()
        when_prepared()
    return work() or 0


def _without_torch() -> MemlabError:
    return MemlabError(
        f"PyTorch is not installed for {sys.executable}: {sys.executable} -m pip install torch"
        " installs it, or run the command in the environment that has it"
    )


def _without_command(arguments: Sequence[str]) -> int:
    parser = main_parser()
    if arguments[0] not in parser.shown_options():
        parser.error(unknown_command(arguments))
    parser.parse(arguments[:1])
    return 0
