"""Ranks whose experts get more tokens than those of others: Note [The load of experts]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..errors import UsageError
from ..simulation.inspect import ExpertGroup, ExpertRouting, active
from .change import Change
from .verdict import Verdict

_MOST_LOADS: Final = 16


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """The experts of a run, as far as they were seen."""

    # how many experts a token chose, and of how many; empty if none were chosen
    choices: frozenset[tuple[int, int]] = frozenset()
    exchanging: ExpertGroup | None = None  # the ranks of the last all-to-all with splits


class ExpertLoad(Change):
    """The tokens choose their experts: evenly, or more of those of this rank."""

    def __init__(
        self,
        load: float = 1.0,  # of the experts of this rank, 1.0 for an even share
        group: ExpertGroup | None = None,  # the ranks that share the experts; None for even routing
        *,
        is_given: bool = True,  # the user gave loads, which then hold for scores with values too
    ) -> None:
        self.name = f"expert load {load}"
        self._load = load
        self._group = group
        self._is_given = is_given
        self._routing: ExpertRouting | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        values = active.values()
        if values is not None:
            self._routing = ExpertRouting(self._load, self._group, decides=self._is_given)
            values.routing = self._routing
        yield

    def finding(self) -> ExpertFacts:
        if self._routing is None:
            return ExpertFacts()
        return ExpertFacts(frozenset(self._routing.choices), self._routing.exchanging)


@dataclass(frozen=True, slots=True)
class LoadOnRanks:
    """The fullest rank with one load of experts."""

    load: float
    rank: int
    verdict: Verdict


def read_loads(text: str) -> tuple[float, ...]:
    """The loads of ``--expert-load``, the smallest first.

    >>> read_loads("2.5, 1.0")
    (1.0, 2.5)
    """
    loads: set[float] = set()
    for part in text.split(","):
        try:
            load = float(part)
        except ValueError:
            load = math.nan
        if not 0 < load < math.inf:
            raise UsageError(
                "--expert-load has numbers such as 1.0,2.5, of which 1.0 is an even share of the"
                f" tokens, and not {part.strip()!r}"
            )
        loads.add(load)
    if len(loads) > _MOST_LOADS:
        raise UsageError(f"--expert-load has {len(loads)} loads, {_MOST_LOADS} is the most")
    return tuple(sorted(loads))


def checked_loads(
    loads: Sequence[float],
    groups: Mapping[int, ExpertGroup],
    choices: Mapping[int, Collection[tuple[int, int]]],
) -> None:
    """Raise ``UsageError`` for a load that no rank can have."""
    rank = max(groups, key=lambda rank: groups[rank].most_load(choices[rank]))
    most = groups[rank].most_load(choices[rank])
    if loads[-1] > most:
        count, experts = max(choices[rank], key=lambda choice: groups[rank].most_load({choice}))
        raise UsageError(
            f"--expert-load {loads[-1]:g} cannot be: the experts of one of {groups[rank].size}"
            f" ranks get {most:g} times their share at most, where a token has {count} of"
            f" {experts} experts"
        )


def load_that_would_fit(loads: Sequence[LoadOnRanks]) -> float | None:
    """The load at which a line between two that ran has no room left; None without such two."""
    for before, after in itertools.pairwise(loads):
        left, lacking = _left(before.verdict), -_left(after.verdict)
        if before.verdict.fits and after.verdict.fits is False and left > 0 and lacking > 0:
            return before.load + (after.load - before.load) * left / (left + lacking)
    return None


def _left(verdict: Verdict) -> int:
    """Bytes that the peak and NCCL leave, negative for those that lack."""
    return verdict.room - verdict.nccl.estimate
