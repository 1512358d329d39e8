"""The largest values that fit on GPUs, and their curves, as text, HTML and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable
from ..fitting.trial import Ending
from .fit import COLUMNS, NO_TENSOR, failing_line
from .notes import summary_of_runs
from .page import fill
from .picture import ALARM, COLOURS, drawn, finish, shortened
from .rows import WIDTH, cut, document, padded, wrapped
from .table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..fitting.curve import Curve, FittedLine
    from ..fitting.grid import Answer, GridSearch
    from ..fitting.search import TriedValue

_NAME: Final = 16
_CELL: Final = 11
_LAYOUT: Final = "{}{:>11}{:>9}{:>13}{:>12}  {}"
_NOTHING: Final = "none"


def text(report: GridSearch, *, names_error: bool = True) -> str:
    """The largest value on each GPU, what the next one needs, and the curve."""
    # ``names_error`` is False where the traceback of a program that never runs is shown too.
    lines = [cut(heading(report))]
    if report.problem is not None:
        lines += wrapped(refusal(report))
        return document(lines + (_failing_lines(report) if names_error else []))
    lines += [row for line in no_verdict(report) for row in wrapped(line)]
    if len(report.others) == 1 and len(report.combinations) > 1:
        lines += ["", *_matrix(report)]
    for combination in report.combinations:
        answers = report.of(combination)
        if any(answer.largest.tried for answer in answers):
            rows = [
                (padded(answer.name, _NAME), *cells_of(answer), next_value(answer))
                for answer in answers
            ]
            table = Table((padded("GPU", _NAME), *HEADS, "next"), rows, _LAYOUT)
            lines += ["", title(report, combination), *table.lines(), ""]
            for line in curve_lines(report, combination):
                lines += wrapped(line)
    lines += [""]
    for note in notes(report):
        lines += wrapped(note)
    return document(lines)


def fragment(report: GridSearch) -> str:
    """The answers for a notebook: a row for each GPU, with a bar of its memory."""
    tables: list[tuple[str, Sequence[str], str, list[Any], list[str]]] = []
    if report.problem is None:
        for combination in report.combinations:
            rows = [
                (answer.name, cells_of(answer), next_value(answer), answer.best)
                for answer in report.of(combination)
            ]
            lines = list(curve_lines(report, combination))
            tables.append((title(report, combination), HEADS, "next", rows, lines))
    failed = report.problem is not None
    below = [refusal(report), *_failing_lines(report)] if failed else list(notes(report))
    tables.append(("", (), "", [], below))
    return fill("fit.html", heading=heading(report), lines=[*no_verdict(report)], tables=tables)


def heading(report: GridSearch) -> str:
    """The program, and how often it ran."""
    return f"{printable(report.program)}: {counted(len(report.trials), 'run')} without values"


def no_verdict(report: GridSearch) -> Iterator[str]:
    """The reason why the largest value cannot be told; none where it can."""
    if not report.has_no_effect:
        return
    if any(point.peak for answer in report.answers for point in answer.points):
        yield (
            f"no verdict: the memory is the same with all values of"
            f" {printable(report.variable.name)} that ran; look whether the program uses it"
        )
    else:
        yield f"no verdict: {NO_TENSOR}"


def refusal(report: GridSearch) -> str:
    """The reason why the program runs with no value."""
    tried = report.answers[0].largest.tried
    values = ", ".join(str(tried_value.value) for tried_value in tried)
    name = printable(report.variable.name)
    first = printable(tried[0].problem or "")
    if len(tried) == 1:
        return f"the program does not run with {name} {values}: {first}"
    return (
        f"the program runs with none of {name} {values}. With {tried[0].value}: {first}."
        f" If it takes multiples of a number only, give them as a range with a step: 6:512:6"
    )


def _failing_lines(report: GridSearch) -> list[str]:
    problem = report.trials[0].problem
    return [] if problem is None else list(failing_line(problem))


def _matrix(report: GridSearch) -> Iterator[str]:
    """The largest values, with a column for each value of the other variable."""
    other = report.others[0]
    columns = [combination[0] for combination in report.combinations]
    per_block = (WIDTH - _NAME) // _CELL
    yield f"largest {printable(report.variable.name)} by {printable(other.name)}"
    for begin in range(0, len(columns), per_block):
        block = columns[begin : begin + per_block]
        heads = [padded("GPU", _NAME), *(printable(str(value))[: _CELL - 1] for value in block)]
        rows = []
        for name in dict.fromkeys(answer.name for answer in report.answers):
            cells = [
                _value(answer)
                for value in block
                for answer in report.of((value,))
                if answer.name == name
            ]
            rows.append([padded(name, _NAME), *cells])
        yield from Table(heads, rows, "{}" + f"{{:>{_CELL}}}" * len(block)).lines()


HEADS: Final = ("memory", "largest", "peak", "left")


def title(report: GridSearch, combination: tuple[int | str, ...]) -> str:
    """The title of a table."""
    pairs = zip(report.others, combination, strict=True)
    setting = ", ".join(
        f"{printable(variable.name)} {printable(str(value))}" for variable, value in pairs
    )
    name = printable(report.variable.name)
    return f"largest {name} that fits" + (f", with {setting}" if setting else "")


def cells_of(answer: Answer) -> list[str]:
    """The cells of a GPU's row below ``HEADS``."""
    best = answer.best
    cells = [prose_size(answer.gpu.total_memory), _value(answer), "", ""]
    if best is not None:
        cells[2:] = [prose_size(best.reserved_peak) + best.trial.mark, prose_size(best.headroom)]
    return cells


