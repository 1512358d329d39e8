"""The fewest blocks whose activation checkpointing makes a program fit.

Note [Which blocks are checkpointed]
Blocks are taken in the order of what they keep for the backward pass, the most first, and of equal
ones the earlier in the model: while a late block is computed again, the activations of all others
are still there. How many of them are needed is found by runs: the program fits with as many, and
it does not with one less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..change import Change
from ..verdict import Verdict
from .checkpointing import Checkpointed, Checkpointing

_AT_ONCE = 2
"""Numbers of blocks that are tried in one round."""

Verdicts = Callable[[Sequence[Change | None], Callable[[], object]], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The fewest blocks to checkpoint.

    Args:
        finding: of the run with these blocks, or with all of them if they are not enough.
        verdict: of that run.
        candidates: how many blocks there are.
        runs: how many runs the search took, without that with all blocks.
    """

    finding: Checkpointed
    verdict: Verdict
    candidates: int
    runs: int


def smallest_checkpointing(
    every: Verdict,
    kept: Mapping[str, int],
    verdicts: Verdicts,
    ended: Callable[[], object] = lambda: None,
) -> Smallest:
    """Look for the fewest blocks; the program does not fit without any.

    Args:
        every: the verdict with all blocks checkpointed.
        kept: bytes that each block keeps for the backward pass; 0 for those that are not named.
        verdicts: runs the program with changes.
        ended: called after each run.
    """
    best, best_finding = every, _finding(every)
    total = len(best_finding.candidates)
    order = sorted(best_finding.candidates, key=lambda name: -kept.get(name, 0))
    runs = 0
    low, high = 0, total  # does not fit, and fits
    while every.fits and high - low > 1:
        numbers = sorted({low + (high - low) * (n + 1) // (_AT_ONCE + 1) for n in range(_AT_ONCE)})
        numbers = [number for number in numbers if low < number < high] or [low + 1]
        found = verdicts([Checkpointing(order[:number]) for number in numbers], ended)
        runs += len(numbers)
        for number, one in zip(numbers, found, strict=True):
            if one.fits:
                high, best, best_finding = number, one, _finding(one)
                break
            low = number
    return Smallest(finding=best_finding, verdict=best, candidates=total, runs=runs)


def _finding(found: Verdict) -> Checkpointed:
    finding = found.trial.findings[-1]
    assert isinstance(finding, Checkpointed)
    return finding
