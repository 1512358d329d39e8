"""The cost of profiling one function for the calls of all others. Needs no torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import CodeType, FrameType, ModuleType

import pytorch_memlab
from benchmarks.timing import arguments, heading, median_ratio, row

if find_spec("torch") is None:
    # The tracer needs no torch, but the package around it does: that stays unloaded.
    package = ModuleType("pytorch_memlab.line_profiler")
    package.__path__ = [f"{pytorch_memlab.__path__[0]}/line_profiler"]
    sys.modules[package.__name__] = package

from pytorch_memlab.line_profiler.tracer import current_tracer

CALLS = 200_000


class NobodyCalls:
    """Listens to a function that is never called."""

    def enter(self, code: CodeType, line: int, /) -> NobodyCalls:
        """A frame began, which never happens."""
        raise AssertionError(code, line)

    def line(self, line: int, /) -> None:
        """A line began."""

    def resume(self, line: int, /) -> None:
        """A line went on."""

    def leave(self) -> None:
        """A frame ended."""

    def drop(self) -> None:
        """A frame ended at an unknown time."""

    def tracing_ended(self, where: str, thread: int) -> None:
        """Nothing is traced any more."""

    def tracing_began_again(self, thread: int) -> None:
        """All is traced again."""


def callee() -> None:
    """Is called, and not profiled."""


def registered() -> None:
    """Is profiled, and not called."""


def calls() -> None:
    """Many calls."""
    for _ in range(CALLS):
        callee()


def _no_op(frame: FrameType, event: str, arg: object) -> None:
    del frame, event, arg


def calls_traced_by_no_op() -> None:
    """The calls under the cheapest ``sys.settrace`` in Python."""
    sys.settrace(_no_op)
    try:
        calls()
    finally:
        sys.settrace(None)


def calls_profiled() -> None:
    """The calls while another function is profiled."""
    tracer, listener = current_tracer(), NobodyCalls()
    tracer.watch(listener, [registered.__code__])
    try:
        calls()
    finally:
        tracer.unwatch(listener)


def main() -> None:
    name = current_tracer().name
    heading(f"A call of an unregistered function while profiling, by {name}")
    monitoring = name == "sys.monitoring"
    _, _, to_none = median_ratio(calls_profiled, calls, 15)
    _, _, to_no_op = median_ratio(calls_profiled, calls_traced_by_no_op, 15)
    row("against no tracer", to_none, "x", 1.05 if monitoring else None)
    row("against a no-op sys.settrace", to_no_op, "x", None if monitoring else 1.3)


if __name__ == "__main__":
    arguments(__doc__)
    main()
