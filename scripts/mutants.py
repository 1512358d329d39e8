"""Change the package in one place at a time, and see whether its tests notice.

``python scripts/mutants.py --sample 500 --seed 1 pytorch_memlab/history pytorch_memlab/cli`` takes
500 mutants at random; ``pytorch_memlab/history/peak.py:120`` names those of a line. All tests run
once, to see which of them reach which mutants. Then each mutant is put into a copy of the project,
so that processes that a test starts have it too, and the tests that reach it run there, quick and
near ones first, until one fails. A test that also fails without the mutant catches nothing.
One that takes half of the limit hangs, and fails; where the limit ends first, a mutant survives.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "pytorch_memlab"
_PROBE: Final = "mutant_probe"
_NO_TESTS: Final = 5
"""pytest's exit code where it has nothing to run."""
_COPIES: Final = 2
"""How many mutants are tested at a time."""
_NEAREST_FILES: Final = 25
"""How many files of tests a mutant has that importing reaches."""

_COMPARISONS: Final[dict[type[ast.cmpop], ast.cmpop]] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Lt: ast.LtE(), ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(), ast.GtE: ast.Gt(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], ast.operator]] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(), ast.Div: ast.Mult(),
}  # fmt: skip
_EXTREMES: Final = {"min": "max", "max": "min"}
_NOTHING: Final = {"None", "False", "return"}
_NO_BEHAVIOUR: Final = {"annotation", "returns", "decorator_list", "type_params", "msg"}
"""Fields of statements that hold types, and the message of an assertion."""
_NO_BEHAVIOUR_CALLED: Final = {"cast", "TypeVar", "overload", "warn", "NamedTuple", "dataclass"}


class Mutant(NamedTuple):
    """A piece of a source, and the text in its place; both have as many lines."""

    path: Path
    line: int
    start: int
    end: int
    text: str
    names: tuple[str, ...]
    """The class and the functions that it is in."""

    def source(self) -> str:
        """The whole file with the change in it."""
        source = (ROOT / self.path).read_bytes()
        return (source[: self.start] + self.text.encode() + source[self.end :]).decode()

    def replaces_statement(self) -> bool:
        """True if its piece is a whole statement."""
        return not self.text.startswith("(")

    def __str__(self) -> str:
        before = (ROOT / self.path).read_bytes()[self.start : self.end].decode()
        short = (" ".join(text.split()) for text in (before, self.text))
        return f"{self.path}:{self.line}  {'  ->  '.join(short)}"


_Change = tuple[ast.expr | ast.stmt, tuple[str, ...], str]


def mutants_of(path: Path, source: str) -> list[Mutant]:
    """All mutants of a source, in its order."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for node, names, text in _changes(ast.parse(source), ()):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        padded = text + "\n" * (node.end_lineno - node.lineno)
        padded = f"({padded})" if isinstance(node, ast.expr) else padded
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        mutants.append(Mutant(path, node.lineno, start, end, padded, names))
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _changes(node: ast.AST, names: tuple[str, ...]) -> Iterator[_Change]:
    """Nodes with the names around them, and what replaces them."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.pattern):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Call) and _name(node.func) in _NO_BEHAVIOUR_CALLED:
        return
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        names = (*names, node.name)
    if isinstance(node, ast.expr):
        yield from ((node, names, text) for text in _expressions(node))
    # None and False are the same to a condition.
    if isinstance(node, ast.Return) and ast.unparse(node.value or node) not in _NOTHING:
        yield node, names, "return None"
    if isinstance(node, ast.stmt) and _is_dropped(node):
        yield node, names, "pass"
    for part, negated in _parts(node):
        yield part, names, negated
    for field, value in ast.iter_fields(node):
        if field not in _NO_BEHAVIOUR:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child, names)


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _is_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    is_statement = isinstance(node, ast.Assign | ast.AugAssign)
    return is_statement and any(isinstance(target, ast.Attribute) for target in targets)


