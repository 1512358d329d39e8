"""The work of a report grows with the number of functions, not with its square."""

from __future__ import annotations

import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.line_profiler import facts_of_run
from pytorch_memlab.line_profiler.line_store import CodeLines
from pytorch_memlab.records import FunctionInfo
from pytorch_memlab.scopes import intervals as intervals_module


def calls_of(count):
    """A profile of functions that one line each calls."""
    source = "".join(f"def f{number}():\n    return {number}\n" for number in range(count))
    calls = "".join(f"    f{number}()\n" for number in range(count))
    names = {}
    exec(compile(f"{source}def main():\n{calls}", __file__, "exec"), names)
    with LineProfiler(*[value for name, value in names.items() if name[0] in "fm"]) as profiler:
        names["main"]()
    return profiler, names["main"].__code__


def test_the_lines_of_a_calling_function_are_read_once(monkeypatch):
    read = []

    class Counted(CodeLines):
        def __init__(self, code):
            read.append(code)
            super().__init__(code)

    monkeypatch.setattr(facts_of_run, "CodeLines", Counted)
    profiler, main = calls_of(50)

    calls = [call for call in profiler.recorded().calls if call.caller is not None]

    assert read.count(main) == 1
    first = main.co_firstlineno + 1
    assert [(call.callee, call.line) for call in calls] == [
        (number, first + number) for number in range(50)
    ]


def test_each_instruction_has_the_line_that_python_gives_it():
    def several():
        x = [
            1,
            2 if len("a") else 3,
        ]
        try:
            return x
        finally:
            x = None

    code = several.__code__
    lines = CodeLines(code)
    expected = [
        next((line for start, end, line in code.co_lines() if start <= offset < end), None)
        or code.co_firstlineno
        for offset in range(len(code.co_code))
    ]
    assert [lines.at(offset) for offset in range(len(code.co_code))] == expected


def test_a_function_is_looked_up_without_its_source():
    class Line(str):
        __slots__ = ()

        def __hash__(self):
            raise AssertionError("every line of the table would hash the whole source")

    info = FunctionInfo("f", "x.py", 1, (Line("def f():"), Line("    pass")))

    assert {info: 1}[info] == 1
    assert info != FunctionInfo("f", "x.py", 1, ("def f():", "    return"))


def test_the_readings_of_idle_lines_are_added_up_once(monkeypatch):
    with simulate("2GiB"):
        kept = torch.ones(1, device="cuda")
        profiler, _ = calls_of(50)
        add_up, calls = intervals_module._with_intervals, []
        monkeypatch.setattr(
            intervals_module, "_with_intervals", lambda *given: calls.append(1) or add_up(*given)
        )

        entries = profiler.recorded().entries

    assert kept.nbytes == 4
    assert len(entries) > 100
    assert {entry.stats["active_bytes.all.peak"] for entry in entries} == {512}
    assert len(calls) == len({id(entry.stats) for entry in entries}) <= 2
