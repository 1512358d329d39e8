"""Source lines beside values are those of the code that ran, although its file has changed."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
import types

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.line_profiler.function_source import function_source
from pytorch_memlab.line_profiler.reloaded_functions import is_made_otherwise_now
from pytorch_memlab.render.notes import texts

FILE = """\
import torch


def other():
    return 1


class Net:
    @torch.no_grad()
    def f(self, n):  # a method
        return torch.ones(n, device="cuda")


def work(n):
    # makes two
    a = torch.ones(n, device="cuda")
    return a + 1
"""
WORK = tuple(FILE.splitlines()[13:])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of that file, and its path."""
    path = tmp_path / "edited_module.py"
    path.write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("edited_module"), path
    del sys.modules["edited_module"]


def rewrite(path, text: str) -> None:
    path.write_text(text)
    linecache.checkcache(str(path))


def by_itself(module, path, name: str):
    """An edited function as IPython's autoreload makes it: its code counts from line 1."""
    nodes = ast.walk(ast.parse(path.read_text()))
    [node] = [one for one in nodes if getattr(one, "name", None) == name]
    namespace = dict(vars(module))
    exec(compile(ast.unparse(node), str(path), "exec"), namespace)
    return namespace[name].__code__


def test_a_function_that_has_moved_keeps_its_lines(module):
    work, path = module[0].work, module[1]
    rewrite(path, "import math\n\n" + FILE)
    assert function_source(work.__code__, "work") == (14, WORK, False)


def test_a_function_compiled_by_itself_has_the_lines_that_python_compiled(module):
    loaded, path = module
    loaded.work.__code__ = by_itself(loaded, path, "work")
    source = function_source(loaded.work.__code__, "work")
    assert source == (
        1,
        ("def work(n):", "    a = torch.ones(n, device='cuda')", "    return a + 1"),
        False,
    )


def test_methods_are_found_in_their_class(module):
    method = module[0].Net.f.__wrapped__
    rewrite(module[1], "\n\n" + FILE.replace("def other", "def f(self): pass\ndef other"))
    _, lines, is_stale = function_source(method.__code__, "Net.f")
    assert (lines, is_stale) == (tuple(FILE.splitlines()[8:11]), False)


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_of_a_body_that_has_changed_no_wrong_lines_are_shown(module):
    work, path = module[0].work, module[1]
    rewrite(path, "\n" + FILE.replace("    return a + 1", "    a += 1\n    return a"))
    with simulate("24GiB"), LineProfiler(work) as profiler:
        work(256)
    assert str(profiler.display(columns="hits")) == (
        "## work\n\nhits line  code\n   1   14\n   1   16\n   1   17\n\n"
        "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)\n"
        "work: the file has changed since it was loaded, so there is no source to show; reload it"
    )


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_a_profiler_made_before_an_edit_says_so(module):
    loaded, path = module
    with simulate("24GiB"), LineProfiler(loaded.work) as profiler:
        loaded.work(256)
        assert len(texts(profiler.display().report.notes)) == 1
        loaded.work.__code__ = by_itself(loaded, path, "work")
        assert texts(profiler.display().report.notes)[-1] == (
            "work was edited since: these lines are of the version before; make another "
            "LineProfiler"
        )
        profiler.clear()
        profiler.add_function(loaded.work)
        assert "edited" not in str(profiler.display())


def test_lambdas_and_decorated_functions_have_their_lines():
    double = lambda n: n * 2  # noqa: E731

    @torch.no_grad()
    def decorated():
        return double

    assert function_source(double.__code__, "<lambda>").lines == (
        "    double = lambda n: n * 2  # noqa: E731",
    )
    assert function_source(decorated.__wrapped__.__code__, "decorated").lines[0].endswith("grad()")


def test_a_function_that_a_reload_has_replaced_was_edited(monkeypatch):
    module = types.ModuleType("reloaded_module")
    monkeypatch.setitem(sys.modules, "reloaded_module", module)
    exec("def work():\n    return 1\n", vars(module))
    profiler = LineProfiler(module.work)
    with profiler:
        module.work()
    assert "edited since" not in repr(profiler.display())
    exec("def work():\n    return 2\n", vars(module))  # the former function is gone
    assert "work was edited since: these lines are of the version before" in repr(
        profiler.display()
    )


MAKERS = """\
def make(factor):
    def inner(n):
        return n * factor
    return inner


class Made:
    def make(self):
        return lambda n: n + 1
"""


@pytest.mark.parametrize(
    ("edit", "edited"),
    [
        (("n * factor", "n + factor"), ["make.<locals>.inner"]),
        (("n + 1", "n - 1"), ["Made.make.<locals>.<lambda>"]),
        (("def inner(n):", "def other(n):"), ["make.<locals>.inner"]),
        (("def inner(n):", "# the same\n    def inner(n):"), []),
        (("    return inner", "    print(end='')\n    return inner"), []),  # the outer one alone
    ],
)
def test_a_function_that_another_one_made_was_edited_where_that_makes_it_otherwise_now(
    edit, edited, monkeypatch
):
    module = types.ModuleType("module_of_makers")
    monkeypatch.setitem(sys.modules, "module_of_makers", module)
    exec(MAKERS, vars(module))
    made = [module.make(2), module.Made().make()]
    profiler = LineProfiler(*made)
    with profiler:
        for function in made:
            function(1)
    before = str(profiler.display())
    exec(MAKERS.replace(*edit), vars(module))
    assert str(profiler.display()) == before  # those that ran are still there
    del made, function
    notes = texts(profiler.display().report.notes)
    said = [note.split(" was edited")[0] for note in notes if "edited since" in note]
    assert said == edited


@pytest.mark.parametrize("name", ["inner", "gone.<locals>.inner", "number.<locals>.inner"])
def test_a_function_whose_maker_is_not_there_is_not_made_otherwise(name):
    module = types.ModuleType("changed")
    module.number = 1
    assert not is_made_otherwise_now((lambda: 0).__code__, name, module)
