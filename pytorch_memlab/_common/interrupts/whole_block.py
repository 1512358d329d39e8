"""Blocks that an interrupt leaves neither half begun nor half ended, as those of contextlib are.

What begins and ends them holds signals back: for short work on the state of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .uninterrupted import STANDARD_SIGNALS, uninterrupted
from .whole_exit import WholeExit

P = ParamSpec("P")
T = TypeVar("T")


class WholeBlock(ContextDecorator, AbstractContextManager[T], Generic[T]):
    """A block whose begin and end are a function with one ``yield``."""

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        numbers: tuple[int, ...] = STANDARD_SIGNALS,  # of the signals that wait while ``make`` runs
    ) -> None:
        self._make = make
        self._numbers = numbers
        self._running: Generator[T, None, None] | None = None

    def _recreate_cm(self) -> WholeBlock[T]:
        """Another one for each call of a function that this decorates."""
        return WholeBlock(self._make, self._numbers)

    def __enter__(self) -> T:
        try:
            with uninterrupted(*self._numbers):
                running: Any = self._make()
                value: T = next(running)
                self._running = running
        except BaseException as error:  # an interrupt that waited until all was begun
            self._end(error, [])
            raise
        return value

    def _end(self, error: BaseException | None, _mark: list[None]) -> None:
        with uninterrupted(*self._numbers):
            running, self._running = self._running, None
            if running is None:
                return
            if error is None:
                next(running, None)
                return
            try:
                running.throw(error)
            except StopIteration:  # the function handled it: it passes all the same
                pass
            except BaseException as other:
                if other is not error and other.__cause__ is not error:
                    raise

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)


def whole_block(function: Callable[P, Iterator[T]]) -> Callable[P, WholeBlock[T]]:
    """Decorate a generator: as ``contextlib.contextmanager``, whole; errors always pass."""

    @wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> WholeBlock[T]:
        return WholeBlock(partial(function, *args, **kwargs))

    return block


class WholeStack(ExitStack):
    """An ``ExitStack`` whose parts are entered and left whole; errors always pass."""

    # Call ``callback`` before what it takes back.

    def __init__(
        self,
        numbers: tuple[int, ...] = STANDARD_SIGNALS,  # of the signals that wait while that happens
    ) -> None:
        super().__init__()
        self._numbers = numbers

    def enter_context(self, cm: AbstractContextManager[T, Any]) -> T:
        with uninterrupted(*self._numbers):
            return super().enter_context(cm)

    def leave(self, error: BaseException | None) -> None:
        with uninterrupted(*self._numbers):
            if error is None:
                super().__exit__(None, None, None)
            else:
                super().__exit__(type(error), error, error.__traceback__)

    def _end(self, error: BaseException | None, _mark: list[None]) -> None:
        self.leave(error)

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)
