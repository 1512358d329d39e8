"""The variables of ``--vary``: place in the program, values, and the change that sets one.

Note [Where a variable is]
A name that begins with a dash is an option of the program. A name that stands as NAME=VALUE among
the arguments of the program, or has dots, is such an argument, as Hydra has them. FILE:KEY is a
value of a configuration file or of a script. Any other name is an environment variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from .._common.text.quoted import quoted, shortened
from ..errors import UsageError
from .change import Change
from .config_value import FORMATS, Value, changed_text, replaced_file

_EXAMPLES: Final = (
    "an option of the program (--batch-size=1:512), an environment variable (BATCH=1:512) or a"
    " value of a file (config.yaml:train.batch_size=1:512)"
)
_OPTION: Final = re.compile(r"(?P<name>-[^\s=]+)(?P<between>=|\s+)(?P<values>\S.*)")
_OTHER: Final = re.compile(r"(?P<name>[^-=\s][^=]*)(?P<between>=)(?P<values>.+)")
_IN_FILE: Final = re.compile(rf"(?P<file>.+\.(?:{'|'.join(FORMATS)})):(?P<key>[^:]+)", re.I)
_RANGE: Final = re.compile(r"\s*(-?\d+)\s*:\s*(-?\d+)\s*(?::\s*(-?\d+)\s*)?")
_MOST_VALUES: Final = 1_000_000
_NUMBER: Final = re.compile(r"-?\d+")


@dataclass(kw_only=True)
class VariablePlace(Change):
    """The place of a variable in a program, and the change that gives the variable a value."""

    variable: str  # as the user wrote it
    value: Value = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.variable}={self.value}"

    def set_to(self, value: Value) -> Change:
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a program, and the values that it may get."""

    place: VariablePlace
    values: Sequence[Value]

    @property
    def name(self) -> str:
        return self.place.variable

    @property
    def is_range(self) -> bool:
        """True for all numbers between two, or every so many of them."""
        return isinstance(self.values, range)

    @property
    def numbers(self) -> Sequence[int] | None:
        """The values, if all are numbers; only numbers can be searched for the largest."""
        numbers = [value for value in self.values if isinstance(value, int)]
        if len(numbers) < len(self.values):
            return None
        return self.values if isinstance(self.values, range) else numbers


def read_variable(text: str, arguments: Sequence[str] = ()) -> Variable:
    """The variable that a text such as ``--batch-size=1:512`` names."""
    match = _OPTION.fullmatch(text.strip()) or _OTHER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--vary takes {_EXAMPLES}, not {quoted(text)}")
    values = _read_values(match["values"], f"--vary {text}")
    return Variable(place_of(match["name"].strip(), match["between"], arguments), values)


def place_of(name: str, between: str = "=", arguments: Sequence[str] = ()) -> VariablePlace:
    """The place that a name refers to. See Note [Where a variable is]."""
    in_file = _IN_FILE.fullmatch(name)
    if name.startswith("-"):
        is_short = len(name) == 2
        return _Option(variable=name, between="" if is_short or between != "=" else "=")
    if in_file is not None:
        return _file_value(name, in_file["file"], in_file["key"])
    if "." in name or any(argument.startswith(f"{name}=") for argument in arguments):
        return _Option(variable=name, between="=")
    if name.isidentifier():
        return _EnvironmentVariable(variable=name)
    raise UsageError(f"--vary takes {_EXAMPLES}, not {quoted(name)}")


def _read_values(text: str, whole: str) -> Sequence[Value]:
    match = _RANGE.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        step = 1 if match[3] is None else int(match[3])
        return _number_range(first, last, step, whole)
    words = [word.strip() for word in text.split(",")]
    if not all(words) or (len(words) == 1 and ":" in text):
        raise UsageError(
            f"{shortened(whole)}: values are a range such as 1:512, with a step 8:512:8, or"
            " a list such as 1,2,4,8"
        )
    if all(_NUMBER.fullmatch(word) for word in words):
        return tuple(sorted({int(word) for word in words}))
    return tuple(dict.fromkeys(words))


