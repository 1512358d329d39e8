"""A file of the format that its name asks for, checked before there is anything to write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from pytorch_memlab._common.checked_file import CheckedFile
from pytorch_memlab.errors import UsageError

T = TypeVar("T")


class OutputFile(Generic[T]):
    """A file that gets what was found."""

    def __init__(self, name: str, formats: Mapping[str, Callable[[T], str | bytes]]) -> None:
        longest_first = sorted(formats, key=len, reverse=True)
        ending = next((one for one in longest_first if name.lower().endswith(one)), None)
        if ending is None:
            raise UsageError(f"cannot tell the format of {name}: end it in {', '.join(formats)}")
        self._file = CheckedFile(name)
        self._content_of = formats[ending]
        self.ending = ending

    def write(self, found: T, what: str, *, says_where: bool = True) -> bool:
        """Write it whole, or not at all."""
        name = self._file.write_or_tell(lambda: _encoded(self._content_of(found)))
        if name is not None and says_where:
            print(f"{what} written to {name}", file=sys.stderr)
        return name is not None


def _encoded(content: str | bytes) -> bytes:
    return content.encode("utf-8", "replace") if isinstance(content, str) else content
