"""``scripts/mutants.py``: the changes that it makes, and the tests that it takes for one."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "mutants.py"
MUTANTS = runpy.run_path(str(SCRIPT))

SOURCE = '''\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array as int1

class Ä:
    def f(self, a: "list[1]", b=2) -> int | None:
        """Add 1."""
        if a > 1 and not b:
            raise ValueError(f"{a + 1}" + "1")
        self.x["k"] = [a * 3,
            True][1:b]
        print(a)
        assert a, "a - 1"
        return max(a, 0)
'''

TABLE = """\
7 2 -> (3)
9 a > 1 -> (a >= 1)
9 a > 1 and not b -> (a > 1 or not b)
9 a > 1 and not b -> (not (a > 1 and (not b)))
9 1 -> (2)
9 not b -> (b)
11 "k" -> ('k_')
11 a * 3 -> (a // 3)
11 3 -> (4)
12 True -> (False)
12 1 -> (2)
12 b -> (b - 1)
13 print(a) -> pass
15 return max(a, 0) -> return None
15 max(a, 0) -> (min(a, 0))
15 0 -> (1)
"""


def test_a_source_has_these_mutants_and_none_in_types_docstrings_and_messages():
    mutants = MUTANTS["mutants_of"](Path("a.py"), SOURCE)
    source = SOURCE.encode()
    rows = [f"{m.line} {source[m.start : m.end].decode()} -> {m.text}\n" for m in mutants]
    assert "".join(rows) == TABLE
    assert {m.names for m in mutants} == {("Ä", "f")}


def test_a_mutant_has_as_many_lines_as_the_source():
    source = "self.x = (a,\n  b[\n  'k'])\n"
    dropped, *_ = MUTANTS["mutants_of"](Path("a.py"), source)
    assert (dropped.start, dropped.end, dropped.text) == (0, len(source) - 1, "pass\n\n")
    whole = MUTANTS["mutants_of"](Path("a.py"), "x = (a\n  < b)\ny = 1\n")[0]
    assert [m.text for m in MUTANTS["mutants_of"](Path("a.py"), "return False")] == ["(True)"]
    assert (whole.start, whole.end, whole.text) == (5, 12, "(a <= b\n)")


def test_the_tests_nearest_to_a_mutant_come_first():
    module = Path("pytorch_memlab/history/peak.py")
    mutant = MUTANTS["Mutant"](module, 1, 0, 1, "x", ("Peaks", "blocks_of"))
    texts = {
        Path("test/cli/test_page.py"): "from pytorch_memlab.history import timeline, peak",
        Path("test/cli/test_run.py"): "peak of the history",
        Path("test/history/test_names.py"): "assert blocks_of(peak)",
        Path("test/history/test_other.py"): "blocks_offset",
        Path("test/history/test_peak.py"): "import pytorch_memlab.history.peak",
    }
    names = MUTANTS["tests_of"](mutant, texts, 4)
    assert names == [
        "test/history/test_peak.py",
        "test/history/test_names.py",
        "test/cli/test_page.py",
        "test/history/test_other.py",
    ]


def test_a_mutant_of_the_package_itself_has_the_tests_that_name_its_function():
    mutant = MUTANTS["Mutant"](Path("pytorch_memlab/__init__.py"), 1, 0, 1, "0", ("attribute_of",))
    texts = {Path("test/test_a.py"): "x = 1", Path("test/test_b.py"): "attribute_of(1)"}
    assert MUTANTS["tests_of"](mutant, texts, 4) == ["test/test_b.py"]


def test_a_probed_source_does_the_same_and_tells_what_is_reached(monkeypatch):
    source = """\
def least(values, most=2 * 3):
    if not values or values[0] > most: return None
    if values[-1] == 0:
        values.sort()
    return min(values[0], most)
"""
    mutants = dict(enumerate(MUTANTS["mutants_of"](Path("a.py"), source)))
    text = MUTANTS["probed"](source, mutants)
    assert text.count("\n") == source.count("\n")
    probe, reached = ModuleType("mutant_probe"), []
    probe.reach = lambda number: reached.append(str(mutants[number].text))
    monkeypatch.setitem(sys.modules, "mutant_probe", probe)
    defined = {}
    exec(text, defined)
    assert reached == ["(2 // 3)", "(3)", "(4)"]
    reached.clear()
    assert defined["least"]([]) is None
    assert reached == [
        "(not (not values or values[0] > most))",
        "(not values and values[0] > most)",
        "(values)",
    ]
    reached.clear()
    assert defined["least"]([0, 2]) == 0
    assert reached[3:] == [
        "(values[0] >= most)",
        "(1)",
        "(values[-1] != 0)",
        "(2)",
        "(1)",
        "return None",
        "(max(values[0], most))",
        "(1)",
    ]


def test_quick_tests_in_near_files_come_first_and_half_of_the_limit_is_filled():
    mutant = MUTANTS["Mutant"](Path("pytorch_memlab/a.py"), 1, 0, 1, "(0)", ())
    names = ["far.py::quick", "far.py::slow", "near.py::slow", "near.py::quick", "gone.py::a"]
    seconds = {names[0]: 0.2, names[1]: 3.0, names[2]: 2.0, names[3]: 0.15}
    reached = MUTANTS["Reached"]({mutant: names}, seconds, set())
    near = ["near.py", "next.py"]
    assert reached.of(mutant, near, 11) == [names[3], names[0], names[2], names[1]]
    assert reached.of(mutant, near, 5) == [names[3], names[0], names[2]]
    imported = MUTANTS["Reached"]({mutant: ["", names[0]]}, seconds, set())
    assert imported.of(mutant, near, 11) == [names[0], *near]
    assert MUTANTS["Reached"]({mutant: []}, seconds, set()).of(mutant, near, 11) == []


def test_a_project_has_its_survivors_listed(tmp_path):
    files = {
        "pytorch_memlab/__init__.py": "",
        "pytorch_memlab/pytest_plugin.py": "",
        "test/support/fork_server.py": "IMPORTED = ()\n",
        "pytorch_memlab/sums.py": """\
LIMIT = 3


def total(values, start=False):
    if start:
        print(values)
    return sum(values[:LIMIT]) + 1


def unused(a):
    return a * 2
""",
        "test/test_sums.py": """\
import subprocess
import sys

import pytest

import pytorch_memlab.sums as sums


def test_total():
    assert sums.total([1, 2, 3, 4]) == 7


def test_start():
    code = "from pytorch_memlab.sums import total; total([5], start=True)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "[5]\\n"


def test_broken():
    assert sums.total([1]) == 3
""",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("scripts/mutants.py", "scripts/mutant_probe.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "scripts/mutants.py", "pytorch_memlab/sums.py"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    at, by = "pytorch_memlab/sums.py", "by test/test_sums.py::test"
    assert sorted(done.stdout.splitlines()) == [
        f"caught    {at}:1  3  ->  (4)  {by}_total",
        f"caught    {at}:5  start  ->  (not (start))  {by}_start",
        f"caught    {at}:6  print(values)  ->  pass  {by}_start",
        f"caught    {at}:7  1  ->  (2)  {by}_total",
        f"caught    {at}:7  LIMIT  ->  (LIMIT - 1)  {by}_total",
        f"caught    {at}:7  return sum(values[:LIMIT]) + 1  ->  return None  {by}_total",
        f"caught    {at}:7  sum(values[:LIMIT]) + 1  ->  (sum(values[:LIMIT]) - 1)  {by}_total",
        "caught 7 of 11: 63.6%",
        f"survived  {at}:11  2  ->  (3)",
        f"survived  {at}:11  a * 2  ->  (a // 2)",
        f"survived  {at}:11  return a * 2  ->  return None",
        f"survived  {at}:4  False  ->  (True)",
    ]
    assert done.returncode == 1
