"""Exceptions keep no frame of the modes that run the ops of a program, as they keep none of C++."""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from types import CodeType, TracebackType
from typing import Final, ParamSpec, TypeVar

from ...errors import MemlabError
from .user_code import OWN_FOLDER

P = ParamSpec("P")
T = TypeVar("T")

_ARGUMENTS = "_arguments_of_torch"
"""Attribute of an error for what frames of torch would keep."""

_EXPECTED = (RuntimeError, MemlabError, OSError)
"""Errors that are raised on purpose, wherever they come from."""

_PASS_ON: set[CodeType] = set()
"""Code that gives the program's arguments to torch: what that raises is its answer to them."""

_RAISE = dis.opmap["RAISE_VARARGS"]

_OURS = tuple(
    os.path.join(OWN_FOLDER, *parts)
    for parts in (
        ("simulation", ""),
        ("devices", "cpu.py"),
        ("tensors", "lines.py"),
        ("_common", "patching", "patches.py"),
        ("_common", "frames", "traceback_frames.py"),
    )
)
"""Files of the modes, of functions that stand for torch's, and of what they call."""


def without_frames(function: Callable[P, T], *, is_in_python: bool = False) -> Callable[P, T]:
    """A function that stands for one of torch: an error that leaves it names no frame of it."""
    # The frame of one that torch has in Python keeps its arguments for as long as the error lives:
    # ``Tensor.backward`` keeps the tensor, and so its graph. They are kept with the error.

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            clear_internal_frames(error)
            if is_in_python:
                vars(error).setdefault(_ARGUMENTS, []).append((args, kwargs))
            del args, kwargs
            raise

    vars(call).update(vars(function))  # what that wraps, if it does: torch looks it up
    return call


def is_without_frames(function: object) -> bool:
    """True for a function that ``without_frames`` made."""
    return getattr(function, "__code__", None) in without_frames.__code__.co_consts


def passes_on(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that gives arguments of the program to torch, whose errors are expected."""
    # The function alone is marked, not what it calls in Python.
    _PASS_ON.add(function.__code__)
    return function


def clear_internal_frames(error: BaseException) -> None:
    """Drop what frames of modes hold that an exception has passed through."""
    # A traceback keeps the frames that it names, and with them the tensors that they work on. Where
    # no mode is on these frames are C++'s, which are gone once they are left. Frames of the program
    # and of torch keep what they hold, as without a mode. The traceback does not name the frames of
    # modes either, nor what they called: what the user wants to see is the own line that failed.
    # Only where this package itself may be wrong do they stay.
    places = list(_places(error))
    ours = [place.tb_frame.f_code.co_filename.startswith(_OURS) for place in places]
    for place, is_ours in zip(places, ours, strict=True):
        if is_ours:
            with suppress(RuntimeError):  # it runs still
                place.tb_frame.clear()
    if any(ours) and (not ours[-1] or _is_expected(error, places)):
        error.__traceback__ = _joined(_without_internals(places, ours))


def _is_expected(error: BaseException, places: list[TracebackType]) -> bool:
    """False for what may be a mistake in this package, in the last frame of a traceback."""
    # A ``raise`` there is on purpose. Where it is the only frame, C++ refused the arguments.
    if isinstance(error, _EXPECTED) or len(places) == 1:
        return True
    last = places[-1]
    if last.tb_frame.f_code in _PASS_ON:
        return True
    raises = last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    return raises and not isinstance(error, AssertionError)


_OF_LOADING: Final = tuple(
    os.path.join("torch", name) for name in ("serialization.py", "_weights_only_unpickler.py")
)
"""Files of ``torch.load``, whose frames hold the tensors that were read before memory ran out."""


def _without_internals(places: list[TracebackType], ours: list[bool]) -> list[TracebackType]:
    """Neither own frames, nor those of torch that these called and that called no program."""
    # Those of ``torch.load`` stay.
    end = len(places)
    while end and not _is_of_program(places[end - 1].tb_frame.f_code.co_filename):
        end -= 1
    first_own = ours.index(True, end) if True in ours[end:] else len(places)
    kept = zip(places[:first_own], ours[:first_own], strict=True)
    loading = (
        place
        for place in places[first_own:]
        if place.tb_frame.f_code.co_filename.endswith(_OF_LOADING)
    )
    return [*(place for place, is_ours in kept if not is_ours), *loading]


def _is_of_program(file: str) -> bool:
    if "torch" not in sys.modules:  # in a command of a dry run, which does without it
        return True
    lines = sys.modules.get(f"{__package__}.program_lines")
    if lines is not None and not hasattr(lines, "is_of_program"):  # its own import looks at files
        return True
    from .program_lines import is_of_program

    return is_of_program(file)


def _joined(places: list[TracebackType]) -> TracebackType | None:
    following = None
    for place in reversed(places):
        place.tb_next = following
        following = place
    return following


def _places(error: BaseException) -> Iterator[TracebackType]:
    place = error.__traceback__
    while place is not None:
        yield place
        place = place.tb_next