def curve_lines(report: GridSearch, combination: tuple[int | str, ...]) -> Iterator[str]:
    """The line through what the values need, for GPUs where it is the same."""
    name = printable(report.variable.name)
    total = len(report.of(combination))
    for curve in report.curves(combination):
        if curve.line is not None:
            yield _curve(curve.line, name, curve.names, total)


def _value(answer: Answer) -> str:
    value = answer.largest.value
    if not answer.is_proven:
        return "?" if value is None else f">= {value}"
    return _NOTHING if value is None else str(value)


def next_value(answer: Answer) -> str:
    """The memory that the next value needs."""
    above = answer.largest.above
    if not answer.is_proven:
        return "not finished"
    if above is None:
        return "upper end"
    if above.problem is not None:
        return f"{above.value}: fails"
    return f"{above.value}: {prose_size(above.needed)}"


# Curves


def _curve(line: FittedLine, variable: str, gpus: Sequence[str], total: int) -> str:
    names = "" if len(gpus) == total else f"{', '.join(map(printable, gpus))}: "
    first, last = line.points[0].value, line.points[-1].value
    per_item = signed(line.per_item, " + ", " - ")
    text = f"{names}memory = {signed(line.base)}{per_item} x {variable}, from {first} to {last}"
    if len(line.points) > 2:
        text += f" (a line through {len(line.points)} runs, off by {prose_size(round(line.error))})"
    return text


# Notes


def notes(report: GridSearch) -> Iterator[str]:
    """Notes on the numbers."""
    name = printable(report.variable.name)
    yield (
        f"{COLUMNS}; next: the next value, which does not fit, and the memory that it needs, by"
        " replays to 0.2%"
    )
    step = max(answer.largest.step for answer in report.answers)
    if step > 1:
        yield f"the program takes multiples of {step} only, as far as its runs tell"
    yield from _about_refused(report, name)
    yield from _about_peaks(report)
    yield from summary_of_runs(report.trials)


def _about_refused(report: GridSearch, name: str) -> Iterator[str]:
    """One value with which the program fails, for each kind of error."""
    seen: dict[str, TriedValue] = {}
    for answer in report.answers:
        for tried in answer.largest.tried:
            if tried.problem is not None:
                kind = tried.problem.replace(str(tried.value), "")
                seen.setdefault(kind, tried)
    for tried in list(seen.values())[:3]:
        yield f"with {name} {tried.value} the program fails: {printable(tried.problem or '')}"


