"""Places that call profiled functions: they grow with the program, not with the calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .._common.user_code import is_of_user

if TYPE_CHECKING:
    from types import CodeType

_is_of_user: dict[str, bool] = {}
"""File name -> whether it is the user's own."""

_PARTS_OF_FUNCTIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Code with own frames, some of them before Python 3.12, on lines of the function around."""


class CallSite:
    """A place in the user's code from which one function is called."""

    __slots__ = ("code", "delta", "hits", "offset")

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        # Of the instruction; to look up its line takes long in long code.
        self.offset = offset
        self.hits = 0
        self.delta: dict[str, int] = {}

    def add(self, device: str, delta: int) -> None:
        """A call, or the part of one until it waits, kept so many bytes on a device."""
        self.delta[device] = self.delta.get(device, 0) + delta

    @property
    def line(self) -> int:
        """Number of the line."""
        found = (
            line
            for start, end, line in self.code.co_lines()
            if start <= self.offset < end and line is not None
        )
        return next(found, self.code.co_firstlineno)


CallSites = dict[tuple[int, int], CallSite]
"""By the ``id`` of the caller's code, which a site keeps alive, and the offset."""


def find_call_site(code: CodeType, known: CallSites) -> CallSite | None:
    """The place that called the innermost frame of a code, past the frames of libraries.

    None for a frame without a caller in the user's code, as the first one of a thread.
    """
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:  # a frame of another thread
            return None
        frame = frame.f_back
    caller = frame.f_back
    while caller is not None:
        calling = caller.f_code
        name = calling.co_filename
        try:
            is_user = _is_of_user[name]
        except KeyError:
            is_user = _is_of_user[name] = is_of_user(name)
        if is_user and calling.co_name not in _PARTS_OF_FUNCTIONS:
            key = (id(calling), caller.f_lasti)
            site = known.get(key)
            if site is None:
                site = known.setdefault(key, CallSite(calling, caller.f_lasti))
            return site
        caller = caller.f_back
    return None
