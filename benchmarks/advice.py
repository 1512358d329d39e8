"""Advice against the truth, on programs with one fault each, and on sound ones.

Each program of ``test/advice/programs/`` with a fault runs out of memory on the GPU that its first
line names. The first remedy is applied to a copy, as it is printed; the copy runs, and its peak is
compared with what the remedy promised. Sound programs fit, and no remedy is named for them.
``python -m benchmarks.advice [NAME...]`` prints a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Final

import torch

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import chain, uncaught
from pytorch_memlab._common.text.prose_size import prose_size
from pytorch_memlab.advice.catalogue import all_causes
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.advice.trial_records import Advice, TrialProgram
from pytorch_memlab.advice.trials import advice_without_error, tried_advice, untried_advice
from pytorch_memlab.fitting.change import Change
from pytorch_memlab.fitting.child import ChildWork, run_in_children
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.history.out_of_memory import OutOfMemory
from pytorch_memlab.simulation.inspect import GPU

FOLDER: Final = Path(__file__).parents[1] / "test" / "advice" / "programs"
SOUND: Final = "none"
"""The cause of a program without a fault."""
_OPTION: Final = re.compile(r"# (gpu|cause|needs): (.*)")
_ROOM: Final = "64GiB"
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_SECONDS: Final = 300.0
_MODULES: Final = {cause.name: type(cause).__module__.rpartition(".")[2] for cause in all_causes()}


@dataclass(frozen=True, slots=True)
class AdviceProgram:
    """A program of the folder."""

    path: Path
    gpu: str
    cause: str  # module of ``causes``, or ``SOUND``
    needs: tuple[str, ...] = ()  # packages

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def modules(self) -> Path:
        """The folder of the modules beside it; most have none."""
        return self.path.with_suffix("")

    @property
    def missing(self) -> list[str]:
        """Packages that the program imports and the environment lacks."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, slots=True)
