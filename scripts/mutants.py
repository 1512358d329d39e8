"""Change the package in one place at a time, and see whether its tests notice.

``python scripts/mutants.py --sample 500 --seed 1 pytorch_memlab/history pytorch_memlab/cli`` takes
500 mutants at random; ``pytorch_memlab/history/peak.py:120`` names those of a line. Each is put
into a copy of the project, so that processes that a test starts have it too, and the tests nearest
to it run there until the first fails. A test that also fails without the mutant catches nothing.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "pytorch_memlab"

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
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
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
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
        for name in filter(None, files.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def failed(self, mutant: Mutant, arguments: Sequence[str], limit: float) -> str | None:
        """The first test that fails with the mutant, or what else went wrong."""
        path, self._number = self._folder / mutant.path, self._number + 1
        path.write_text(mutant.source(), encoding="utf-8")
        # Byte code is as old as its source to the second: each mutant has its time.
        when = os.stat(ROOT / mutant.path).st_mtime + self._number
        os.utime(path, (when, when))
        try:
            code = self.run(["-x", *arguments], limit)
        finally:
            shutil.copy2(ROOT / mutant.path, path)
        if code in (None, 0, 5):
            return None
        return next(iter(self.failures()), f"exit code {code}")

    def failures(self) -> list[str]:
        """The tests that failed in the last run."""
        return self._failures.read_text().splitlines() if self._failures.exists() else []

    def run(self, arguments: Sequence[str], limit: float) -> int | None:
        """The exit code of pytest, in a fork; None where the time is over."""
        self._failures.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._run_and_exit(arguments, limit)
        end = time.monotonic() + limit
        ended, status = 0, 0
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what the tests left running
        if not ended:
            os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) if ended else None

    def _run_and_exit(self, arguments: Sequence[str], limit: float) -> None:
        import pytest

        os.setsid()
        os.chdir(self._folder)
        sys.path[:] = [str(self._folder), *(path for path in sys.path if path != str(ROOT))]
        os.environ["PYTHONPATH"] = str(self._folder)
        with open(self._folder / ".output", "wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--timeout={limit / 2}"]
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


def _caught(copy: Copy, chosen: dict[Mutant, list[str]], limit: float) -> dict[Mutant, str]:
    """The mutants of those chosen that a test of theirs notices, and the test."""
    caught: dict[Mutant, str] = {}
    broken: set[str] = set()
    again = list(chosen)
    while again:
        for mutant in again:
            files = [file for file in chosen[mutant] if file not in broken]
            failure = copy.failed(mutant, [*files, *(f"--deselect={b}" for b in broken)], limit)
            if failure is not None:
                caught[mutant] = failure
            end = f"caught    {mutant}  by {failure}" if failure else f"survived  {mutant}"
            print(end, flush=True)
        names = {caught[mutant] for mutant in again if "::" in caught.get(mutant, "")}
        copy.run(sorted(names), limit * len(names))
        broken |= set(copy.failures())
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
    parser.add_argument("--files", type=int, default=20, help="of tests that a mutant has at most")
    parser.add_argument("--tests", nargs="*", help="run these instead of those that are nearest")
    options = parser.parse_args()
    mutants = _chosen(options.places, options.sample, options.seed)
    os.nice(10)
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
    chosen = {m: options.tests or tests_of(m, tests, options.files) for m in mutants}
    with tempfile.TemporaryDirectory() as folder:
        caught = _caught(Copy(Path(folder)), chosen, options.limit)
    print(f"caught {len(caught)} of {len(mutants)}: {len(caught) / max(len(mutants), 1):.1%}")
    return int(len(caught) < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
