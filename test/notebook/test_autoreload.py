"""Functions of a module that IPython's autoreload took over have the line numbers of the file."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys

import IPython
import pytest

from pytorch_memlab import LineProfiler, simulate

STEP = '''\
import torch


def step(n):
    # comments and line breaks are not in what autoreload compiles
    a = torch.zeros(
        n,
        device="cuda",
    )
    return a


def helper(n):
    # called by step
    return torch.ones(n, device="cuda")


def unedited(n):
    # called by step, and not edited
    return torch.ones(n, device="cuda")


class Net:
    """With a private name."""

    def forward(self, n):
        # a method
        made = [torch.ones(size, device="cuda") for size in (n, n)]
        self.__n = n
        return made
'''
EDITED = (
    STEP.replace("    return a\n", "    b = helper(n), unedited(n)\n    return a, b\n")
    .replace(
        "    # called by step\n    return torch.ones(n",
        "    # called by step\n    return torch.ones(2 * n",
    )
    .replace("in (n, n)", "in (n, 4 * n)")
    .replace('private name."""', 'private name."""\n\n    # the lines below move')
)
ADDED = """

class Added:
    def forward(self, n):
        # a method of a class that was not there
        return torch.ones(n, device="cuda")
"""


class Module:
    """A module of the user, which is edited while a shell runs."""

    def __init__(self, path, run):
        self._path, self._run, self._edits = path, run, itertools.count(1)

    def write(self, text: str) -> None:
        self._path.write_text(text)
        seconds = 1_700_000_000 + 10 * next(self._edits)  # autoreload looks at the time
        os.utime(self._path, (seconds, seconds))

    def load(self, text: str) -> None:
        self.write(text)
        self._run("None").raise_error()

    def edit(self, text: str):
        """The module, edited and reloaded as the next cell begins."""
        former = sys.modules["autoreloaded"].step
        self.load(text)
        if IPython.version_info >= (9,):  # it edited the function, and did not load the module
            assert sys.modules["autoreloaded"].step is former
            assert former.__code__.co_firstlineno == 1
        return sys.modules["autoreloaded"]


@pytest.fixture
def module(tmp_path, monkeypatch, run, shell, request):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = Module(tmp_path / "autoreloaded.py", run)
    module.write(getattr(request, "param", STEP))
    run("%load_ext autoreload").raise_error()
    run("%autoreload 2").raise_error()
    run("import autoreloaded").raise_error()
    run("None").raise_error()  # IPython 9 reads the file as the cell after the import begins
    yield module
    run("%autoreload 0").raise_error()
    del sys.modules["autoreloaded"]


TABLES = """\
## step

hits    kept line  code
   1   0.00B    4  def step(n):
                5      # comments and line breaks are not in what autoreload compiles
   2 512.00B    6      a = torch.zeros(
   1   0.00B    7          n,
   1   0.00B    8          device="cuda",
                9      )
   1   3.00K   10      b = helper(n), unedited(n)
   1   0.00B   11      return a, b


## Net.forward

hits  kept line  code
   1 0.00B   29      def forward(self, n):
             30          # a method
   1 5.00K   31          made = [torch.ones(size, device="cuda") for size in (n, 4 * n)]
   1 0.00B   32          self.__n = n
   1 0.00B   33          return made

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"""
ADDED_TABLE = """\
## Added.forward

