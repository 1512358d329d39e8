"""The memory that remedies save in a program, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted, prose_size, signed
from .._common.text.quoted import printable, visible
from .._common.text.source_lines import source_lines
from ..advice.rewriting import place_of
from ..fitting.comparison import error_line
from .fit import PEAK
from .notes import summary_of_runs
from .rows import WIDTH, document, wrapped
from .table import Table

if TYPE_CHECKING:
    from ..advice.around_program import Finding
    from ..advice.smallest_checkpointing import Smallest
    from ..advice.tried import Remedies, TriedRemedy
    from ..fitting.verdict import Verdict

_NAME: Final = 20
"""Characters of the first column, unless a name is longer."""
_HEADS: Final = ("remedy", "peak", "saves", "fits", "what it changes")
_LAYOUT: Final = "{:>11}{:>12}  {:4}  {}"
_CHANGES: Final = len(_LAYOUT.format("", "", "", ""))
"""Characters between the first and the last column."""
_ABOUT: Final = f"{PEAK}; each row is the program with this remedy alone"
_UNITS: Final = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"))


def text(remedies: Remedies) -> str:
    """A table of remedies, how each is written, and the fewest blocks to checkpoint."""
    gpu = remedies.unchanged
    taken = f", {prose_size(gpu.taken)} of it taken" if gpu.taken else ""
    size = f"({prose_size(gpu.capacity)}{taken})"
    lines = wrapped(f"{printable(remedies.program)} on {printable(gpu.name)} {size}")
    if gpu.fits is None:
        return document([*lines, "the program fails as it is, so no remedy was tried"])
    lines += ["", *_table(remedies)]
    if remedies.smallest is not None:
        lines += ["", *_smallest(remedies.smallest, remedies.step_flops)]
    helping = [remedy for remedy in _by_saving(remedies) if _saving(remedies, remedy) > 0]
    for remedy in helping:
        if remedy.finding is not None:
            lines += ["", *_code(remedy.name, remedy.finding)]
    verdicts = [
        remedies.unchanged,
        *(remedy.verdict for remedy in remedies.tried if remedy.verdict is not None),
    ]
    notes = [_ABOUT, *summary_of_runs(verdict.trial for verdict in verdicts)]
    return document(lines, (part for note in notes for part in wrapped(note)))


# The table


def _table(remedies: Remedies) -> Iterator[str]:
    name = max([_NAME, *(len(remedy.name) for remedy in remedies.tried)])
    rows = [_row("none", remedies.unchanged, "", "")]
    for remedy in _by_saving(remedies):
        assert remedy.verdict is not None
        again = _again(remedy.finding, remedies.step_flops)
        first, *others = textwrap.wrap(f"{remedy.what_it_changes}{again}", WIDTH - name - _CHANGES)
        rows.append(_row(remedy.name, remedy.verdict, signed(_saving(remedies, remedy)), first))
        rows += [("", "", "", "", line) for line in others]
    yield from Table(_HEADS, rows, f"{{:{name}}}{_LAYOUT}").lines()
    for remedy in remedies.tried:
        if remedy.verdict is None:  # the reason may use the empty columns too
            first, *others = textwrap.wrap(_why_not(remedy), WIDTH - name - 2)
            yield f"{remedy.name:{name}}  {first}"
            yield from (f"{'':{name}}  {line}" for line in others)


def _row(name: str, verdict: Verdict, saves: str, changes: str) -> tuple[str, ...]:
    peak = prose_size(verdict.reserved_peak) + verdict.trial.mark
    return name, peak, saves, "yes" if verdict.fits else "no", changes


def _saving(remedies: Remedies, remedy: TriedRemedy) -> int:
    if remedy.verdict is None:
        return 0
    return remedies.unchanged.reserved_peak - remedy.verdict.reserved_peak


def _by_saving(remedies: Remedies) -> list[TriedRemedy]:
    """Those that were applied, the one that saves most first."""
    applied = [remedy for remedy in remedies.tried if remedy.verdict is not None]
    return sorted(applied, key=lambda remedy: -_saving(remedies, remedy))


def _why_not(remedy: TriedRemedy) -> str:
    if remedy.error:
        return f"fails: {printable(error_line(remedy.error))}"
    if remedy.finding is None:
        return "fails: the process of the program was lost"
    return f"{remedy.finding.outcome.value}: {remedy.finding.reason}"


def _again(finding: Finding | None, step_flops: int) -> str:
    """The operations that are done a second time, where they are counted."""
    flops: int = getattr(finding, "flops", 0)
    others: int = getattr(finding, "step_flops", 0)
    return f" ({_flops(flops, others or step_flops)})" if flops or others else ""


def _flops(flops: int, whole: int) -> str:
    """Operations, and their share of those of a step."""
    unit, name = next((unit for unit in _UNITS if flops >= unit[0]), _UNITS[-1])
    number = f"{flops / unit:.2f} {name}" if flops else "0 FLOP"
    share = f", +{100 * flops / whole:.0f}%" if whole else ""
    return f"{number} a step{share}"


# The fewest blocks


def _smallest(smallest: Smallest, step_flops: int) -> Iterator[str]:
    finding, peak = smallest.finding, prose_size(smallest.verdict.reserved_peak)
    total = len(smallest.candidates)
    if not smallest.verdict.fits:
        yield from wrapped(
            f"to fit: checkpointing all {total} blocks ({finding.kind}) is not enough: {peak}"
        )
        return
    count = len(finding.blocks)
    again = f", {_flops(finding.flops, step_flops)} more" if finding.flops else ""
    yield from wrapped(
        f"to fit: checkpoint {count} of {total} blocks ({finding.kind}): peak"
        f" {peak}{again}{'; none of them can be left out' * (count > 1)}"
    )
    yield from _code(f"checkpoint {counted(count, 'block')}", finding)


# Code


def _code(name: str, finding: Finding) -> Iterator[str]:
    """A remedy in the lines of the program, where they are known."""
    if not finding.edits:
        yield f"{name}:"
        yield from _indented(finding.code)
        return
    for edit in finding.edits:
        yield f"{name}, {printable(place_of(edit))}:"
        yield from _indented(source_lines(textwrap.dedent("\n".join(edit.lines))))
    yield from _indented(finding.commands)


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"    {visible(line)}" for line in lines)
