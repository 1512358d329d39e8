"""The sizes that values decide and a dry run does not know: what the user says of them.

Note [Sizes that the user gives]
An amount is a fraction of the elements that an op looks at, or a number of elements. A fraction
has a point or a percent sign (0.001, 0.1%, 1.0), a number has neither (120). A lone 1 could be
either, and is refused. A fraction of the elements is rounded up to whole ones, in decimal
arithmetic: 0.1 of 30 is 3. A line goes before the name of an op.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeGuard

from ..._common.text.quoted import quoted
from ...errors import UsageError

SIZED_OPS: Final = (
    *("nonzero", "mask", "masked_select", "unique", "unique_consecutive", "repeat_interleave"),
    *("bincount", "coalesce", "nms"),
)
"""The ops whose sizes can be given, by the names that a user gives them."""

_AMOUNT: Final = re.compile(r"(\d+)|(\d*\.\d+|\d+\.\d*|\d*\.?\d+(?=%)|\d*\.?\d+e-?\d+)(%?)")
_LINE: Final = re.compile(r"(.+):(\d+)")
_NEAR: Final = 3


@dataclass(frozen=True, slots=True)
class Amount:
    """A share of the elements that an op looks at, or a number of them."""

    text: str  # as the user wrote it
    fraction: Fraction | None = None  # of the elements
    count: int = 0  # of elements, without a fraction

    def of(self, elements: int) -> int:
        """The size, in elements; Note [Sizes that the user gives].

        >>> amount("0.1").of(30), amount("0.1%").of(1), amount("120").of(50)
        (3, 1, 120)
        """
        return self.count if self.fraction is None else math.ceil(self.fraction * elements)

    def __str__(self) -> str:
        """In words."""
        return self.text if self.fraction is None else f"{self.text} of the elements"


def amount(value: object) -> Amount:
    """An amount as a user gives it."""
    text = value if isinstance(value, str) else repr(float(value) if _is_float(value) else value)
    matched = None if isinstance(value, bool) else _AMOUNT.fullmatch(text.strip())
    if matched is None:
        raise UsageError(
            f"{quoted(text)} is no fraction such as 0.001 or 0.1%, and no number such as 120"
        )
    count, fraction, percent = matched.groups()
    if count == "1":
        raise UsageError("1 may be one element or all of them: write 100% for all, or a fraction")
    if count is not None:
        return Amount(count, count=int(count))
    return Amount(fraction + percent, Fraction(fraction) / (100 if percent else 1))


def _is_float(value: object) -> TypeGuard[float]:
    return isinstance(value, float)  # those of NumPy too, which print otherwise


class AssumedSizes:
    """Sizes in a dry run as the user gives them."""

    # Raises UsageError for a name, a line or an amount that cannot be.

    def __init__(
        self,
        # amounts by the name of an op, or by ``file:line``
        assumed: Mapping[str, object] | None = None,
    ) -> None:
        self._of_ops: dict[str, Amount] = {}
        self._of_lines: dict[tuple[str, int], Amount] = {}
        self._names: dict[str | tuple[str, int], str] = {}
        self._met: set[str | tuple[str, int]] = set()
        self._lock = threading.Lock()
        for name, value in (assumed or {}).items():
            self._add(name, value)

    def _add(self, name: str, value: object) -> None:
        name = name.strip() if isinstance(name, str) else name
        try:
            size = amount(value)
        except UsageError as error:
            raise UsageError(f"assume {name}: {error}") from None
        line = _LINE.fullmatch(name) if isinstance(name, str) else None
        if line is None:
            if name not in SIZED_OPS:
                near = difflib.get_close_matches(str(name), SIZED_OPS, _NEAR)
                names = " or ".join(near) if near else ", ".join(SIZED_OPS)
                raise UsageError(
                    f"assume: there is no op {quoted(name)} whose size can be given: "
                    f"{'did you mean ' + names + '?' if near else names + ', or file.py:12'}"
                )
            if size.fraction is not None and size.fraction > 1 and name != "repeat_interleave":
                raise UsageError(f"assume {name}: {size.text} is more than all elements")
            self._of_ops[name] = size
            self._names[name] = f"{name}={size.text}"
            return
        key = (_checked_file(line[1], int(line[2])), int(line[2]))
        self._of_lines[key] = size
        self._names[key] = f"{name}={size.text}"

    def find(self, op: str, filename: str, line: int) -> Amount | None:
        """The amount that holds for an op at a line of the program; None if none was given."""
        key: str | tuple[str, int] | None = op if op in self._of_ops else None
        for file, number in self._of_lines:
            if number == line and _is_file(filename, file):
                key = (file, number)
        if key is None:
            return None
        with self._lock:
            self._met.add(key)
        return self._of_ops[key] if isinstance(key, str) else self._of_lines[key]

    def __bool__(self) -> bool:
        """True if anything is given."""
        return bool(self._names)

    def given(self) -> dict[str, str]:
        """All of it, as the user wrote it."""
        return dict(text.rsplit("=", 1) for text in self._names.values())

    def resolved(self) -> dict[str, str]:
        """All of it, with whole paths, for other processes."""
        lines = {f"{file}:{line}": size.text for (file, line), size in self._of_lines.items()}
        return {**{name: size.text for name, size in self._of_ops.items()}, **lines}

    def unmet(self) -> tuple[str, ...]:
        """Those that no size has asked for so far, as the user wrote them."""
        return tuple(text for key, text in self._names.items() if key not in self._met)


def _checked_file(name: str, line: int) -> str:
    """A file of a line, which may be the end of a path."""
    if not os.path.isfile(name):
        folder = os.path.dirname(name)
        if folder and not os.path.isabs(name):
            return os.path.normpath(name)  # the end of the path of a library's file
        try:
            near = difflib.get_close_matches(name, os.listdir(folder or "."), _NEAR)
        except OSError:
            near = []
        hint = f"did you mean {' or '.join(near)}?" if near else "name it by the end of its path"
        raise UsageError(f"assume {name}:{line}: there is no file {quoted(name)} here: {hint}")
    with open(name, "rb") as file:
        count = sum(1 for _ in file)
    if not 1 <= line <= count:
        raise UsageError(f"assume {name}:{line}: {name} has the lines 1 to {count}")
    return os.path.realpath(name)


def _is_file(filename: str, file: str) -> bool:
    """True if a file of the program is the one that a user named."""
    if os.path.isabs(file):
        return os.path.realpath(filename) == file
    return filename == file or filename.replace("\\", "/").endswith("/" + file.replace("\\", "/"))
