"""The GPU memory of tests, and its changes since a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..records import FunctionInfo
from .differences import SizeChange
from .matching import match


@dataclass(frozen=True, slots=True)
class HoldingLine:
    """A line whose allocations are in use at the peak of a test."""

    file: str
    line: int  # its number; 0 if the place is not known
    function: str
    code: str  # the line, without the space around it
    size: int


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """The GPU memory of a test."""

    device: str
    gpu: str
    simulated: bool
    peak: int  # most bytes in use while the test ran
    reserved: int  # most bytes that PyTorch took from the GPU
    before: int  # bytes in use when the test began, those of its fixtures among them
    is_lower_bound: bool
    limit: int | None = None  # bytes that its mark allows; None without one
    holders: tuple[HoldingLine, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedTest:
    """A test in a baseline and now, or in one of them."""

    name: str
    before: MeasuredTest | None  # in the baseline; None for a new test
    after: MeasuredTest | None  # now; None for a test that is gone

    @property
    def change(self) -> SizeChange | None:
        """The change of the peak; None if it cannot be compared."""
        before, after = self.before, self.after
        if before is None or after is None:
            return None
        is_on_one_gpu = (before.gpu, before.simulated) == (after.gpu, after.simulated)
        return SizeChange(before.peak, after.peak) if is_on_one_gpu else None


def changed_tests(
    before: Mapping[str, MeasuredTest], after: Mapping[str, MeasuredTest]
) -> list[ChangedTest]:
    """All tests of both, the largest change first, then those that cannot be compared."""
    tests = [
        ChangedTest(name, before.get(name), after.get(name)) for name in sorted({**before, **after})
    ]
    return sorted(tests, key=lambda test: -abs(test.change.growth) if test.change else 1)


@dataclass(frozen=True, slots=True)
class ChangedLine:
    """A line that holds memory at the peak of a test, in a baseline or now."""

    line: HoldingLine  # as it is now; as it was if it holds nothing now
    change: SizeChange  # its bytes


def changed_lines(before: MeasuredTest, after: MeasuredTest) -> list[ChangedLine]:
    """The lines that hold more or less than before, the largest change first."""
    # Lines match by their code, also where they moved or their function was renamed.
    left, right = _by_function(before.holders), _by_function(after.holders)
    changes: list[ChangedLine] = []
    for former, other, pairs in match(
        [_info(holder_line) for holder_line in left], [_info(holder_line) for holder_line in right]
    ):
        lines = [] if former is None else left[former]
        others = [] if other is None else right[other]
        matched = {number - 1: place - 1 for place, number in pairs.items() if place and number}
        for number, line in enumerate(others):
            place = matched.get(number)
            was = 0 if place is None else lines[place].size
            changes.append(ChangedLine(line, SizeChange(was, line.size)))
        gone = set(range(len(lines))) - set(matched.values())
        changes += [
            ChangedLine(lines[place], SizeChange(lines[place].size, 0)) for place in sorted(gone)
        ]
    changed = [change for change in changes if change.change.growth]
    return sorted(changed, key=lambda change: -abs(change.change.growth))


def _by_function(holders: Sequence[HoldingLine]) -> list[list[HoldingLine]]:
    by_function: dict[tuple[str, str], list[HoldingLine]] = {}
    for holder in sorted(holders, key=lambda holder: holder.line):
        by_function.setdefault((holder.file, holder.function), []).append(holder)
    return list(by_function.values())


def _info(lines: Sequence[HoldingLine]) -> FunctionInfo:
    """A function of which only these lines are known: its header is line 0."""
    file, name = lines[0].file, lines[0].function
    return FunctionInfo(name, file, 0, (f"def {name}", *(line.code for line in lines)))
