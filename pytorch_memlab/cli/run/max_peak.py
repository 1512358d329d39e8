"""``--max-peak``: the verdict on the most that a program reserved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..._common.text.prose_size import prose_size
from ...simulation.inspect import checked_size
from .. import notices
from ..exit_codes import DOES_NOT_FIT, NO_VERDICT

if TYPE_CHECKING:
    from ...scopes import DevicePeaks


class MaxPeak:
    """The most that a program may reserve on each GPU."""

    def __init__(self, text: str | None) -> None:
        expected = "--max-peak is a size such as 20GiB"
        self._text = text
        self._size = None if text is None else checked_size(text, expected)
        self._lines: list[str] = []
        self.is_of_ranks: Callable[[], bool] = lambda: False

    def exit_code(self, peaks: Callable[[], Mapping[str, DevicePeaks]]) -> int:
        """The verdict on a program that ended well; 0 if no device has more reserved."""
        if self._size is None:
            return 0
        reserved = {name: peak.reserved for name, peak in peaks().items()}
        if not any(reserved.values()):
            if self.is_of_ranks():  # each of them has its own verdict
                return 0
            self._lines = [f"no verdict on --max-peak {self._text}: no memory of a GPU was used"]
            return NO_VERDICT
        self._lines = [
            f"peak {prose_size(size)} reserved on {name}, more than --max-peak {self._text}"
            for name, size in reserved.items()
            if size > self._size
        ]
        return DOES_NOT_FIT if self._lines else 0

    def tell(self) -> None:
        for line in self._lines:
            notices.tell(line)
