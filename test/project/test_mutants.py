"""``scripts/mutants.py``: the changes that it makes, and the tests that it takes for one."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutants.py"
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
