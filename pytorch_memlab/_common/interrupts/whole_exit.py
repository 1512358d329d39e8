"""An ``__exit__`` that is always run to its end, also if Ctrl-C comes right before it.

Python runs the handlers of signals at the first instruction of a function: an ``__exit__`` that is
a function of Python may end before it has begun. Here a ``with`` statement calls functions of C,
which resume a generator inside a ``try``: what a handler raises there, and in the work, comes after
the work was done once more.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

End = Callable[[BaseException | None, list[None]], object]
"""Ends something: takes the error that ends it, and a list which is its own at the second call too.

The second call comes after an interrupt in the first, and does what that left.
"""


class WholeExit(property):
    """An attribute for ``__exit__``."""

    def __init__(
        self,
        # a function of the object and of the arguments of ``End``
        end: Callable[[Any, BaseException | None, list[None]], object],
    ) -> None:
        super().__init__(lambda manager: _exit(partial(end, manager)))

    def __call__(self, manager: Any, *error: Any) -> None:
        """``contextlib.ExitStack`` takes ``__exit__`` from the class."""
        self.__get__(manager)(*error)


_over: list[Generator[int, object, None]] = []
"""Generators that have done their work. Where Python drops one it closes it, and an interrupt in
that would be lost: so they are closed here, where it is raised."""


def _exit(end: End) -> Callable[..., None]:
    while _over:
        _over.pop().close()
    own: list[weakref.ref[Generator[int, object, None]]] = []
    generator = _ending(end, own)
    next(generator)
    own.append(weakref.ref(generator))
    # All of it in C: gives the two, then type, error and traceback to the generator one by one, and
    # returns the first, which lets an error pass.
    return partial(max, None, None, key=generator.send)


_POSITION = 4
"""Of the error among the values."""


def _ending(
    end: End, own: list[weakref.ref[Generator[int, object, None]]]
) -> Generator[int, object, None]:
    count = 0
    error: BaseException | None = None
    mark: list[None] = []
    try:
        while True:
            value = yield 0
            count += 1
            if isinstance(value, BaseException):
                error = value
            if count == _POSITION or sys.exc_info()[1] is None:
                break
        end(error, mark)
    except GeneratorExit:
        if count:  # called without an error in the block of another one
            end(error, mark)
        return
    except BaseException:
        end(error, mark)
        raise
    finally:
        _over.extend(running for reference in own if (running := reference()) is not None)
    del end, error, value  # they would live until the generator is closed
    while True:
        yield 0
