"""Remedies for high memory as text: why, the edit, and the outcome of a trial."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from .._common.text.prose_size import prose_size
from .._common.text.quoted import visible
from ..advice.batch_size import SmallerBatch
from ..advice.cause import Remedy, Results, saves
from ..advice.changes import EditedSource
from ..advice.compared_values import Comparison
from ..advice.trial_records import Advice, Result, Together
from .rows import WIDTH, cut
from .so_far import so_far

_MOST_LINES: Final = 4
"""Lines of a reason: only names of a program can make one longer."""
_FURTHER: Final = 11
"""Columns before what goes on in the next line."""
_STRING_COMMENT_OR_CHARACTER: Final = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|#.*|.""", re.DOTALL
)


def lines_of(advice: Advice, most: int | None = None) -> list[str]:
    """Each remedy with its reason, its code and its outcome."""
    lines: list[str] = []
    is_tried = any(advice.results)
    pairs = list(zip(advice.remedies, advice.results, strict=True))[:most]
    for number, (remedy, result) in enumerate(pairs, 1):
        effect = f" ({remedy.effect})" if remedy.effect and result is None else ""
        why = textwrap.wrap(
            f"{number}. {remedy.why}{effect}",
            WIDTH - 2,
            initial_indent="  ",
            subsequent_indent="     ",
            max_lines=_MOST_LINES,
            placeholder=" …",
        )
        lines += [*(cut(visible(line)) for line in why), *_code(remedy)]
        if result is not None:
            for line in outcome(remedy, result):
                lines += _in_width(f"{' ' * 7}{line}")
        elif said := untried(remedy, is_tried=is_tried):
            lines.append(f"       {said}")
    return lines


def untried(remedy: Remedy, *, is_tried: bool) -> str:
    """The known effect of a remedy that was not tried; ``is_tried`` if others were."""
    is_edit = isinstance(remedy.change, (EditedSource, SmallerBatch))
    least = saves(remedy.size) if is_edit and remedy.size else ""
    return ": ".join(part for part in ("not tried" * is_tried, least) if part)


def without_error(advice: Advice, most: int | None) -> str:
    """The remedies for the peak of a program that ended without an error; empty for none."""
    if not advice.remedies:
        return ""
    rows = ["what lowers the peak, the largest saving first", *lines_of(advice, most)]
    return "".join(f"{row}\n" for row in rows)


def outcome(remedy: Remedy, result: Result) -> list[str]:
    """The outcome of a second run of the program with the remedy, and what is known of results."""
    values = remedy.results.value
    if result.values is not None:
        values = _difference(result.values, remedy.results)
    return [f"tried: {_peaks(result)}", *([values] if values else [])]


def together(several: Together) -> str:
    """The outcome of several remedies at once.

    >>> together(Together((1, 2), Result(4 << 20, 1 << 20, fits=True, is_whole=False)))
    '1 and 2 together: tried: peak 4.0 MiB -> 1.0 MiB, fits'
    """
    *first, last = map(str, several.numbers)
    return f"{', '.join(first)} and {last} together: tried: {_peaks(several.result)}"


def _in_width(line: str) -> list[str]:
    """A line, or several if it is too long: the second one begins behind a comma, if one can."""
    first, comma, rest = line[:WIDTH].rpartition(", ")
    if len(line) <= WIDTH or not comma:
        return [line]
    more = textwrap.wrap(rest + line[WIDTH:], WIDTH - _FURTHER)
    return [f"{first},", *(" " * _FURTHER + part for part in more)]


def _peaks(result: Result) -> str:
    before, after = prose_size(result.before), prose_size(result.after)
    verdict = "runs to its end" if result.is_whole else "fits"
    if not result.before_is_exact:
        before = f"at least {before}"
    if result.seen is not None:
        after, verdict = f"at least {after}", so_far(result.seen)
    return f"peak {before} -> {after}, {verdict if result.fits else 'still does not fit'}"


def _difference(values: Comparison, results: Results) -> str:
    """The values of a run with the remedy, next to those without it."""
    what, plural = values.names, "s" if values.names == "loss" else ""
    of = f"{values.same} of {values.total} values"
    if values.same == values.total:
        text = f"{what} unchanged ({of}"
    elif not values.is_same_model(results.tolerance):
        text = f"{what} differ{plural}: not the same model ({of} are equal"
    elif not values.difference:
        text = f"{what} differ{plural} in the last digit ({of} are equal"
    else:
        mantissa, exponent = f"{values.difference:.0e}".split("e")
        kind = "bf16" if results is Results.BFLOAT16 else of + " are equal"
        text = f"{what} differ{plural} by {mantissa}e{int(exponent)} ({kind}"
    return f"{text}{', without dropout' * values.is_without_dropout})"


def _code(remedy: Remedy) -> list[str]:
    """Code whole, which goes on in the next line within brackets alone: it runs as it stands."""
    lines = []
    for line in remedy.code:
        first, *others = _parts(visible(line))
        lines.append(" " * 7 + first)
        room = " " * (11 + len(first) - len(first.lstrip()))
        for part in others:
            if len(lines[-1]) + 1 + len(part) <= WIDTH:
                lines[-1] += f" {part}"
            else:
                lines.append(room + part)
    return lines


def _parts(line: str) -> list[str]:
    """A line of code, taken apart at the spaces within brackets."""
    parts, depth = [""], 0
    for piece in _STRING_COMMENT_OR_CHARACTER.findall(line):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == " " and depth > 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
