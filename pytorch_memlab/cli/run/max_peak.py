"""``run --max-peak``: whether a program reserves more memory than it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytorch_memlab._common.prose_size import prose_size
from pytorch_memlab._common.quoted import quoted
from pytorch_memlab.cli.notices import tell
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.scopes import DevicePeaks


class MaxPeak:
    """The most that a program may reserve on each GPU."""

    def __init__(self, text: str | None) -> None:
        from pytorch_memlab.simulation.inspect import parse_size

        size = None if text is None else parse_size(text)
        if text is not None and (size is None or size < 0):
            raise UsageError(f"--max-peak is a size such as 20GiB, not {quoted(text)}")
        self._text = text
        self._size = size
        self._passed: list[str] = []

    def is_passed(self, peaks: Callable[[], Mapping[str, DevicePeaks]]) -> bool:
        """True if a device has more reserved, once the threads of the program have ended."""
        if self._size is None:
            return False
        _join_threads()
        self._passed = [
            f"peak {prose_size(one.reserved)} reserved on {name}, more than --max-peak {self._text}"
            for name, one in peaks().items()
            if one.reserved > self._size
        ]
        return bool(self._passed)

    def tell(self) -> None:
        """Say which devices passed the limit."""
        for line in self._passed:
            tell(line)


def _join_threads() -> None:
    """Wait for the threads that Python waits for before it ends: their memory counts."""
    own = threading.current_thread()
    while waiting := [
        one for one in threading.enumerate() if one is not own and not one.daemon and one.ident
    ]:
        for thread in waiting:
            thread.join()