class _Printed:
    """The first remedy, as far as people see it."""

    causes: tuple[str, ...] = ()  # modules of all remedies
    code: tuple[str, ...] = ()
    diff: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    promised: int = 0
    is_exact: bool = False  # whether the bytes are of a run to the program's end
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Ran:
    peak: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A program, what was said of it, and what came of it."""

    name: str
    expected: str
    first: str  # the cause that was named first; empty for none
    applies: bool = False
    runs: bool = False
    promised: int = 0
    saved: int = 0
    is_exact: bool = False
    note: str = ""

    @property
    def is_within(self) -> bool:
        """True if as much is saved as was promised, within 2 % or 1 MiB."""
        return abs(self.promised - self.saved) <= self._allowed

    @property
    def is_as_promised(self) -> bool:
        """The same; what says "at least" may save more."""
        return self.is_within or (not self.is_exact and self.saved >= self.promised)

    @property
    def _allowed(self) -> int:
        return max(self.promised // 50, 2**20)

    @property
    def is_right(self) -> bool:
        """True if the first remedy is the expected one and keeps its promise; a sound one none."""
        if self.expected == SOUND:
            return not self.first and not self.note
        is_done = self.applies and self.runs and self.is_as_promised
        return self.first == self.expected and is_done


@dataclass(frozen=True, slots=True)
class _Run:
    path: str
    gpu: str
    is_tried: bool = False
    is_sound: bool = False


def programs() -> list[AdviceProgram]:
    """All of them, those of libraries too."""
    return [_read(path) for path in sorted(FOLDER.glob("*.py"))]


def rows(chosen: Sequence[AdviceProgram], processes: int, *, is_tried: bool) -> list[Row]:
    """The rows of some programs, in their order.

    Args:
        chosen: programs whose packages are there.
        processes: number of programs that run at a time.
        is_tried: whether remedies are tried, as the command does it.
    """
    with tempfile.TemporaryDirectory(prefix="advice-") as folder:
        works = []
        for program in chosen:
            path = Path(folder, program.name, f"{program.name}.py")
            path.parent.mkdir()
            path.write_text(program.path.read_text())
            if program.modules.is_dir():
                copytree(program.modules, path.parent, dirs_exist_ok=True)
            is_sound = program.cause == SOUND
            works.append(_Run(str(path), program.gpu, is_tried, is_sound))
        output = os.path.join(folder, "output.txt")
        printed: list[_Printed] = [_Printed()] * len(works)
        asked = [ChildWork(_advised, work, _lost_advice, output) for work in works]
        for index, one in run_in_children(asked, processes):
            printed[index] = one
        before = _peaks([_Run(work.path, _ROOM) for work in works], (), processes, output)
        found = []
        for program, work, advice, whole in zip(chosen, works, printed, before, strict=True):
            found.append(_row(program, work, advice, whole, output))
        return found


def _row(program: AdviceProgram, work: _Run, advice: _Printed, whole: _Ran, output: str) -> Row:
    first = advice.causes[0] if advice.causes else ""
    row = partial(Row, program.name, program.cause, first)
    if advice.problem or whole.error or program.cause == SOUND or not first:
        return row(note=advice.problem or whole.error)
    path = Path(work.path)
    edited = path.with_name("edited") / path.name
    edited.parent.mkdir()
    try:
        for file in path.parent.glob("*.py"):
            (edited.parent / file.name).write_text(patched(file, advice.diff))
    except ValueError as error:
        return row(note=str(error))
    if not advice.diff and not advice.environment:
        return row(note=f"no edit: {advice.code[0]}")
    runs = [_Run(str(edited), program.gpu), _Run(str(edited), _ROOM)]
    small, large = _peaks(runs, advice.environment, 1, output)
    saved = whole.peak - large.peak
    is_setting = bool(advice.environment)
    return row(
        applies=True,
        runs=not small.error,
        promised=0 if is_setting else advice.promised,  # it saves nothing of what is in use
        saved=0 if is_setting else saved,
        is_exact=advice.is_exact,
        note=small.error or large.error,
    )


def patched(file: Path, diff: str) -> str:
    """The text of a file with its part of a unified diff.

    Raises:
        ValueError: a line of the diff is not that of the file.
    """
    old, new, at = file.read_text().splitlines(), list[str](), 0
    is_here = False
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if line.startswith("--- "):
            is_here = Path(line.removeprefix("--- ")).name == file.name
        elif not is_here:
            continue
        elif hunk:
            begin = int(hunk[1]) - 1
            new += old[at:begin]
            at = begin
        elif line.startswith("+++ "):
            continue
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            if old[at : at + 1] != [line[1:]]:
                raise ValueError(f"the edit does not apply: {line[1:].strip()}")
            new += [line[1:]] * line.startswith(" ")
            at += 1
    return "".join(f"{line}\n" for line in [*new, *old[at:]])


def _read(path: Path) -> AdviceProgram:
    options = dict(_OPTION.findall(path.read_text()))
    needs = tuple(options.get("needs", "").split())
    return AdviceProgram(path, options["gpu"], options["cause"], needs)


def _advised(run: _Run) -> _Printed:
    """Run a program out of memory, and read what is said then."""
    folder = os.path.dirname(run.path)
    os.chdir(folder)
    error = report = None
    with simulate(run.gpu, compute=False, context=0) as machine:
        gpu = machine.gpus[0].model
        with ProgramTarget(run.path).started([]) as call:
            try:
                call()
            except SystemExit as exit_:
                if exit_.code not in (None, 0):
                    return _Printed(problem=f"it ended with {exit_.code}")
            except BaseException as caught:
                error = caught
                report = uncaught.add(error)  # while the variables of the program are there
    if error is None:
        if not run.is_sound:
            return _Printed(problem=f"it fits on {run.gpu}")
        return _said_without_error(run, gpu, folder) if run.is_tried else _Printed()
    facts = None if report is None else report.facts
    if not isinstance(facts, OutOfMemory):
        return _Printed(problem="".join(traceback.format_exception_only(error)).strip())
    mine = os.path.realpath(folder)
    frames = [one for one in facts.frames if os.path.realpath(one.place.file).startswith(mine)]
    facts = replace(facts, frames=tuple(frames))
    if run.is_tried:
        program = TrialProgram(ProgramTarget(run.path), gpu, Settings(context=0), folder)
        return _printed(tried_advice(facts, program, _SECONDS))
    return _printed(untried_advice(facts))


def _said_without_error(run: _Run, gpu: GPU, folder: str) -> _Printed:
    """The remedies that ``run`` names below the report of a program that fits."""
    program = TrialProgram(ProgramTarget(run.path), gpu, Settings(context=0), folder)
    advice = advice_without_error(program, _SECONDS, only_faults=True)
    return _printed(advice) if advice.remedies else _Printed()


def _printed(advice: Advice) -> _Printed:
    if not advice.remedies:
        return _Printed(problem=advice.untried)
    first, result = advice.remedies[0], advice.results[0]
    return _Printed(
        tuple(_MODULES[remedy.cause] for remedy in advice.remedies),
        first.code,
        first.change.diff() if isinstance(first.change, EditedSource) else "",
        _environment(first.change),
        first.size if result is None else result.saved,
        result is not None and result.is_exact,
    )


def _environment(change: Change | None) -> tuple[tuple[str, str], ...]:
    return () if change is None else tuple(change.environment().items())


def _lost_advice(status: int) -> _Printed:
    return _Printed(problem=f"its process ended with {status}")


def _lost_run(status: int) -> _Ran:
    return _Ran(error=f"its process ended with {status}")


def _peaks(
    runs: Sequence[_Run], environment: Sequence[tuple[str, str]], processes: int, output: str
) -> list[_Ran]:
    ended = [_Ran()] * len(runs)
    works = [ChildWork(partial(_peak, environment), run, _lost_run, output) for run in runs]
    for index, ran in run_in_children(works, processes):
        ended[index] = ran
    return ended


def _peak(environment: Sequence[tuple[str, str]], run: _Run) -> _Ran:
    """Run a program to its end, and read the most bytes that were in use."""
    os.chdir(os.path.dirname(run.path))
    os.environ.update(environment)
    try:
        with simulate(run.gpu, compute=False, context=0):
            with suppress(SystemExit):
                _call(run.path)
            return _Ran(torch.cuda.max_memory_allocated())
    except BaseException as error:
        last = "".join(traceback.format_exception_only(error)).strip().splitlines()
        is_full = any(isinstance(one, torch.OutOfMemoryError) for one in chain(error))
        return _Ran(error="out of memory" if is_full else last[-1])


def _call(path: str) -> None:
    with ProgramTarget(path).started([]) as call:
        call()


def text(found: Sequence[Row]) -> str:
    """The table of some programs, and how many of them are right."""
    head = f"{'program':<28} {'cause':<22} {'named first':<22} {'edit':<5} {'runs':<5}"
    lines = [f"{head} {'promised':>11} {'saved':>11} {'2 %':<5} right"]
    for row in found:
        has_edit = row.expected != SOUND
        within = _yes(row.is_within) if row.runs else "-"
        lines.append(
            f"{row.name:<28} {row.expected:<22} {row.first or '-':<22}"
            f" {_yes(row.applies) if has_edit else '-':<5} {_yes(row.runs) if has_edit else '-':<5}"
            f" {prose_size(row.promised):>11} {prose_size(max(row.saved, 0)):>11}"
            f" {within:<5} {_yes(row.is_right)}{'  ' * bool(row.note)}{row.note}"
        )
    right, ran = sum(row.is_right for row in found), [row for row in found if row.runs]
    near = sum(row.is_within for row in ran)
    ending = f"{right} of {len(found)} right; {near} of {len(ran)} within 2 % or 1 MiB"
    return "\n".join([*lines, "", ending])


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def main() -> int:
    """Print the table; 1 if a row is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs, by default all")
    parser.add_argument("--no-try", action="store_true", help="take what the blocks tell")
    parser.add_argument("--processes", type=int, default=2, help="programs at a time")
    arguments = parser.parse_args()
    wanted = set(arguments.names)
    chosen = [one for one in programs() if not wanted or one.name in wanted]
    missing = [one for one in chosen if one.missing]
    there = [one for one in chosen if not one.missing]
    found = rows(there, arguments.processes, is_tried=not arguments.no_try)
    print(text(found))
    for one in missing:
        print(f"{one.name} did not run: {', '.join(one.missing)} is not installed")
    return int(bool(missing) or not all(row.is_right for row in found))


if __name__ == "__main__":
    sys.exit(main())
