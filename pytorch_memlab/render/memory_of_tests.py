"""The pytest messages on the GPU memory of tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import printable
from ..history.holders import PeakHolders
from ..history.model import Category, device_name
from ..profiles.changed_tests import ChangedLine, ChangedTest, MeasuredTest, changed_lines
from ..profiles.differences import SizeChange
from ..records import hardware
from . import peak
from .differences import change_of, percent
from .rows import cut, document, place, shares_text, wrapped
from .table import fitted

_LINES: Final = 8
_PARTS: Final = 4
_TESTS: Final = 25
_NO_TESTS: Final = (
    "no test was measured: none that ran has a mark gpu_memory_limit or gpu_leaks, or uses"
    " gpu_memory; --memlab-gpu GPU measures all"
)
_ALL_NEW: Final = (
    "no test is in the baseline: both runs need one folder of the project (rootdir), so write"
    " --memlab-baseline=FILE with ="
)
_LOWER_BOUND: Final = "?: a lower bound, the simulation did not count all memory"


def over_limit(test: MeasuredTest, limit: int, holders: PeakHolders | None) -> str:
    """A test that used more than its mark allows, and what held the memory."""
    lines = wrapped(f"GPU memory is over the limit of {prose_size(limit)}: {_peak(test)}")
    if test.before:
        before = f"  {prose_size(test.before)} were in use before it began"
        lines.append(f"{before}, by fixtures or earlier tests")
    return "\n".join([*lines, *_held(holders)])


def increased(
    test: MeasuredTest, change: SizeChange, limit: str, lines: Sequence[ChangedLine]
) -> str:
    """A test whose peak grew too much since the baseline, and the lines that did it."""
    growth = f"{prose_size(change.before)} to {prose_size(change.after)} ({percent(change)})"
    head = [
        *wrapped(f"GPU memory grew from {growth}, more than --memlab-fail-on-increase {limit}"),
        *wrapped(f"  {_peak(test)}"),
    ]
    rows = [row for line in lines[:_LINES] for row in _changed(line)]
    return "\n".join([*head, *(["", "lines that hold more or less:", *rows] if rows else [])])


def leak(device: int, size: int, blocks: int, limit: int, holders: PeakHolders | None) -> str:
    """A test of which too much stayed in use, and the lines that allocated it."""
    head = (
        f"GPU memory leak of {prose_size(size)} in {counted(blocks, 'block')} on"
        f" {device_name(device)}, more than {prose_size(limit)}: it stays in use when the test and"
        " its fixtures are over"
    )
    return "\n".join([*wrapped(head), *_held(holders)])


def unused(name: str) -> str:
    """A test whose limit means nothing, because it uses no GPU."""
    return (
        f"{name} has a mark for GPU memory and made no CUDA tensor, so nothing was measured: a"
        " device that was chosen when the file was imported is the CPU; choose it in the test or in"
        " a fixture"
    )


def summary(tests: Sequence[ChangedTest], *, has_baseline: bool) -> Iterator[str]:
    """The peaks of all tests, the highest first."""
    measured = [(test, test.after) for test in tests if test.after is not None]
    if not measured:
        yield _NO_TESTS
        return
    gpus = list(dict.fromkeys(_gpu(test) for _, test in measured))
    yield f"peak of the memory in use while the test ran, on {', '.join(gpus)}"
    has_limits = any(test.limit is not None for _, test in measured)
    heads = ["peak", *(["limit"] * has_limits), *(["change", ""] if has_baseline else [])]
    rows = [
        [
            size_text(test),
            *(["" if test.limit is None else prose_size(test.limit)] * has_limits),
            *(_change(changed_test) if has_baseline else ()),
        ]
        for changed_test, test in measured
    ]
    order = sorted(range(len(rows)), key=lambda place: -measured[place][1].peak)[:_TESTS]
    table = _table(heads, rows, [changed_test.name for changed_test, _ in measured])
    yield from [table[0], *(table[1 + place] for place in order)]
    if len(rows) > len(order):
        yield f"{len(rows) - len(order)} more: --memlab-save FILE keeps all"
    if any(test.is_lower_bound for _, test in measured):
        yield _LOWER_BOUND
    if has_baseline and all(changed_test.before is None for changed_test, _ in measured):
        yield _ALL_NEW


def differences(names: tuple[str, str], tests: Sequence[ChangedTest], rows: int) -> str:
    """The tests of two files, those whose peak changed most first, and the lines that did it."""
    same = [test for test in tests if test.change is not None and not test.change.growth]
    others = [test for test in tests if test not in same]
    lines = [f"peak of the memory in use in each test, from {names[0]} to {names[1]}", ""]
    if others:
        cells = [
            [size_text(other.before), size_text(other.after), *_change(other)]
            for other in others[:rows]
        ]
        heads = ["before", "after", "change", ""]
        lines += _table(heads, cells, [other.name for other in others[:rows]])
        if len(others) > rows:
            lines.append(f"{len(others) - rows} more: a larger --rows shows them")
    if same:
        lines.append(f"{counted(len(same), 'test')} as before")
    for other in others[:rows]:
        if other.before is not None and other.after is not None and other.change is not None:
            changes = changed_lines(other.before, other.after)[:rows]
            if changes:
                lines += ["", f"lines that hold more or less in {printable(other.name)}:"]
                lines += [row for line in changes for row in _changed(line)]
    return document(lines)


def grew(test: ChangedTest, limit: str) -> str:
    """A test whose peak grew too much."""
    assert test.change is not None
    growth = f"{prose_size(test.change.growth)} ({percent(test.change)})"
    return f"{printable(test.name)}: the peak grew by {growth}, more than {limit}"


def size_text(test: MeasuredTest | None) -> str:
    """The peak of a test; empty if there is no such test."""
    return "" if test is None else prose_size(test.peak) + "?" * test.is_lower_bound


def _table(heads: list[str], rows: list[list[str]], names: list[str]) -> list[str]:
    """The heads, and a row for each test."""
    named = [(*cells, printable(name)) for cells, name in zip(rows, names, strict=True)]
    return [*fitted((*heads, "test"), named, {len(heads)}, "  ").lines()]


def _change(test: ChangedTest) -> list[str]:
    if test.before is None:
        return ["new", ""]
    if test.after is None:
        return ["gone", ""]
    if test.change is None:
        return ["other GPU", ""]
    return (
        [change_of(test.change.growth), percent(test.change)]
        if test.change.growth
        else ["same", ""]
    )


def change_text(test: ChangedTest) -> str:
    """The change of a test's peak, with its share."""
    size, share = _change(test)
    return f"{size} ({share})" if share else size


def _peak(test: MeasuredTest) -> str:
    bound = "at least " * test.is_lower_bound
    return f"peak {bound}{prose_size(test.peak)} in use on {test.device} ({_gpu(test)})"


def _gpu(test: MeasuredTest) -> str:
    return printable(hardware(test.gpu, test.simulated)) if test.gpu else "no GPU"


def _held(holders: PeakHolders | None) -> Iterator[str]:
    """The lines, categories and modules that hold memory."""
    if holders is None or not holders.peak.blocks:
        return
    yield ""
    yield "held by these lines:"
    yield from peak.rows(holders, _LINES)
    categories = holders.by_category()
    # On a real GPU no block has a category.
    if any(category.name != Category.UNKNOWN.value for category in categories):
        yield from wrapped(f"as: {shares_text(categories, _PARTS)}")
    modules = [module for module in holders.by_module() if module.name]
    if modules:
        yield from wrapped(f"in modules: {shares_text(modules, _PARTS)}")


def _changed(change: ChangedLine) -> Iterator[str]:
    line = change.line
    where = place(line.file, line.line, line.function)
    yield cut(f"{change_of(change.change.growth):>12}  {where}")
    if line.code:
        yield cut(f"{'':14}{printable(line.code)}")
