"""Arguments as messages repeat them, and names as an enumeration."""

from collections.abc import Iterable
from unicodedata import category

_LONGEST = 100
_MOST_NAMES = 10
_UNPRINTABLE = "\ufffd"


def quoted(spec: object) -> str:
    """An argument as the user wrote it, on one line and not too long."""
    if isinstance(spec, int) and spec.bit_length() > 64:  # Python refuses to print the longest ones
        return f"an int of {spec.bit_length()} bits"
    return shortened(" ".join(repr(spec).split()))


def shortened(text: str) -> str:
    """A text, or its beginning where it is longer than a message should be."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(text: str) -> str:
    r"""A text of a program as a report shows it: on one line, not too long, no control characters.

    >>> printable("a\tb\u202ec\n") == "a b" + _UNPRINTABLE + "c" + _UNPRINTABLE
    True
    """
    return visible(shortened(text).replace("\t", " "))


def visible(text: str, kept: str = "") -> str:
    r"""A text without signs that change how it is read; spaces of all widths stay.

    >>> visible("a\u3000\x1b[1mb") == "a\u3000" + _UNPRINTABLE + "[1mb"
    True
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in kept or category(character) == "Zs"
        else _UNPRINTABLE
        for character in text
    )


def listed(names: Iterable[str]) -> str:
    """Each name once, the first ten, then how many more there are.

    >>> listed(["outer", "inner", "outer"])
    'outer, inner'
    """
    unique = list(dict.fromkeys(names))
    more = len(unique) - _MOST_NAMES
    return ", ".join(unique[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
