"""Small programs, and what a listener that watches them is told; imports neither torch nor pytest.

Run as a script with a tracer's name, in any Python >= 3.11, it prints the calls as JSON. The
package is taken from its files without its ``__init__``, which needs torch.
"""

# The programs are lines to be traced, and not to be merged:
# ruff: noqa: RET504, UP028

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "pytorch_memlab"


def import_without_torch() -> None:
    """Make the package's modules importable without the package's own imports."""
    for name, path in (
        ("pytorch_memlab", PACKAGE),
        ("pytorch_memlab.line_profiler", PACKAGE / "line_profiler"),
    ):
        module = types.ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules[name] = module


class Recorder:
    """A listener that writes down its calls, lines counted from the code's first."""

    def __init__(self, calls: list[str] | None = None, name: str = "") -> None:
        self.calls: list[str] = [] if calls is None else calls
        self.name = name
        self.frames = 0
        self.ends: list[str] = []

    def enter(self, code: CodeType, line: int, /) -> RecordedFrame:
        self.frames += 1
        frame = RecordedFrame(self, f"{self.name}{code.co_name}{self.frames}", code)
        frame.write("enter", line)
        return frame

    def tracing_ended(self, where: str, thread: int) -> None:
        self.ends.append(where)

    def tracing_began_again(self, thread: int) -> None:
        self.ends.append("began again")


class RecordedFrame:
    def __init__(self, recorder: Recorder, name: str, code: CodeType) -> None:
        self.recorder, self.name, self.first = recorder, name, code.co_firstlineno

    def line(self, line: int, /) -> None:
        self.write("line", line)

    def resume(self, line: int, /) -> None:
        self.write("resume", line)

    def leave(self) -> None:
        self.recorder.calls.append(f"{self.name} leave")

    def drop(self) -> int | None:
        self.recorder.calls.append(f"{self.name} drop")
        return None

    def write(self, what: str, line: int) -> None:
        self.recorder.calls.append(f"{self.name} {what} {line - self.first}")


class Awaitable:
    """Waits twice."""

    def __await__(self) -> Iterator[str]:
        yield "one"
        yield "two"