hits  kept line  code
   1 0.00B   37      def forward(self, n):
             38          # a method of a class that was not there
   1 1.00K   39          return torch.ones(n, device="cuda")

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"""


def profiled(module) -> LineProfiler:
    """A profile of two functions that are edited, and of a third that they call."""
    net = module.Net()
    with simulate("24GiB"), LineProfiler(module.step, net.forward) as profiler:
        kept = module.step(256), net.forward(256)
    del kept
    return profiler


def table(profiler: LineProfiler) -> str:
    return str(profiler.display(columns=("hits", "kept")))


def outputs(profiler: LineProfiler, former: LineProfiler, path) -> dict[str, object]:
    """A notebook's table, the lines of the peak, a saved file and a comparison."""
    profiler.save(path, force=True)
    data = json.loads(path.read_text())
    peaks = profiler.peak_holders().to_dataframe()
    return {
        "html": profiler.display(columns=("hits", "kept", "peak"))._repr_html_(),
        "holders": peaks.to_csv(),
        "saved": [data[name] for name in ("functions", "calls", "peaks")],
        "difference": str(former.diff(profiler)).splitlines()[2:],  # without the times of runs
    }


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_tables_have_the_lines_of_the_file(module):
    assert table(profiled(module.edit(EDITED))) == TABLES


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_lines_that_hold_the_peak_are_those_of_the_file(module):
    holders = profiled(module.edit(EDITED)).peak_holders()
    lines = [(os.path.basename(one.file), one.line, one.size) for one in holders.by_line()]
    assert lines == [
        ("autoreloaded.py", 31, 5120),
        ("autoreloaded.py", 16, 2048),  # helper, which is not profiled itself
        ("autoreloaded.py", 6, 1024),
        ("autoreloaded.py", 21, 1024),  # unedited, which was on line 20 before
    ]


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_every_output_is_that_of_the_module_after_a_whole_reload(module, tmp_path):
    path = tmp_path / "run.memlab.json"
    former = profiled(sys.modules["autoreloaded"])
    loads = (lambda: module.edit(EDITED), lambda: importlib.reload(sys.modules["autoreloaded"]))
    [by_autoreload, by_hand] = [outputs(profiled(one()), former, path) for one in loads]
    assert by_autoreload == by_hand


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_methods_of_a_new_class_have_a_file(module):
    added = module.edit(EDITED + ADDED).Added()
    with simulate("24GiB"), LineProfiler(added.forward) as profiler:
        added.forward(256)
    assert table(profiler) == ADDED_TABLE


DECORATED = """

def same(function):
    return function


@same
@same
def decorated(n):
    # moved, and not edited
    return torch.ones(n, device="cuda")
"""
DECORATED_TABLE = """\
## decorated

hits  kept line  code
   1 0.00B   40  @same
             41  @same
             42  def decorated(n):
             43      # moved, and not edited
   1 1.00K   44      return torch.ones(n, device="cuda")

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"""


@pytest.mark.knows_simulation("that the GPU is simulated is said")
@pytest.mark.parametrize("module", [STEP + DECORATED], indirect=True)
def test_a_decorated_function_that_an_edit_moved_has_the_lines_of_the_file(module):
    decorated = module.edit(EDITED + DECORATED).decorated
    with simulate("24GiB"), LineProfiler(decorated) as profiler:
        kept = decorated(256)
    del kept
    assert table(profiler) == DECORATED_TABLE


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_a_profiler_of_the_version_before_says_so(module):
    profiler = profiled(sys.modules["autoreloaded"])
    before = table(profiler)
    edited = module.edit(EDITED)
    profiled(edited)
    assert table(profiler) == (
        f"{before}\nstep, Net.forward was edited since: these lines are of the version before; "
        "make another LineProfiler"
    )
    again = profiled(edited)
    profiled(edited)
    assert table(again) == TABLES  # no profiler takes the lines of another one for older ones


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(EDITED.replace("    b =", "    c = 1\n    b ="), id="edited_again"),
        pytest.param(EDITED + EDITED, id="two_alike"),
    ],
)
def test_lines_that_no_single_definition_explains_are_those_of_the_code(module, text):
    edited = module.edit(EDITED)
    code = edited.step.__code__
    module.write(text)  # no cell runs, and so nothing is loaded again
    LineProfiler(edited.step)
    assert edited.step.__code__ is code


CLOSURES = (
    STEP
    + """

def scaled(factor):
    # makes closures

    def inner(n):
        # a closure
        return torch.ones(n * factor, device="cuda")

    return inner


class Scaled:
    def closure(self):
        # makes one, too
        return lambda n: torch.ones(n, device="cuda")
"""
)
CLOSURE_TABLES = """\
## scaled.<locals>.inner

hits  kept line  code
   1 0.00B   39      def inner(n):
             40          # a closure
   1 0.00B   41          n += 1
   1 2.50K   42          return torch.ones(n * factor, device="cuda")


## Scaled.closure.<locals>.<lambda>

hits  kept line  code
   1 2.00K   50          return lambda n: torch.ones(2 * n, device="cuda")

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)"""


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_functions_that_others_make_have_the_lines_of_the_file(module):
    module.load(CLOSURES)
    edited = module.edit(
        EDITED
        + CLOSURES.removeprefix(STEP)
        .replace("        return torch.ones(n *", "        n += 1\n        return torch.ones(n *")
        .replace("lambda n: torch.ones(n", "lambda n: torch.ones(2 * n")
    )
    inner, made = edited.scaled(2), edited.Scaled().closure()
    with simulate("24GiB"), LineProfiler(inner, made) as profiler:
        kept = inner(256), made(256)
    del kept
    assert table(profiler) == CLOSURE_TABLES
