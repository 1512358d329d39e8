"""All causes. A cause is a module of ``causes``, whose class is found by itself."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Final

from .._common.text.quoted import shortened
from ..errors import UsageError
from ..history.out_of_memory import OutOfMemory
from . import causes
from .around_program import AroundProgram
from .cause import Cause, NamedChange, Remedy

_MOST: Final = 3
"""Number of remedies that a report names."""


@cache
def all_causes() -> tuple[Cause, ...]:
    """One of each cause, in the order in which they are looked for."""
    classes = [
        value
        for module in pkgutil.iter_modules(causes.__path__)
        for value in vars(import_module(f"{causes.__name__}.{module.name}")).values()
        if isinstance(value, type)
        and issubclass(value, Cause)
        and value.__module__.endswith(f".{module.name}")
    ]
    return tuple(cause() for cause in sorted(classes, key=lambda cause: cause.order))


def candidates(oom: OutOfMemory) -> list[tuple[Cause, Remedy]]:
    """The remedies of all causes that apply, the one for the most likely cause first."""
    likely: list[tuple[Cause, Remedy]] = []
    for cause in all_causes():
        remedy = cause.remedy(oom)
        if remedy is not None:
            likely.append((cause, remedy))
    # What frees less than the request lacks does not help alone.
    likely.sort(key=lambda pair: pair[1].size < oom.shortage)
    return likely


def most_likely(likely: Sequence[tuple[Cause, Remedy]]) -> list[Remedy]:
    """The remedies that a report names."""
    likely_faults = faults(likely)
    if any(remedy.change is not None for _, remedy in likely_faults):
        likely = [pair for pair in likely if not pair[0].is_last_resort]
    elif (
        likely_faults
    ):  # nothing can be applied as it is printed, so what helps any program is named too
        likely = sorted(likely, key=lambda pair: pair[0].is_last_resort)
    return [remedy for _, remedy in likely[:_MOST]]


def most_helpful(
    likely: Sequence[tuple[Cause, Remedy]], is_enough: Callable[[Remedy], bool]
) -> list[Remedy]:
    """The remedies that a report names after trials."""
    # Where none for a fault is enough alone, what helps any program is named too if it is.
    remedies = most_likely(likely)
    if not any(map(is_enough, remedies)):
        enough = [remedy for _, remedy in likely if is_enough(remedy)]
        remedies = [*remedies[: _MOST - 1], *enough][:_MOST]
    return remedies


def faults(likely: Sequence[tuple[Cause, Remedy]]) -> list[tuple[Cause, Remedy]]:
    """The remedies of what is wrong with a program: a program that is right has none."""
    return [pair for pair in likely if not pair[0].scales_with_batch and not pair[0].is_last_resort]


def names_fault(remedy: Remedy) -> bool:
    """False for what helps a program too that is right."""
    return not any(cause.name == remedy.cause and cause.is_last_resort for cause in all_causes())


def remedies(oom: OutOfMemory) -> list[Remedy]:
    """Up to three remedies, the one for the most likely cause first."""
    return most_likely(candidates(oom))


def named_changes() -> dict[str, NamedChange]:
    """The changes that ``fit --try`` makes, by name."""
    return {change.name: change for cause in all_causes() for change in cause.tried_by_name}


def causes_to_try() -> dict[str, Cause]:
    """The causes whose edit ``fit --try`` makes, by name."""
    return {cause.trial_name: cause for cause in all_causes() if cause.has_edit}


def nearest(name: str) -> str:
    """The name that a word is closest to, without a value; empty if none is close.

    >>> nearest("expandable-segments"), nearest("no-grad"), nearest("train")
    ('expandable_segments', 'no_grad', '')
    """
    word = name.partition("=")[0]
    return next(iter(difflib.get_close_matches(word, _names(), n=1)), "")


def _names() -> list[str]:
    return [*named_changes(), *causes_to_try()]


def chosen(names: Sequence[str] = ()) -> list[AroundProgram]:
    """The remedies of some names.

    >>> [one.name for one in chosen(["checkpoint", "shard=4"])]
    ['checkpoint', 'shard=4']
    """
    by_default = [change.name for change in named_changes().values() if change.is_by_default]
    return [change for name in names or by_default for change in _those(name)]


def chosen_with_causes(names: Sequence[str]) -> tuple[list[AroundProgram], list[str]]:
    """The remedies of some names, and those of the names that are causes; all for no name.

    >>> changes, causes = chosen_with_causes(["checkpoint", "no_grad"])
    >>> [one.name for one in changes], causes
    (['checkpoint'], ['no_grad'])
    >>> [one.name for one in chosen_with_causes(["memory_budget"])[0]]
    ['memory_budget=0.5', 'memory_budget=0.75', 'memory_budget=0.25', 'memory_budget=0']
    """
    stripped = [name.strip() for name in names]
    twice = [name for name in stripped if stripped.count(name) > 1]
    if twice:
        raise UsageError(f"the remedy {twice[0]} is named twice")
    causes = [name for name in stripped if name in causes_to_try()]
    others = [name for name in stripped if name not in causes]
    return chosen(others) if others or not names else [], causes


def _those(text: str) -> list[AroundProgram]:
    name, equals, value = text.strip().partition("=")
    change = named_changes().get(name)
    if change is None:
        near = nearest(name)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(_names())}"
        raise UsageError(f"there is no remedy {shortened(name) or text!r}: {hint}")
    if not equals:
        return [change.made(change.value), *map(change.make, change.more)]
    if not change.unit:
        raise UsageError(f"the remedy {name} takes no value {shortened(value)!r}")
    return [change.make(value)]