def passthrough(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@passthrough
def decorated(x):
    if x:
        return x
    return -1


def factorial(n):
    if n < 2:
        return 1
    rest = factorial(n - 1)
    return n * rest


def outer(x):
    y = inner(x)
    return y


def inner(x):
    return x + 1


def counting(n):
    for i in range(n):
        yield i
    return None


def guarded():
    try:
        yield 1
    except ValueError:
        yield 2
    finally:
        done = True
    return done


def unguarded():
    yield 1
    yield 2


def delegating():
    got = yield from guarded()
    return got


async def waiting(n):
    await Awaitable()
    return n


async def awaiting():
    first = await waiting(1)
    return first


async def ticking(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i


async def listening():
    total = 0
    async for i in ticking(2):
        total += i
    return total


def failing(x):
    y = 1 // x
    return y


def catching():
    try:
        failing(0)
    except ZeroDivisionError:
        done = 1
    return done


def reraising():
    try:
        failing(0)
    except ZeroDivisionError as error:
        raise ValueError("again") from error
    finally:
        print(end="")


def one_line_loop(n):
    for _ in range(n): pass  # fmt: skip  # noqa: E701
    return n


def branching(n):
    while n:
        n -= 1
        if n == 1:
            continue
        print(end="")
    return n


def in_context(n):
    with contextlib.nullcontext():
        n += 1
    return n


def starting_a_thread():
    thread = threading.Thread(target=inner, args=(1,))
    thread.start()
    thread.join()


def watching(tracer, recorder):
    before = 1
    tracer.watch(recorder, [watching.__code__])
    after = before
    return after


def unwatching(tracer, recorder):
    before = 1
    tracer.unwatch(recorder)
    after = before
    return after


def calling(function):
    result = function()
    return result


# Two functions of one text, with code objects that compare equal.
TWINS = [{}, {}]  # type: list[dict[str, Any]]
for namespace in TWINS:
    exec(compile("def twin():\n    return 1\n", "<twin>", "exec"), namespace)


def make_closure(x):
    def closure():
        return x

    return closure


def _swallow(error: type[BaseException], function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(error):
        function(*args)


def _finish(coroutine: Any) -> None:
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


def _throw_caught() -> None:
    generator = guarded()
    next(generator)
    generator.throw(ValueError)
    _swallow(StopIteration, next, generator)


def _throw_uncaught() -> None:
    generator = unguarded()
    next(generator)
    _swallow(KeyError, generator.throw, KeyError)


def _throw_into_new() -> None:
    _swallow(KeyError, unguarded().throw, KeyError)


def _close_guarded() -> None:
    generator = guarded()
    next(generator)
    generator.close()


def _close_unguarded() -> None:
    generator = unguarded()
    next(generator)
    generator.close()


def _interleave() -> None:
    one, two = counting(1), counting(1)
    next(one)
    next(two)
    list(one)
    list(two)


def _cancel() -> None:
    coroutine = awaiting()
    coroutine.send(None)
    _swallow(KeyError, coroutine.throw, KeyError)


async def _abandon() -> None:
    generator: AsyncIterator[int] = ticking(2)
    await generator.__anext__()
    await generator.aclose()  # type: ignore[attr-defined]


async def _together() -> None:
    await asyncio.gather(_sleeping("a"), _sleeping("b"))


async def _sleeping(name):
    await asyncio.sleep(0)
    return name


def _closures() -> None:
    make_closure(1)()
    make_closure(2)()


Program = tuple[list[Callable[..., Any]], Callable[[], Any]]
PROGRAMS: dict[str, Program] = {
    "decorated": ([decorated], lambda: decorated(0)),
    "recursion": ([factorial], lambda: factorial(3)),
    "nested": ([outer, inner], lambda: outer(1)),
    "generator": ([counting], lambda: list(counting(2))),
    "two generators": ([counting], _interleave),
    "throw caught": ([guarded], _throw_caught),
    "throw uncaught": ([unguarded], _throw_uncaught),
    "throw into new": ([unguarded], _throw_into_new),
    "close guarded": ([guarded], _close_guarded),
    "close unguarded": ([unguarded], _close_unguarded),
    "yield from": ([delegating, guarded], lambda: list(delegating())),
    "coroutine": ([awaiting, waiting], lambda: _finish(awaiting())),
    "throw into coroutine": ([awaiting, waiting], _cancel),
    "tasks": ([_sleeping], lambda: asyncio.run(_together())),
    "async generator": ([listening, ticking], lambda: asyncio.run(listening())),
    "async generator closed": ([ticking], lambda: asyncio.run(_abandon())),
    "exception": ([catching, failing], catching),
    "reraised": ([reraising], lambda: _swallow(ValueError, reraising)),
    "unwound": ([failing], lambda: _swallow(ZeroDivisionError, failing, 0)),
    "one-line loop": ([one_line_loop], lambda: one_line_loop(3)),
    "branches": ([branching], lambda: branching(2)),
    "with": ([in_context], lambda: in_context(1)),
    "thread": ([starting_a_thread, inner], starting_a_thread),
    "twins": ([TWINS[1]["twin"]], lambda: (TWINS[0]["twin"](), TWINS[1]["twin"]())),
    "closures": ([make_closure(0)], _closures),
}


def record(tracer: Any, name: str) -> list[str]:
    """Run one of ``PROGRAMS`` watched."""
    functions, program = PROGRAMS[name]
    recorder = Recorder()
    tracer.watch(recorder, [function.__code__ for function in functions])
    try:
        program()
    finally:
        tracer.unwatch(recorder)
    return recorder.calls


def watch_inside(tracer: Any) -> list[str]:
    recorder = Recorder()
    watching(tracer, recorder)
    tracer.unwatch(recorder)
    return recorder.calls


def unwatch_inside(tracer: Any) -> list[str]:
    recorder = Recorder()
    tracer.watch(recorder, [unwatching.__code__])
    unwatching(tracer, recorder)
    return recorder.calls


def watch_suspended(tracer: Any) -> list[str]:
    recorder, generator = Recorder(), counting(2)
    next(generator)
    tracer.watch(recorder, [counting.__code__])
    list(generator)
    tracer.unwatch(recorder)
    return recorder.calls


def unwatch_suspended(tracer: Any) -> list[str]:
    """The generator goes on unwatched, then watched again by the same listener."""
    recorder, generator = Recorder(), counting(4)
    tracer.watch(recorder, [counting.__code__])
    next(generator)
    tracer.unwatch(recorder)
    next(generator)
    tracer.watch(recorder, [counting.__code__])
    next(generator)
    tracer.unwatch(recorder)
    next(generator)
    return recorder.calls


def unwatch_running_generator(tracer: Any) -> list[str]:
    recorder = Recorder()

    def stopping():
        yield 1
        tracer.unwatch(recorder)
        yield 2

    tracer.watch(recorder, [stopping.__code__])
    list(stopping())
    return recorder.calls


def two_listeners(tracer: Any) -> list[str]:
    """The second comes and goes while the first one's frame runs."""
    calls: list[str] = []
    one, two = Recorder(calls, "1:"), Recorder(calls, "2:")

    def shared():
        tracer.watch(two, [shared.__code__, inner.__code__])
        inner(1)
        tracer.unwatch(two)
        inner(1)

    tracer.watch(one, [shared.__code__])
    tracer.watch(one, [inner.__code__])
    shared()
    tracer.unwatch(one)
    tracer.unwatch(one)
    inner(1)
    return calls


def listener_changes_while_suspended(tracer: Any) -> list[str]:
    calls: list[str] = []
    one, two = Recorder(calls, "1:"), Recorder(calls, "2:")
    generator = counting(3)
    tracer.watch(one, [counting.__code__])
    next(generator)
    tracer.watch(two, [counting.__code__])
    tracer.unwatch(one)
    next(generator)
    tracer.unwatch(two)
    next(generator)
    return calls


def thread_outlives_watch(tracer: Any) -> list[str]:
    """A thread goes on after the last unwatch; its tracer goes by itself."""
    recorder, go, found = Recorder(), threading.Event(), []
    started = threading.Event()

    def work():
        inner(1)
        started.set()
        go.wait()
        inner(1)
        inner(1)
        found.append(sys.gettrace())

    tracer.watch(recorder, [inner.__code__])
    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    tracer.unwatch(recorder)
    go.set()
    thread.join()
    return [*recorder.calls, f"tracer {found}"]


SESSIONS: list[Callable[[Any], list[str]]] = [
    watch_inside,
    unwatch_inside,
    watch_suspended,
    unwatch_suspended,
    unwatch_running_generator,
    two_listeners,
    listener_changes_while_suspended,
    thread_outlives_watch,
]


def record_all(tracer: Any) -> dict[str, list[str]]:
    """The calls of every program and session by name."""
    return {
        **{name: record(tracer, name) for name in PROGRAMS},
        **{session.__name__: session(tracer) for session in SESSIONS},
    }


def make_tracer(name: str) -> Any:
    """A tracer by its short name."""
    if name == "settrace":
        from pytorch_memlab.line_profiler.settrace_tracer import SettraceTracer

        return SettraceTracer("")
    from pytorch_memlab.line_profiler.monitoring_tracer import MonitoringTracer

    return MonitoringTracer("")


if __name__ == "__main__":
    import_without_torch()
    print(json.dumps(record_all(make_tracer(sys.argv[1])), indent=1))
