"""A file of the format that its name asks for, checked before there is anything to write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from pytorch_memlab._common.checked_file import CheckedFile
from pytorch_memlab.errors import UsageError

T = TypeVar("T")


class OutputFile(Generic[T]):
    """A file that is checked now, and written in the format of its ending."""

    def __init__(
        self,
        name: str,
        formats: Mapping[str, Callable[[T], str | bytes]],
        *,
        keeps_older: bool = False,
    ) -> None:
        longest_first = sorted(formats, key=len, reverse=True)
        ending = next((one for one in longest_first if name.lower().endswith(one)), None)
        if ending is None:
            raise UsageError(f"cannot tell the format of {name}: end it in {', '.join(formats)}")
        self._file = CheckedFile(name, keeps_older=keeps_older)
        self._content_of = formats[ending]
        self.ending = ending

    def write(self, found: T, what: str, *, says_where: bool = True) -> bool:
        """Write it whole, or not at all."""
        name = self._file.write_or_tell(lambda: self._content_of(found))
        if name is not None and says_where:
            print(f"{what} written to {name}", file=sys.stderr)
        return name is not None
