"""Tables on standard output at the end of a program, where no caller could handle an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from ..interrupts.whole_block import whole_block

_RAISING = ("strict", "surrogateescape", "surrogatepass")
"""How streams handle what they cannot encode, where that can be an error. A C locale has the
second."""


def write_to_stdout(write: Callable[[TextIO], object]) -> None:
    """Write tables to the ``sys.stdout`` of this moment, or say on standard error why not."""
    stream: TextIO | None = sys.stdout
    if stream is None or getattr(stream, "closed", False):
        _say("it is closed")
        return
    try:
        with without_encoding_errors(stream):
            write(stream)
            stream.flush()
    except BrokenPipeError:  # a reader such as ``head`` has what it wants
        _release(stream)
    except OSError as error:
        _say(error.strerror or str(error))
        _fail_at_exit(stream)


def print_to_stdout(text: str) -> None:
    """Write a text to the ``sys.stdout`` of this moment, as ``write_to_stdout`` does."""
    write_to_stdout(lambda stream: stream.write(text))


@whole_block
def without_encoding_errors(stream: Any) -> Iterator[None]:
    """Write ``?`` for what a stream cannot encode, such as one for Latin-1 or of Windows."""
    errors = getattr(stream, "errors", None)
    if errors not in _RAISING or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        stream.reconfigure(errors=errors)


def _release(stream: TextIO) -> None:
    """Let what is left go nowhere: Python complains about what it cannot flush at its end."""
    with suppress(OSError, ValueError):  # a stream of the program's own may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _fail_at_exit(stream: TextIO) -> None:
    """Leave a newline that Python cannot flush at its end either: it exits with 120 then."""
    with suppress(OSError, ValueError):  # as in _release
        sys.stdout = open(stream.fileno(), "w", closefd=False)  # noqa: SIM115 - until the end
        sys.stdout.write("\n")


def _say(reason: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"cannot write the memory tables to standard output: {reason}", file=sys.stderr)
