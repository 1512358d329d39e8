"""The fewest blocks whose activation checkpointing makes a program fit.

Note [Which blocks are checkpointed]
A survey of the unchanged program shows how high the memory goes while each set of blocks has its
activations. Checkpointing takes from such a peak what the blocks among them keep. So for a number
of bytes there is a set of blocks that brings all peaks below it: while a peak is too high, add the
block of that moment that keeps most, beginning with the moments that have fewest blocks. Of equal
blocks the earlier one goes first: while a late block is computed again, the activations of all
before it are still there. For each number of blocks, the set that gets lowest is tried.

This orders the sets only: it does not know how the allocator's cache splits. Whether a set fits,
runs of the program tell. In the end each block of the set is left out once (of those that keep the
same, the last one), so that the program does not fit with fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..fitting.change import Change
from ..fitting.verdict import Verdict
from .block_survey import Survey
from .causes.activations import Checkpointed, Checkpointing

_AT_ONCE = 2
"""Numbers of blocks that are tried in one round."""

Verdicts = Callable[[Sequence[Change | None], Callable[[], object]], Sequence[Verdict]]


@dataclass
class Smallest:
    """The fewest blocks to checkpoint, as far as they are known."""

    verdict: Verdict
    _survey: Survey | None
    _verdicts: Verdicts
    _ended: Callable[[], object]
    runs: int = 0  # that the search took, without that with all blocks

    def __post_init__(self) -> None:
        self.candidates = self.finding.candidates

    @property
    def finding(self) -> Checkpointed:
        finding = self.verdict.trial.findings[-1]
        assert isinstance(finding, Checkpointed)
        return finding

    def halve(self) -> None:
        """Find a number of blocks that fits where one less does not."""
        low, high = 0, len(self.candidates)
        while high - low > 1:
            step = (high - low) // (_AT_ONCE + 1) or 1
            numbers = [number for number in (low + step, low + 2 * step) if number < high]
            fits = self._try([_set_of(number, self.candidates, self._survey) for number in numbers])
            for number, verdict in zip(numbers, fits, strict=True):
                if verdict.fits:
                    high, self.verdict = number, verdict
                    break
                low = number

    def leave_one_out(self) -> bool:
        """True if one block of the best set can be left out."""
        blocks = self.finding.blocks
        kept = {} if self._survey is None else self._survey.kept
        last = {kept.get(name, 0): name for name in blocks}
        smaller = [[block for block in blocks if block != name] for name in last.values()]
        if len(blocks) < 2 or len(self.candidates) == 1:
            return False
        fitting = [verdict for verdict in self._try(smaller) if verdict.fits]
        if fitting:
            self.verdict = fitting[0]
        return bool(fitting)

    def _try(self, sets: Sequence[Sequence[str]]) -> Sequence[Verdict]:
        self.runs += len(sets)
        return self._verdicts([Checkpointing(names) for names in sets], self._ended)


def smallest_checkpointing(
    every: Verdict,
    survey: Survey | None,
    verdicts: Verdicts,
    ended: Callable[[], object] = lambda: None,
) -> Smallest:
    """Look for the fewest blocks; the program does not fit without any."""
    smallest = Smallest(every, survey, verdicts, ended)
    if every.fits:
        smallest.halve()
        while smallest.leave_one_out():
            pass
    return smallest


def _set_of(number: int, candidates: Sequence[str], survey: Survey | None) -> Sequence[str]:
    """That many blocks, which get the memory lowest."""
    if survey is None or not survey.kept:
        return candidates[:number]
    low, high = 0, max(survey.phases.values())
    while low < high:
        limit = (low + high) // 2
        if len(_set_below(limit, candidates, survey)) <= number:
            high = limit
        else:
            low = limit + 1
    names = _set_below(high, candidates, survey)
    rest = [name for name in candidates if name not in names]
    rest.sort(key=lambda name: -survey.kept.get(name, 0))
    return [*names, *rest[: number - len(names)]]


def _set_below(limit: int, candidates: Sequence[str], survey: Survey) -> list[str]:
    """Blocks that bring all peaks that they can bring there below a number of bytes."""
    chosen: dict[str, None] = {}
    order = {name: number for number, name in enumerate(candidates)}
    for held in sorted(survey.phases, key=len):
        here = [name for name in held if name in order]
        here.sort(key=lambda name: (-survey.kept[name], order[name]))
        lacking = (
            survey.phases[held]
            - limit
            - sum(survey.kept[block] for block in here if block in chosen)
        )
        for name in here:
            if lacking <= 0:
                break
            if name not in chosen:
                chosen[name] = None
                lacking -= survey.kept[name]
    return list(chosen)
