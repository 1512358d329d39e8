"""Objects of which the process has one, whichever threads ask for them first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


def made_once(make: Callable[..., T]) -> Callable[..., T]:
    """Remember what a function made for the same arguments; all threads get the same object.

    ``functools.cache`` gives two threads that ask at the same time an object each.

    >>> made_once(lambda: [])() is made_once(lambda: [])()
    False
    >>> empty = made_once(lambda: [])
    >>> empty() is empty()
    True
    """
    made: dict[tuple[Hashable, ...], T] = {}

    @functools.wraps(make)
    def get(*arguments: Hashable) -> T:
        try:
            return made[arguments]
        except KeyError:
            return made.setdefault(arguments, make(*arguments))

    return get