def _number_range(first: int, last: int, step: int, whole: str) -> range:
    """All numbers from the first to the last one, which is included."""
    if step < 1:
        raise UsageError(f"{shortened(whole)}: a step is 1 or more, not {step}")
    if last < first:
        raise UsageError(
            f"{shortened(whole)}: the range ends before it begins, write {last}:{first}"
        )
    values = range(first, last + 1, step)
    if len(values) > _MOST_VALUES:
        raise UsageError(
            f"{shortened(whole)}: a range has at most {_MOST_VALUES:,} values, so give it a"
            f" step: {first}:{last}:{-(-len(values) // _MOST_VALUES) * step}"
        )
    return values


def variables_of(vary: Mapping[str, object], *, is_function: bool) -> list[Variable]:
    """The variables that ``fit(step, vary=...)`` names."""
    if not isinstance(vary, Mapping) or not all(isinstance(name, str) for name in vary):
        raise UsageError(f"vary is a dict such as {{'batch_size': (1, 512)}}, not {quoted(vary)}")
    return [
        _variable(name, values, _Keyword(variable=name) if is_function else place_of(name))
        for name, values in vary.items()
    ]


def _variable(name: str, values: object, place: VariablePlace) -> Variable:
    whole = f"vary={{{name!r}: {values!r}}}"
    if isinstance(values, tuple) and len(values) == 2 and all(map(_is_number, values)):
        first, last = values
        return Variable(place, _number_range(first, last, 1, whole))
    if isinstance(values, range) and values.step > 0 and 0 < len(values) <= _MOST_VALUES:
        return Variable(place, values)
    if isinstance(values, (list, tuple)) and values:
        if all(map(_is_number, values)):
            return Variable(place, tuple(sorted(set(values))))
        if all(isinstance(value, (str, int)) for value in values):
            return Variable(place, tuple(dict.fromkeys(values)))
    raise UsageError(
        f"{shortened(whole)}: values are the two ends of a range such as (1, 512), or a list such"
        " as [1, 2, 4, 8]"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(kw_only=True)
class _Option(VariablePlace):
    """An option of the program."""

    # what stands between the name and the value: ``=``, or nothing if they are two arguments
    between: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.variable}{self.between or ' '}{self.value}"

    def arguments(self, argv: Sequence[str]) -> tuple[str, ...]:
        """With the option in place of the last one of its name, or after all others."""
        words, name, joined = list(argv), self.variable, f"{self.variable}={self.value}"
        own = [joined] if self.between else [name, str(self.value)]
        end = words.index("--") if "--" in words else len(words)
        for place in reversed(range(end)):
            if words[place].startswith(f"{name}="):
                return (*words[:place], joined, *words[place + 1 :])
            if words[place] == name:
                has_value = place + 1 < end and not _is_option(words[place + 1])
                return (*words[:place], *own, *words[place + 1 + has_value :])
        return (*words[:end], *own, *words[end:])


def _is_option(word: str) -> bool:
    """True for the name of an option, and False for a value such as -1."""
    return word.startswith("-") and not _NUMBER.fullmatch(word)


class _EnvironmentVariable(VariablePlace):
    def environment(self) -> Mapping[str, str]:
        return {self.variable: str(self.value)}


class _Keyword(VariablePlace):
    """A keyword argument of a function that is run in place of a program."""

    def keywords(self, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**keywords, self.variable: self.value}


@dataclass(kw_only=True)
class _FileValue(VariablePlace):
    """A value of a configuration file or of a script. The file itself is not changed."""

    file: str
    path: str  # of the file, also where the program changes its folder
    key: str
    text: str
    unread: str | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        changed = changed_text(self.file, self.text, self.key, self.value)
        self.unread = f"the program does not read {self.file}"

        def was_read() -> None:
            self.unread = None

        with replaced_file(self.path, changed.encode(), was_read):
            yield

    def finding(self) -> str | None:
        """The reason why the value changes nothing; None if it was read."""
        return self.unread


def _file_value(name: str, file: str, key: str) -> _FileValue:
    try:
        with open(file, encoding="utf-8-sig") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--vary cannot read {file}: {reason}") from None
    changed_text(file, text, key, 1)  # an error now, where the file cannot be changed
    return _FileValue(variable=name, file=file, path=os.path.abspath(file), key=key, text=text)
