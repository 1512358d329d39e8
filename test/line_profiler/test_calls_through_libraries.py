"""The line of the user that called a function, where functions of libraries are in between."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytorch_memlab import LineProfiler
from pytorch_memlab.line_profiler import line_store

LIBRARY = """\
def inner():
    return 1

def outer():
    inner()
    return [inner() for _ in range(2)]

def deep(depth):
    return inner() if depth == 0 else deep(depth - 1)

def steps():
    inner()
    yield 1
    inner()
    yield 2
"""
USER = """\
import library

def work():
    library.outer()
    library.outer()
    going = library.steps()
    next(going)
    next(going)
    library.deep(3)

work()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "library", raising=False)
    module = __import__("library")
    monkeypatch.delitem(sys.modules, "library")  # registers that it goes when the test ends
    sys.modules["library"] = module
    return module


def calls(profiler: LineProfiler) -> dict[tuple[str, int], int]:
    """A function and the line of the user -> how often the line led to a call of it."""
    recorded = profiler.recorded()
    names = [function.qual_name for function in recorded.functions]
    return {(names[call.callee], call.line): call.hits for call in recorded.calls}


@pytest.mark.parametrize("names", [["inner"], ["inner", "outer", "deep", "steps"]])
def test_a_call_is_of_the_line_of_the_user_that_led_to_it(
    tmp_path: Path, library: ModuleType, names: list[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(USER)
    with LineProfiler(*(getattr(library, name) for name in names)) as profiler:
        runpy.run_path(str(script))

    of_inner = {line: hits for (name, line), hits in calls(profiler).items() if name == "inner"}
    assert of_inner == {4: 3, 5: 3, 7: 1, 8: 1, 9: 1}
    if "outer" in names:
        assert {key: hits for key, hits in calls(profiler).items() if key[0] != "inner"} == {
            ("outer", 4): 1,
            ("outer", 5): 1,
            ("steps", 7): 1,
            ("deep", 9): 4,
        }


def test_the_way_to_the_user_is_not_gone_again_for_each_call_in_a_library(
    tmp_path: Path, library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    is_of_user = line_store.is_of_user
    monkeypatch.setattr(
        line_store, "is_of_user", lambda name: (asked.append(name), is_of_user(name))[1]
    )
    script = tmp_path / "script.py"
    script.write_text("import library\nlibrary.deep(200)\n")
    with LineProfiler(library.deep) as profiler:
        runpy.run_path(str(script))

    assert calls(profiler) == {("deep", 2): 201}
    assert len(asked) == 201  # one frame for each call: the way would be 20,000 frames long
