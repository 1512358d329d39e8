"""``diff`` of two files of ``pytest --memlab-save``: the whole text, and its exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.profiles.changed_tests import HoldingLine, MeasuredTest
from pytorch_memlab.saved.tests_file import text_of

MIB = 1 << 20


def measured(*holders: tuple[str, int, str, int], gpu: str = "NVIDIA A100") -> MeasuredTest:
    lines = tuple(
        HoldingLine("src/net.py", line, function, code, size * MIB)
        for function, line, code, size in holders
    )
    peak = sum(one.size for one in lines)
    return MeasuredTest("cuda:0", gpu, True, peak, peak, 0, False, None, lines)


MAIN = {
    "t.py::test_same": measured(("f", 3, "x = a()", 4)),
    "t.py::test_grows": measured(("f", 3, "x = a()", 4), ("f", 4, "y = b(x)", 2)),
    "t.py::test_shrinks": measured(("g", 9, "z = c()", 9)),
    "t.py::test_gone": measured(("g", 9, "z = c()", 5)),
    "t.py::test_moves": measured(("g", 9, "z = c()", 5), gpu="Tesla T4"),
}
BRANCH = {
    "t.py::test_same": measured(("f", 13, "x = a()", 4)),
    "t.py::test_grows": measured(("f", 13, "x = a()", 4), ("f", 14, "y = b(x, 1)", 5)),
    "t.py::test_shrinks": measured(("renamed", 19, "z = c()", 8)),
    "t.py::test_new": measured(("g", 9, "z = c()", 1)),
    "t.py::test_moves": measured(("g", 9, "z = c()", 6)),
}

TEXT = """\
peak of the memory in use in each test, from main.json to branch.json

 before    after     change          test
6.0 MiB  9.0 MiB   +3.0 MiB  +50.0%  t.py::test_grows
9.0 MiB  8.0 MiB   -1.0 MiB  -11.1%  t.py::test_shrinks
5.0 MiB                gone          t.py::test_gone
5.0 MiB  6.0 MiB  other GPU          t.py::test_moves
         1.0 MiB        new          t.py::test_new
1 test as before

lines that hold more or less in t.py::test_grows:
    +3.0 MiB  net.py:14  f
              y = b(x, 1)

lines that hold more or less in t.py::test_shrinks:
    -1.0 MiB  net.py:19  renamed
              z = c()
"""


FIRST = """\
peak of the memory in use in each test, from main.json to branch.json

 before    after    change          test
6.0 MiB  9.0 MiB  +3.0 MiB  +50.0%  t.py::test_grows
4 more: a larger --rows shows them
1 test as before

lines that hold more or less in t.py::test_grows:
    +3.0 MiB  net.py:14  f
              y = b(x, 1)
"""


def test_tests_of_two_files(write, capsys):
    write("", "x")
    Path("main.json").write_text(text_of(MAIN))
    Path("branch.json").write_text(text_of(BRANCH))

    assert main(["diff", "main.json", "branch.json"]) == 0
    assert capsys.readouterr() == (TEXT, "")
    assert main(["diff", "--rows", "1", "main.json", "branch.json"]) == 0
    assert capsys.readouterr() == (FIRST, "")
    assert main(["diff", "--fail-over", "2MiB", "main.json", "branch.json"]) == 1
    assert capsys.readouterr().err == (
        "pytorch-memlab diff: t.py::test_grows: the peak grew by 3.0 MiB (+50.0%), more than 2MiB\n"
    )
    assert main(["diff", "--fail-over", "50%", "main.json", "branch.json"]) == 0


def test_a_profile_and_tests(write, capsys):
    Path("main.json").write_text(text_of(MAIN))
    write("{}", "profile.json")

    assert main(["diff", "main.json", "profile.json"]) == 2
    assert capsys.readouterr().err.endswith(
        "error: main.json has the memory of tests and profile.json has not: compare two of one"
        " kind\n"
    )
    Path("cut.json").write_text(text_of(MAIN)[:200])
    assert main(["diff", "main.json", "cut.json"]) == 2
    assert capsys.readouterr().err.endswith(
        "error: cut.json is cut off or damaged: its JSON ends or breaks at character 200;"
        " --memlab-save writes it again\n"
    )


def test_a_page_has_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("main.json").write_text(text_of(MAIN))
    Path("branch.json").write_text(text_of(BRANCH))
    assert main(["diff", "-o", "d.html", "main.json", "branch.json"]) == 0
    page = Path("d.html").read_text()
    cells = re.findall(r'<tr><th scope="row"><code>(.*?)</code></th>(.*?)</tr>', page)
    rows = {name: re.findall(r"<td[^>]*>(.*?)</td>", rest) for name, rest in cells}
    assert rows == {
        "t.py::test_grows": ["6.0 MiB", "9.0 MiB", "+3.0 MiB (+50.0%)"],
        "t.py::test_shrinks": ["9.0 MiB", "8.0 MiB", "-1.0 MiB (-11.1%)"],
        "t.py::test_same": ["4.0 MiB", "4.0 MiB", "same"],
        "t.py::test_gone": ["5.0 MiB", "", "gone"],
        "t.py::test_moves": ["5.0 MiB", "6.0 MiB", "other GPU"],
        "t.py::test_new": ["", "1.0 MiB", "new"],
    }
