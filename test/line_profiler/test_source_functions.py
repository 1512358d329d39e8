"""Functions of source that has not run, under the names that people type."""

from __future__ import annotations

import pytest

from pytorch_memlab.line_profiler.source_functions import SourceFunctions, nearest

SOURCE = """\
class Net:
    def forward(self):
        def inner(): return 1
        return inner()
    def loss(self): return 2

def make():
    class Block:
        def forward(self): return 3
    return Block

def train(): return 4
if True:
    def train(): return 5
"""


@pytest.fixture
def functions():
    code = compile(SOURCE, "script.py", "exec")
    return SourceFunctions(code, SOURCE, "<module>", ("__main__", "script"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Net.forward", ["Net.forward"]),
        ("Net", ["Net.forward", "Net.loss"]),
        ("Net.forward.inner", ["Net.forward.<locals>.inner"]),
        ("make", ["make"]),  # the function itself, not what is in it
        ("make.Block", ["make.<locals>.Block.forward"]),
        ("train", ["train", "train"]),
        ("script:Net.loss", ["Net.loss"]),
        ("__main__.Net.loss", ["Net.loss"]),
        ("other:Net.loss", []),
        ("forward", []),
        ("Net.forward.<locals>.inner", []),
    ],
)
def test_names(name, found, functions):
    assert [one.qual_name for one in functions.named(name)] == found


def test_methods_of_any_class(functions):
    found = functions.methods_named("forward")

    assert [one.qual_name for one in found] == ["Net.forward", "make.<locals>.Block.forward"]


class _Profiler:
    def __init__(self) -> None:
        self.added = []

    def add_code(self, code, qual_name, source=None, folded=()):
        self.added.append((qual_name, source, folded))


def test_a_function_is_added_with_its_lines(functions):
    profiler = _Profiler()
    [loss] = functions.named("Net.loss")

    functions.add_to(profiler, loss)

    assert profiler.added == [("Net.loss", ["    def loss(self): return 2"], ())]


def test_the_code_outside_functions_leaves_their_bodies_out(functions):
    profiler = _Profiler()

    functions.add_to(profiler, functions.top_level)

    [(name, source, folded)] = profiler.added
    assert (name, source) == ("<module>", SOURCE.splitlines())
    # What stands on one line with its def is run by the line of the def.
    assert sorted(folded) == [(3, 4), (8, 10)]


def test_without_source_there_are_no_lines():
    profiler = _Profiler()
    functions = SourceFunctions(compile(SOURCE, "script.py", "exec"), None, "<module>")

    for one in (*functions.named("Net.loss"), functions.top_level):
        functions.add_to(profiler, one)

    assert profiler.added == [("Net.loss", None, ()), ("<module>", None, ())]


def test_near_names_come_before_the_first_ones():
    known = ["train", "evaluate", "Net.forward", "Net.loss", "main"]

    assert nearest("trian", known) == ["train"]
    assert nearest("xyz", known) == known[:4]


def test_only_line_ends_begin_a_line_as_python_counts_them():
    text = (
        'import torch\n\x0c\nNAME = "a\x1cb\u2028c"  # \x0b\n'
        "def work():\r\n    return NAME\n\x0c\nz = 1\n"
    )
    functions = SourceFunctions(compile(text, "script.py", "exec"), text, "<module>")
    profiler = _Profiler()

    for definition in (*functions.named("work"), functions.top_level):
        functions.add_to(profiler, definition)

    work = ["def work():", "    return NAME"]
    name = 'NAME = "a\x1cb\u2028c"  # \x0b'
    assert profiler.added == [
        ("work", work, ()),
        ("<module>", ["import torch", "\x0c", name, *work, "\x0c", "z = 1"], [(5, 5)]),
    ]
