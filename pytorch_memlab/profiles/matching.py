"""Matches the functions and lines of two profiles, also where files were edited in between."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

from ..records import FunctionInfo

_ALIKE: Final = 0.6
"""Least share of equal lines, or of equal characters, of what was renamed or changed."""

_REACH: Final = 20
"""Number of lines by which a changed line may have moved within its block."""

Pair = tuple[int | None, int | None]

Matched = tuple[int | None, int | None, Mapping[int, int]]
"""Indexes of a function in both profiles, and the lines of the first one in the second one."""


def match(before: Sequence[FunctionInfo], after: Sequence[FunctionInfo]) -> list[Matched]:
    """The functions of two profiles, side by side, and their lines."""
    return [
        (place, other, match_lines(before[place], after[other]))
        if place is not None and other is not None
        else (place, other, {})
        for place, other in match_functions(before, after)
    ]


def match_functions(before: Sequence[FunctionInfo], after: Sequence[FunctionInfo]) -> list[Pair]:
    """The functions of two profiles, side by side."""
    # A function is the one of the same qualified name whose path has the most folders at its end in
    # common; of several in one file, they match in their order. What is left of both matches if
    # most of its lines are the same: it was renamed.
    left = _by_name(before)
    right = _by_name(after)
    paired: dict[int, int] = {}
    for name, places in right.items():
        same = left.get(name, [])
        scores = sorted(
            (-_common_end(before[former].filename, after[place].filename), order, former, place)
            for order, place in enumerate(places)
            for former in same
        )
        paired.update(_greedy((former, place) for _, _, former, place in scores))
    taken = set(paired.values())
    free_before = [place for place in range(len(before)) if place not in taken]
    free_after = [place for place in range(len(after)) if place not in paired]
    bodies = {place: _body(before[place]) for place in free_before}
    others = {place: _body(after[place]) for place in free_after}
    likeness = sorted(
        (-score, former, place)
        for former, place in _sharing(bodies, others)
        if (score := _likeness(bodies[former], others[place])) >= _ALIKE
    )
    paired.update(_greedy((former, place) for _, former, place in likeness))
    pairs: list[Pair] = [(paired.get(place), place) for place in range(len(after))]
    matched = set(paired.values())
    return pairs + [(place, None) for place in range(len(before)) if place not in matched]


def match_lines(before: FunctionInfo, after: FunctionInfo) -> dict[int, int]:
    """Lines of a function, by number, and the numbers that they have after an edit."""
    # Lines of the same code match, also where they were moved past others; lines that were changed
    # match where most of their characters are the same.
    if before.source is None or after.source is None:
        count = len(before.source or after.source or ()) or 1_000
        return {before.first_line + n: after.first_line + n for n in range(count)}
    left, right = _visible(before), _visible(after)
    texts = [text for _, text in left], [text for _, text in right]
    matcher = SequenceMatcher(lambda text: not text, *texts, autojunk=False)
    pairs: dict[int, int] = {}
    changed: list[tuple[range, range]] = []
    for kind, first, end, other, other_end in matcher.get_opcodes():
        if kind == "equal":
            pairs.update(zip(range(first, end), range(other, other_end), strict=True))
        else:
            changed.append((range(first, end), range(other, other_end)))
    pairs.update(_moved(changed, *texts))
    for lines, others in changed:
        free = [line for line in lines if line not in pairs and texts[0][line]]
        taken = set(pairs.values())
        free_others = [line for line in others if line not in taken and texts[1][line]]
        pairs.update(_changed(free, free_others, *texts))
    return {left[place][0]: right[other][0] for place, other in pairs.items()}


def _by_name(functions: Sequence[FunctionInfo]) -> dict[str, list[int]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, function in enumerate(functions):
        places[function.qual_name].append(place)
    return places


def _greedy(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Each of both sides once, the best pairs first, as (after, before)."""
    left: set[int] = set()
    right: set[int] = set()
    for former, place in pairs:
        if former not in left and place not in right:
            left.add(former)
            right.add(place)
            yield place, former


def _common_end(path: str, other: str) -> int:
    left, right = (os.path.normpath(path).replace("\\", "/").split("/") for path in (path, other))
    pairs = zip(reversed(left), reversed(right), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _body(function: FunctionInfo) -> list[str]:
    """The lines after the first one, which has the name."""
    return [text for _, text in _visible(function)[1:] if text]


def _sharing(
    bodies: Mapping[int, Sequence[str]], others: Mapping[int, Sequence[str]]
) -> Iterator[tuple[int, int]]:
    """Pairs with enough lines in common, whatever their order."""
    counts = {place: Counter(lines) for place, lines in others.items()}
    having: defaultdict[str, set[int]] = defaultdict(set)
    for place, lines in others.items():
        for line in lines:
            having[line].add(place)
    for former, lines in bodies.items():
        own = Counter(lines)
        for place in sorted(set().union(*(having.get(line, ()) for line in own))):
            common = sum((own & counts[place]).values())
            if 2 * common >= _ALIKE * (len(lines) + len(others[place])):
                yield former, place


def _likeness(text: Sequence[str], other: Sequence[str]) -> float:
    return SequenceMatcher(None, text, other, autojunk=False).ratio()


def _visible(function: FunctionInfo) -> list[tuple[int, str]]:
    """Number and text of each line that is not folded: indentation does not tell lines apart."""
    lines = enumerate(function.source or (), function.first_line)
    folded = function.folded_lines()
    return [(number, text.strip()) for number, text in lines if number not in folded]


def _moved(
    changed: Iterable[tuple[range, range]], left: Sequence[str], right: Sequence[str]
) -> dict[int, int]:
    """Lines that went from one place to another: of a text that each side has once."""
    gone: defaultdict[str, list[int]] = defaultdict(list)
    come: defaultdict[str, list[int]] = defaultdict(list)
    for lines, others in changed:
        for line in lines:
            gone[left[line]].append(line)
        for line in others:
            come[right[line]].append(line)
    return {
        gone[text][0]: come[text][0]
        for text in gone
        if text and len(gone[text]) == 1 and len(come.get(text, ())) == 1
    }


def _changed(
    lines: Sequence[int], others: Sequence[int], left: Sequence[str], right: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Lines of one edited block that are alike, the most alike first."""
    scores = []
    for place, line in enumerate(lines):
        for other in others[max(0, place - _REACH) : place + _REACH + 1]:
            score = _likeness(left[line], right[other])
            if score >= _ALIKE:
                scores.append((-score, abs(line - other), line, other))
    for other, line in _greedy((line, other) for _, _, line, other in sorted(scores)):
        yield line, other
