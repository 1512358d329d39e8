"""The base of scopes: bytes over a stretch of code, of the host or of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..interrupts.whole_exit import WholeExit

if TYPE_CHECKING:
    from typing import Self

_NOT_OPEN = "start() it, or use it in a with statement"


class Scope(ABC):
    """Bytes at the beginning, now, and at the peak; of which memory, a subclass says."""

    _name = ""
    """Of the device, with a comma."""

    def __init__(self) -> None:
        self._is_open = False
        self._start: int | None = None
        self._last = (0, 0)

    def start(self) -> None:
        """Open the window.

        Raises:
            UsageError: it is open already.
        """
        if self._is_open:
            raise UsageError("this scope is open: use reset() to begin again")
        with uninterrupted(*STANDARD_SIGNALS):
            self._start = self._open()
            self._is_open = True

    def stop(self) -> None:
        """Close the window; its values stay. A second stop has no effect."""
        if self._is_open:
            with uninterrupted(*STANDARD_SIGNALS):
                self._last = self._close() or self._last
                self._is_open = False

    def reset(self) -> None:
        """Start again, as if it had been opened now.

        Raises:
            UsageError: it is not open.
        """
        start = self._restart() if self._is_open else None
        if start is None:
            raise UsageError(f"this scope is not open: {_NOT_OPEN}")
        self._start = start

    @property
    def peak(self) -> int:
        """Highest number of bytes since it began."""
        return self._read()[1]

    @property
    def used(self) -> int:
        """Bytes now, or when it was closed."""
        return self._read()[0]

    @property
    def used_delta(self) -> int:
        """Bytes now, or when it was closed, less those when it began."""
        return self._read()[0] - self._began()

    @property
    def peaked_delta(self) -> int:
        """Bytes that the peak went above what was used before and is used after.

        The peak less the start, less ``used_delta`` if that is positive: what was needed for a
        while and not kept.
        """
        used, peak = self._read()
        start = self._began()
        return max(0, peak - start - max(0, used - start))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # an interrupt that came until all was on
            raise
        return self

    def _end(self, _error: BaseException | None, _mark: list[None]) -> None:
        self.stop()

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)

    def __repr__(self) -> str:
        values = "not begun"
        if self._start is not None:
            values = (
                f"peak={self.peak}, used_delta={self.used_delta}, peaked_delta={self.peaked_delta}"
            )
        return f"{type(self).__name__}({self._name}{values})"

    def _began(self) -> int:
        if self._start is None:
            raise UsageError(f"this scope has not begun: {_NOT_OPEN}")
        return self._start

    def _read(self) -> tuple[int, int]:
        self._began()
        return self._values() if self._is_open else self._last

    @abstractmethod
    def _open(self) -> int:
        """Begin to measure; returns the bytes now."""

    @abstractmethod
    def _restart(self) -> int | None:
        """Begin again; None where another thread has ended it."""

    @abstractmethod
    def _values(self) -> tuple[int, int]:
        """Bytes now, and the most since it began."""

    @abstractmethod
    def _close(self) -> tuple[int, int] | None:
        """The values at the end; None where another thread has ended it."""
