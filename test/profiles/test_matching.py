"""Functions and lines of two profiles are matched through edits of the file."""

from __future__ import annotations

import time

import pytest

from pytorch_memlab.profiles.matching import match_functions, match_lines
from pytorch_memlab.records import FunctionInfo


def function(text: str, name: str = "f", first: int = 1, file: str = "/a/train.py") -> FunctionInfo:
    return FunctionInfo(name, file, first, tuple(text.splitlines()))


BEFORE = function(
    """\
def f(x):
    a = torch.relu(x)
    b = torch.exp(a)
    c = a @ b

    d = c.sum()
    return d
""",
    first=10,
)


@pytest.mark.parametrize(
    ("after", "matches"),
    [
        pytest.param(
            """\
def f(x):
    a = torch.relu(x)
    b = torch.exp(a)
    c = a @ b

    d = c.sum()
    return d
""",
            {10: 20, 11: 21, 12: 22, 13: 23, 14: 24, 15: 25, 16: 26},
            id="moved as a whole",
        ),
        pytest.param(
            """\
def f(x):
    print(x)
    a = torch.relu(x)
    b = torch.exp(a)
    c = a @ b
    d = c.sum()
    del c
    return d
""",
            {10: 20, 11: 22, 12: 23, 13: 24, 15: 25, 16: 27},
            id="inserted and a blank line deleted",
        ),
        pytest.param(
            """\
def f(x):
    a = torch.relu(x)
    return d
""",
            {10: 20, 11: 21, 16: 22},
            id="deleted",
        ),
        pytest.param(
            """\
def f(x, y):
    a = torch.relu(x + y)
    b = torch.exp(a)
    loss.backward()

    d = c.sum()
    return d
""",
            {10: 20, 11: 21, 12: 22, 14: 24, 15: 25, 16: 26},
            id="changed, and replaced by something else",
        ),
        pytest.param(
            """\
def f(x):
    b = torch.exp(a)
    c = a @ b

    d = c.sum()
    a = torch.relu(x)
    return d
""",
            {10: 20, 11: 25, 12: 21, 13: 22, 14: 23, 15: 24, 16: 26},
            id="moved past others",
        ),
        pytest.param(
            """\
    @torch.no_grad()
    def f(x):
        a = torch.relu(x)
        b = torch.exp(a)
        c = a @ b

        d = c.sum()
        return d
""",
            {10: 21, 11: 22, 12: 23, 13: 24, 14: 25, 15: 26, 16: 27},
            id="indented and decorated",
        ),
    ],
)
def test_lines_match_through_edits(after: str, matches: dict[int, int]) -> None:
    found = match_lines(BEFORE, function(after, first=20))
    blank = {line: number for line, number in found.items() if line == 14}
    assert found | blank == {**found, **{k: v for k, v in matches.items() if k in found}}
    assert {k: v for k, v in found.items() if k != 14} == {
        k: v for k, v in matches.items() if k != 14
    }


@pytest.mark.parametrize("is_up", [False, True])
@pytest.mark.parametrize("moved", [20, 21])
def test_a_changed_line_may_have_moved_by_twenty_lines(moved: int, is_up: bool) -> None:
    before = ["loss = first.mean()", *"ABCDEFGHIJKLMNOPQRSTU"[:moved]]
    after = [*"abcdefghijklmnopqrstu"[:moved], "loss = first.sum()"]
    if is_up:
        before, after = after, before
    first, last = (moved + 1, 1) if is_up else (1, moved + 1)
    matches = match_lines(function("\n".join(before)), function("\n".join(after)))
    assert matches == ({first: last} if moved == 20 else {})


def test_lines_without_source_match_by_their_place() -> None:
    bare = FunctionInfo("f", "<stdin>", 5, None)
    assert match_lines(bare, FunctionInfo("f", "<stdin>", 8, None))[7] == 10
    assert match_lines(BEFORE, bare)[12] == 7


def test_folded_lines_are_no_part_of_the_function() -> None:
    before = FunctionInfo("<module>", "a.py", 1, ("def f():", "    x", "f()"), ((2, 2),))
    after = FunctionInfo("<module>", "a.py", 1, ("def f():", "    y", "    x", "f()"), ((2, 3),))
    assert match_lines(before, after) == {1: 1, 3: 4}


def names(before: list[FunctionInfo], after: list[FunctionInfo]) -> list[tuple[str, str]]:
    def name(functions: list[FunctionInfo], place: int | None) -> str:
        if place is None:
            return "-"
        return f"{functions[place].filename}:{functions[place].qual_name}"

    return [(name(before, one), name(after, two)) for one, two in match_functions(before, after)]


def test_functions_match_by_the_end_of_their_path_and_their_name() -> None:
    before = [
        function("", "Net.forward", file="/home/a/x/net.py"),
        function("", "Net.forward", file="/home/a/y/net.py"),
        function("", "gone", file="/home/a/y/net.py"),
    ]
    after = [
        function("", "new", file="/srv/b/y/net.py"),
        function("", "Net.forward", file="/srv/b/y/net.py"),
        function("", "Net.forward", file="/srv/b/x/net.py"),
    ]
    assert names(before, after) == [
        ("-", "/srv/b/y/net.py:new"),
        ("/home/a/y/net.py:Net.forward", "/srv/b/y/net.py:Net.forward"),
        ("/home/a/x/net.py:Net.forward", "/srv/b/x/net.py:Net.forward"),
        ("/home/a/y/net.py:gone", "-"),
    ]


def test_functions_of_one_name_in_one_file_match_in_their_order() -> None:
    before = [function("def f(): 1"), function("def f(): 2")]
    after = [function("def f(): 3"), function("def f(): 4"), function("def f(): 5")]
    assert match_functions(before, after) == [(0, 0), (1, 1), (None, 2)]


def test_a_renamed_function_matches_by_its_lines() -> None:
    body = "    a = torch.relu(x)\n    b = torch.exp(a)\n    return a @ b\n"
    before = [function(f"def step(x):\n{body}", "step"), function("def g():\n    pass", "g")]
    after = [
        function("def other():\n    return 1", "other"),
        function(f"def train_step(x):\n    print(x)\n{body}", "train_step"),
        function("def g():\n    pass", "g"),
    ]
    assert match_functions(before, after) == [(None, 0), (0, 1), (1, 2)]


def test_a_program_of_ten_thousand_lines_is_matched_fast() -> None:
    lines = [f"    x{n % 700} = torch.zeros({n % 90})" if n % 5 else "" for n in range(10_000)]
    edited = [
        line.replace("zeros", "ones") if n % 100 == 3 else line for n, line in enumerate(lines)
    ]
    del edited[5000:5010]
    began = time.process_time()
    found = match_lines(function("\n".join(lines)), function("\n".join(edited)))
    assert time.process_time() - began < 20  # 1 s when alone
    assert found[10_000] == 9_990
    assert found[4_999] == 4_999
    pieces = [(f"f{n}", "\n".join(lines[n * 20 : n * 20 + 20])) for n in range(500)]
    before = [function(text, name) for name, text in pieces]
    after = [function(text, f"g{name}") for name, text in pieces]
    began = time.process_time()
    match_functions(before, after)
    assert time.process_time() - began < 60
