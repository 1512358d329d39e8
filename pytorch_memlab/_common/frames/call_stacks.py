"""Python stacks: taken in about a microsecond, and read when they are asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch

from ..interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .user_code import FILES_OF_MODES, OWN_FOLDER

FrameLine = tuple[str, int, str]
"""Filename, number of the line, and name of the function of a frame."""

_TORCHS_PARENT: Final = os.path.dirname(os.path.dirname(torch.__file__))
SKIPPED: Final = (OWN_FOLDER, *(os.path.join(_TORCHS_PARENT, file) for file in FILES_OF_MODES))
"""Files whose frames only this package puts on the stack: its own, and torch's for its modes."""

_MOST_UNREAD: Final = 4096
"""Stacks that wait to be read."""

_FEW_ALIKE: Final = 16
"""Stacks of one length and one frame in the middle that are compared one by one."""

_profiler: Any = torch._C._profiler
_symbolize: Callable[[list[Any]], list[list[dict[str, Any]]]] = _profiler.symbolize_tracebacks
capture: Callable[[], Any] = partial(_profiler.gather_traceback, True, False, False)
"""The stack of this thread now, as ``CallStacks.numbers_of`` reads it; it holds its code objects,
and has about a kilobyte."""

_COMPILER: Final = "_inductor"
"""A part of torch that is imported when it is first used."""


class TakenStack:
    """A stack at one moment, which is read together with others."""

    number = 0  # of the stack in its table; 0 until it was read
    is_kept = False  # True if it is asked for later, so that ``drop`` does nothing

    def __init__(self, raw: Any) -> None:
        self.raw = raw  # as it was taken; None once it was read or dropped

    def drop(self) -> None:
        """Give it up: nothing asks for it later."""
        if not self.is_kept:
            self.raw = None


class CallStacks:
    """Stacks of a program, innermost frame first, without this package's; equal ones once."""

    def __init__(self) -> None:
        self._unread: list[TakenStack] = []
        self._places: list[FrameLine] = []
        self._place_numbers: dict[FrameLine, int] = {}
        self._stacks: list[tuple[int, ...]] = [()]
        self._stack_numbers: dict[tuple[int, ...], int] = {(): 0}
        self._lock = threading.RLock()

    def take(self) -> TakenStack:
        """The stack of this thread now, which is read when some thousand more were taken."""
        taken = TakenStack(capture())
        self.add(taken)
        return taken

    def add(self, taken: TakenStack) -> None:
        """Read a stack together with the others."""
        unread = self._unread
        unread.append(taken)
        if len(unread) > _MOST_UNREAD:
            self.read()

    def drop(self, taken: TakenStack) -> None:
        """Give up a stack: one that was taken last leaves nothing behind."""
        if not taken.is_kept:
            taken.raw = None
            unread = self._unread
            if unread and unread[-1] is taken:
                unread.pop()

    def read(self, also: Iterable[TakenStack] = ()) -> None:
        """Give a number to all stacks that were taken."""
        with self._lock:
            unread, self._unread = self._unread, []
            # Another thread may drop a stack now, and torch crashes if it has to read None.
            left = [(taken, raw) for taken in (*unread, *also) if (raw := taken.raw) is not None]
            numbers = self.numbers_of([raw for _, raw in left])
            for (taken, _), number in zip(left, numbers, strict=True):
                taken.number, taken.raw = number, None

    def numbers_of(self, captured: Sequence[Any]) -> list[int]:
        """The numbers of stacks that ``capture`` returned; 0 is that of a stack without frames."""
        with self._lock:
            different: dict[Any, int] = dict.fromkeys(captured, 0)
            symbolized = _symbolized(list(different))
            place_numbers: dict[int, int] = {}
            numbered: dict[tuple[int, int], list[tuple[list[dict[str, Any]], int]]] = {}
            for raw, frames in zip(different, symbolized, strict=True):
                # Lists with the same objects are equal at once; a key of them all costs more.
                size = len(frames)
                alike = numbered.setdefault((size, id(frames[size // 2]) if size else 0), [])
                for other, number in alike:
                    if other == frames:
                        different[raw] = number
                        break
                else:
                    different[raw] = number = self._number(
                        tuple(self._numbers(frames, place_numbers))
                    )
                    alike.append((frames, number))
                    del alike[:-_FEW_ALIKE]
            return [different[raw] for raw in captured]

    def number_of(self, taken: TakenStack) -> int:
        """The number of a stack that was taken."""
        if taken.raw is not None:
            self.read([taken])
        return taken.number

    def places(self, taken: TakenStack) -> tuple[FrameLine, ...]:
        """The frames of a stack."""
        return self.places_of(self.number_of(taken))

    def places_of(self, number: int) -> tuple[FrameLine, ...]:
        """The frames of the stack that has a number."""
        return tuple(self._places[place] for place in self._stacks[number])

    def _number(self, stack: tuple[int, ...]) -> int:
        number = self._stack_numbers.setdefault(stack, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(stack)
        return number

    def _numbers(
        self, frames: Sequence[dict[str, Any]], place_numbers: dict[int, int]
    ) -> list[int]:
        """The numbers of a stack's places, those of the package left out."""
        # A function of torch calls the function mode, which calls it again: that is one frame.
        numbers: list[int] = []
        called_by_mode = -1
        for frame in frames:
            number = place_numbers.get(id(frame))
            if number is None:
                number = place_numbers[id(frame)] = self._place_number(frame)
            if number < 0:
                called_by_mode = numbers[-1] if numbers else -1
                continue
            if called_by_mode < 0 or not self._is_same_function(number, called_by_mode):
                numbers.append(number)
            called_by_mode = -1
        return numbers

    def _place_number(self, frame: dict[str, Any]) -> int:
        place = frame["filename"], frame["line"], frame["name"]
        if place[0].startswith(SKIPPED):
            return -1
        number = self._place_numbers.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number

    def _is_same_function(self, number: int, other: int) -> bool:
        (file, _, name), (other_file, _, other_name) = self._places[number], self._places[other]
        return file == other_file and name == other_name


def _symbolized(raws: list[Any]) -> list[list[dict[str, Any]]]:
    """The frames that torch reads of stacks; equal frames are one object."""
    # It looks into its compiler for the lines of compiled code, and would import all of it first,
    # which takes more than a second. Where it was not imported, no code is compiled.
    names = vars(torch)
    if _COMPILER in names:
        return _frames(raws)
    with uninterrupted(*STANDARD_SIGNALS):
        names[_COMPILER] = None
        try:
            return _frames(raws)
        finally:
            if names.get(_COMPILER) is None:
                names.pop(_COMPILER, None)


def _frames(raws: list[Any]) -> list[list[dict[str, Any]]]:
    """The frames of stacks; none of one with a file name that is not UTF-8: torch refuses it."""
    try:
        return _symbolize(raws)
    except RuntimeError:
        return [[]] if len(raws) == 1 else [_frames([raw])[0] for raw in raws]


call_stacks: Final = CallStacks()
"""The stacks of this process."""
