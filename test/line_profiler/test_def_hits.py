"""The hits of a function's ``def`` line are its calls."""

# One-line definitions and lambdas are what is tested:
# ruff: noqa: E704, E731

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.traced_programs import make_tracer

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.line_profiler import line_profiler as line_profiler_module


@pytest.fixture(params=["settrace", "monitoring"])
def profiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LineProfiler:
    if request.param == "monitoring" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring is new in Python 3.12")
    tracer = make_tracer(request.param)
    monkeypatch.setattr(line_profiler_module, "current_tracer", lambda: tracer)
    return LineProfiler()


def hits(profiler: LineProfiler) -> dict[int, int | None]:
    """Line, counted from the first of the function -> hits."""
    (table,) = profiler.display(columns="hits").report.tables
    return {line - table.function.first_line: row[0] for line, row in table.rows.items()}


# fmt: off
def short(n: int) -> int: return n + 1
def short_generator(n: int) -> Iterator[int]: yield n
unnamed = lambda n: n + 1
# fmt: on


def plain(n: int) -> int:
    return n + 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (short, {0: 3}),
        (short_generator, {0: 3}),
        (unnamed, {0: 3}),
        (plain, {0: 3, 1: 3}),
    ],
)
def test_a_call_is_one_hit(
    function: Callable[[int], Any], expected: dict[int, int], profiler: LineProfiler
) -> None:
    profiler.add_function(function)
    with profiler:
        for n in range(3):
            called = function(n)
            if function is short_generator:
                list(called)
    assert hits(profiler) == expected


def test_a_frame_that_runs_already_was_not_called(profiler: LineProfiler) -> None:
    def enabling() -> None:
        kept = torch.ones(256, device="cuda")
        profiler.enable()
        del kept
        profiler.disable()

    profiler.add_function(enabling)
    with simulate("24GiB"):
        enabling()
        assert hits(profiler) == {2: 0, 3: 1, 4: 1}


def test_a_generator_that_is_suspended_already_was_not_called(profiler: LineProfiler) -> None:
    def counting() -> Iterator[int]:
        yield 1
        yield 2

    profiler.add_function(counting)
    generator = counting()
    next(generator)
    with profiler:
        next(generator)
    assert hits(profiler) == {1: 0, 2: 1}


def test_a_frame_that_arrives_before_it_is_followed_was_not_called(
    profiler: LineProfiler,
) -> None:
    tracer: Any = line_profiler_module.current_tracer()
    if tracer.name != "sys.monitoring":
        pytest.skip("settrace has no events of frames that it does not follow")

    def enabling() -> None:
        profiler.enable()
        tracer._running.clear()  # as another thread finds it
        profiler.disable()

    profiler.add_function(enabling)
    enabling()
    assert hits(profiler) == {1: 0, 3: 1}