def _parts(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Conditions, bounds of slices and keys: what changes by where it is."""
    tests = node.ifs if isinstance(node, ast.comprehension) else []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    for test in tests:
        if not isinstance(test, ast.Compare | ast.UnaryOp):  # those have the same mutant
            yield test, f"not ({ast.unparse(test)})"
    if isinstance(node, ast.Slice):
        for bound, step in ((node.lower, "+"), (node.upper, "-")):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield bound, f"{ast.unparse(bound)} {step} 1"
    keys = node.keys if isinstance(node, ast.Dict) else []
    for key in [node.slice] if isinstance(node, ast.Subscript) else keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key, repr(f"{key.value}_")


def _expressions(node: ast.expr) -> Iterator[str]:
    """The texts that replace an expression, by itself."""
    match node:
        case ast.Compare(left, operators, others):
            for at, operator in enumerate(operators):
                changed = [*operators[:at], _COMPARISONS[type(operator)], *operators[at + 1 :]]
                yield ast.unparse(ast.Compare(left, changed, others))
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.unparse(ast.BoolOp(other, values))
        case ast.UnaryOp(ast.Not(), operand):
            yield ast.unparse(operand)
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            yield ast.unparse(ast.BinOp(left, _ARITHMETIC[type(operator)], right))
        case ast.Constant(bool() as value):
            yield repr(not value)
        case ast.Constant(int() | float() as value):
            yield repr(value + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in _EXTREMES:
            yield ast.unparse(ast.Call(ast.Name(_EXTREMES[name]), arguments, keywords))


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def tests_of(mutant: Mutant, tests: dict[Path, str], most: int) -> list[str]:
    """The files of tests to run, those that are nearest to the mutant first."""
    module = mutant.path.with_suffix("").parts[1:]
    module = module[:-1] if module[-1] == "__init__" else module
    module = module or (PACKAGE,)  # of the package itself
    folder = module[: 2 if module[0] == "simulation" else 1]
    parent = ".".join((PACKAGE, *module[:-1]))
    names = {name for name in mutant.names if len(name.strip("_")) > 5}
    scores = {}
    for path, text in tests.items():
        places, words = path.parts[1:-1], _words(text)
        score = 3 * (parent in text and module[-1] in words) + 3 * bool(names & words)
        if score or places[: len(folder)] == folder:
            same = (ours == theirs for ours, theirs in zip(places, module, strict=False))
            scores[path] = score + 2 * sum(same) + 3 * (module[-1].strip("_") in path.stem)
    ordered = sorted(scores, key=lambda path: (-scores[path], len(tests[path]), path))
    return [str(path) for path in ordered[:most]]


def probed(source: str, mutants: Mapping[int, Mutant]) -> str:
    """A source that tells the probe where a mutant is reached; it has the same lines."""
    pieces = source.encode()
    inserted = []
    for number, mutant in mutants.items():
        call = f"__import__({_PROBE!r}).reach({number})"
        size = mutant.end - mutant.start
        if mutant.replaces_statement():
            inserted.append((mutant.start, 1, -size, f"{call}; "))
        else:
            # The text of a whole piece is outside of those of its parts.
            inserted.append((mutant.start, 2, -size, f"({call} or ("))
            inserted.append((mutant.end, 0, size, "))"))
    for at, _, _, text in sorted(inserted, reverse=True):
        pieces = pieces[:at] + text.encode() + pieces[at:]
    return pieces.decode()


class Reached(NamedTuple):
    """The tests that reach each mutant, from one run of all tests."""

    tests: dict[Mutant, list[str]]
    """The tests that reach a mutant. An empty name is the import of its module."""
    seconds: dict[str, float]
    failed: set[str]
    """Tests that fail without a mutant."""

    def of(self, mutant: Mutant, nearest: Sequence[str], limit: float) -> list[str]:
        """The tests to run for about half of the limit, quick ones in near files first."""
        names = [name for name in self.tests[mutant] if name in self.seconds]
        rank = {file: at for at, file in enumerate(nearest)}

        def order(name: str) -> float:
            return self.seconds[name] + rank.get(name.partition("::")[0], len(nearest)) / 10

        chosen, left = [], limit / 2
        for name in sorted(names, key=order):
            left -= self.seconds[name]
            if left > 0:
                chosen.append(name)
        return chosen + list(nearest) if "" in self.tests[mutant] else chosen


class _Failures:
    """A plugin of pytest that writes which tests failed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    pytest_collectreport = pytest_runtest_logreport


class Copy:
    """A copy of the project, where tests run with one mutant or none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failures, self._number = folder / ".failures", 0
        self._mutant: Mutant | None = None
        self._child, self._end = 0, 0.0
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
        for name in filter(None, files.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def reached(self, mutants: Sequence[Mutant], arguments: Sequence[str]) -> Reached:
        """Run tests to see which of them reach which mutants."""
        numbered: dict[Path, dict[int, Mutant]] = defaultdict(dict)
        for number, mutant in enumerate(mutants):
            numbered[mutant.path][number] = mutant
        for path, of_path in numbered.items():
            text = probed((ROOT / path).read_text(encoding="utf-8"), of_path)
            (self._folder / path).write_text(text, encoding="utf-8")
        shutil.copy2(ROOT / "scripts" / f"{_PROBE}.py", self._folder)
        self.start(["-n", str(_COPIES), "--dist=worksteal", "-p", _PROBE, *arguments], 0, 7200)
        self.wait()
        if not (self._folder / ".reports").exists():
            sys.exit((self._folder / ".output").read_text(errors="replace"))
        for path in numbered:
            self._restore(path)
        return self._reached(mutants)

    def _reached(self, mutants: Sequence[Mutant]) -> Reached:
        reached = Reached({mutant: [] for mutant in mutants}, defaultdict(float), set())
        for line in (self._folder / ".reached").read_text().splitlines():
            number, _, test = line.partition("\t")
            if test not in reached.tests[mutants[int(number)]]:
                reached.tests[mutants[int(number)]].append(test)
        for line in (self._folder / ".reports").read_text().splitlines():
            seconds, failed, test = line.split("\t", 2)
            reached.seconds[test] += float(seconds)
            if failed == "1":
                reached.failed.add(test)
        return reached

    def change(self, mutant: Mutant) -> None:
        """Put a mutant into the copy."""
        path, self._number = self._folder / mutant.path, self._number + 1
        self._mutant = mutant
        path.write_text(mutant.source(), encoding="utf-8")
        # Byte code is as old as its source to the second: each mutant has its time.
        when = os.stat(ROOT / mutant.path).st_mtime + self._number
        os.utime(path, (when, when))

    def _restore(self, path: Path) -> None:
        shutil.copy2(ROOT / path, self._folder / path)

    def start(self, arguments: Sequence[str], test_limit: float, limit: float) -> None:
        """Start pytest in a fork, for some seconds at most."""
        self._failures.unlink(missing_ok=True)
        self._end = time.monotonic() + limit
        self._child = os.fork()
        if self._child == 0:
            self._run_and_exit([f"--timeout={test_limit}", *arguments])

    def code(self) -> int | None:
        """The exit code of pytest, 0 if its time is over; nothing while it runs."""
        ended, status = os.waitpid(self._child, os.WNOHANG)
        if not ended and time.monotonic() < self._end:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGKILL)  # also what the tests left running
        if not ended:
            os.waitpid(self._child, 0)
        if self._mutant is not None:
            self._restore(self._mutant.path)
            self._mutant = None
        return os.waitstatus_to_exitcode(status) if ended else 0

    def wait(self) -> None:
        """Wait until pytest ends, or its time is over."""
        while self.code() is None:
            time.sleep(0.1)

    def failures(self) -> list[str]:
        """The tests that failed in the last run."""
        return self._failures.read_text().splitlines() if self._failures.exists() else []

    def _run_and_exit(self, arguments: Sequence[str]) -> None:
        import pytest

        os.setsid()
        os.chdir(self._folder)
        sys.path[:] = [str(self._folder), *(path for path in sys.path if path != str(ROOT))]
        os.environ["PYTHONPATH"] = str(self._folder)
        with open(self._folder / ".output", "wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider"]
        code = 70
        try:
            code = int(pytest.main([*options, *arguments], plugins=[_Failures(self._failures)]))
        finally:
            os._exit(code)


def _chosen(places: Iterable[str], sample: int, seed: int) -> list[Mutant]:
    mutants = []
    for place in places:
        name, _, line = place.partition(":")
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            here = mutants_of(file.relative_to(ROOT), file.read_text(encoding="utf-8"))
            mutants += [mutant for mutant in here if not line or mutant.line == int(line)]
    return random.Random(seed).sample(mutants, min(sample, len(mutants)))


def failures_of(
    copies: Sequence[Copy], tests: Mapping[Mutant, list[str]], broken: Set[str], limit: float
) -> Iterator[tuple[Mutant, str | None]]:
    """The first test of each mutant that fails, or what else went wrong; nothing if all pass.

    Broken tests are left out.
    """
    deselected = [f"--deselect={name}" for name in sorted(broken)]
    waiting, running = list(tests.items()), dict[Copy, Mutant]()
    while waiting or running:
        for copy in copies:
            if copy in running:
                code = copy.code()
                if code is not None:
                    failure = next(iter(copy.failures()), f"exit code {code}")
                    yield running.pop(copy), None if code in (0, _NO_TESTS) else failure
            elif waiting:
                mutant, names = waiting.pop(0)
                if left := [name for name in names if name not in broken]:
                    copy.change(mutant)
                    copy.start(["-x", *left, *deselected], limit / 2, limit)
                    running[copy] = mutant
                else:
                    yield mutant, None
        time.sleep(0.05)


def _caught(
    copies: Sequence[Copy], reached: Reached, tests: dict[Mutant, list[str]], limit: float
) -> dict[Mutant, str]:
    """The mutants that a test of theirs notices, and the test."""
    caught: dict[Mutant, str] = {}
    broken = set(reached.failed)
    again = list(tests)
    while again:
        for mutant, failure in failures_of(copies, {m: tests[m] for m in again}, broken, limit):
            if failure is not None:
                caught[mutant] = failure
            end = f"caught    {mutant}  by {failure}" if failure else f"survived  {mutant}"
            print(end, flush=True)
        names = {caught[mutant] for mutant in again if "::" in caught.get(mutant, "")}
        if names:
            copies[0].start(sorted(names), limit / 2, limit * len(names))
            copies[0].wait()
            broken |= set(copies[0].failures())
        again = [mutant for mutant, failure in caught.items() if failure in broken]
        for mutant in again:
            print(f"not by it {mutant}: {caught.pop(mutant)} fails without it too", flush=True)
    return caught


def main() -> int:
    """Run the mutants, print what becomes of each, and return 1 where one survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="*", default=[PACKAGE], metavar="FOLDER|FILE[:LINE]")
    parser.add_argument("--sample", type=int, default=100, help="how many, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="seconds for the tests of a mutant")
    parser.add_argument("--tests", nargs="+", default=["test"], help="only these, as for pytest")
    options = parser.parse_args()
    mutants = _chosen(options.places, options.sample, options.seed)
    sys.path.insert(0, str(ROOT / "test" / "support"))
    for name in ("pytest", "hypothesis", *importlib.import_module("fork_server").IMPORTED):
        importlib.import_module(name)
    del sys.modules["fork_server"], sys.path[0]
    gc.freeze()
    tests = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "test").rglob("test_*.py"))
        if path.parts[-2] != "project"
    }
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(_COPIES)]
        copies = [Copy(Path(folder)) for folder in folders]
        reached = copies[0].reached(mutants, options.tests)
        chosen = {
            mutant: reached.of(mutant, tests_of(mutant, tests, _NEAREST_FILES), options.limit)
            for mutant in mutants
        }
        caught = _caught(copies, reached, chosen, options.limit)
    print(f"caught {len(caught)} of {len(mutants)}: {len(caught) / max(len(mutants), 1):.1%}")
    return int(len(caught) < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