def _about_peaks(report: GridSearch) -> Iterator[str]:
    unsettled = [trial for trial in report.trials if trial.ending is Ending.UNSETTLED]
    if unsettled:
        yield (
            f"the peak did not repeat within {len(unsettled[0].step_peaks)} steps in"
            f" {len(unsettled)} of {len(report.trials)} runs: a later step may need more"
            " (--steps N runs N steps)"
        )


_LONGEST: Final = 70
_LABEL_HEIGHT: Final = 0.025
"""Height of a label, as a part of the picture."""
_ABOVE: Final = 1.15
"""Top of the picture, as a multiple of the largest GPU's memory."""


# The picture


def picture(ending: str, report: GridSearch) -> bytes:
    """The curve as a picture, one for each combination of other variables."""
    answers_drawn = [
        combination
        for combination in report.combinations
        if any(answer.points for answer in report.of(combination))
    ]
    heading = shortened(f"{report.program}: memory by {report.variable.name}", _LONGEST)
    return drawn(ending, heading, answers_drawn, partial(_draw, report))


def _draw(report: GridSearch, axes: Axes, combination: tuple[int | str, ...]) -> None:
    answers = report.of(combination)
    values = [point.value for answer in answers for point in answer.points]
    top = _ABOVE * max(
        (answer.room for answer in answers if answer.largest.value is not None),
        default=max(answer.room for answer in answers),
    )
    last = _last_value(answers, top)
    axes.set_xlim(min(0, *values), last)
    for number, curve in enumerate(report.curves(combination)):
        axes.plot(
            [point.value for point in curve.points],
            [point.peak for point in curve.points],
            "o-",
            color=COLOURS[number % len(COLOURS)],
            markersize=4,
            linewidth=1.4,
            label=_label(curve),
        )
    _rooms(axes, answers, top, last)
    pairs = zip(report.others, combination, strict=True)
    setting = shortened(
        ", ".join(f"{variable.name} {value}" for variable, value in pairs), _LONGEST
    )
    finish(axes, setting, printable(report.variable.name), top)
    axes.legend(
        loc="upper left", frameon=False, title="memory that PyTorch needs", alignment="left"
    )


def _last_value(answers: Sequence[Answer], top: float) -> float:
    """The value up to which curves are shown: the first that lies above the picture."""
    inside = [point.value for answer in answers for point in answer.points if point.peak <= top]
    outside = [
        point.value
        for answer in answers
        for point in answer.points
        if point.peak > top and point.value > max(inside, default=0)
    ]
    last = max(inside, default=0)
    if outside and last:
        return min(*outside, 1.25 * last) if len(outside) > 1 else min(outside[0], 1.25 * last)
    return max(last, *outside, 1) if outside else max(1.05 * last, 1)


def _label(curve: Curve) -> str:
    """The GPUs of a curve, and its line."""
    line = curve.line
    names = shortened(", ".join(curve.names), _LONGEST)
    if line is None:
        return names
    return f"{names}: {signed(line.base)}{signed(line.per_item, ' + ', ' - ')} each"


def _rooms(axes: Axes, answers: Sequence[Answer], top: float, last: float) -> None:
    """Marks of each GPU's usable memory and of the largest value that fits."""
    found_answers = [answer for answer in answers if answer.largest.value is not None]
    labels: list[tuple[int, list[str]]] = []
    for answer in sorted(found_answers, key=lambda answer: answer.room):
        value = answer.largest.value or 0
        axes.axhline(answer.room, color=ALARM, linewidth=1)
        axes.plot(
            [value],
            [next(p.peak for p in answer.points if p.value == value)],
            "D",
            color=ALARM,
            markersize=6,
        )
        label = f"{printable(answer.name)}: {value}"
        if labels and answer.room - labels[-1][0] < _LABEL_HEIGHT * top:
            labels[-1][1].append(label)
        else:
            labels.append((answer.room, [label]))
    for room, names in labels:
        axes.annotate(
            shortened(", ".join(names), _LONGEST),
            (last, room),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            color=ALARM,
        )
