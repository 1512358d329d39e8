"""The calls that tracers make of listeners, what they give back, and what they keep alive."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import traced_programs as programs
from support.python_versions import find_pythons, python_of
from support.traced_programs import Recorder

from pytorch_memlab.errors import UsageError
from pytorch_memlab.line_profiler import tracer as tracer_module
from pytorch_memlab.line_profiler.chained_tracer import Chain
from pytorch_memlab.line_profiler.settrace_tracer import SettraceTracer
from pytorch_memlab.line_profiler.watched import WatchedCodes

HAS_MONITORING = sys.version_info >= (3, 12)
TRACERS = ["settrace", "monitoring"] if HAS_MONITORING else ["settrace"]


@pytest.fixture(autouse=True)
def tracers_found() -> Iterator[None]:
    """Whatever traces the test run itself, such as coverage, is found again."""
    found = sys.gettrace(), threading.gettrace(), tools()
    yield
    assert (sys.gettrace(), threading.gettrace(), tools()) == found


@pytest.fixture(params=TRACERS)
def tracer(request: pytest.FixtureRequest) -> Any:
    return programs.make_tracer(request.param)


def tools() -> list[str | None]:
    """Who holds which tool id of ``sys.monitoring``."""
    monitoring: Any = getattr(sys, "monitoring", None)
    return [monitoring.get_tool(tool) for tool in range(6)] if monitoring else []


def calls(text: str) -> list[str]:
    return [call.strip() for call in text.split("|")]


# What every Python and both tracers tell; numbers of lines count from the function's first.
EXPECTED = {
    "decorated": "decorated1 enter 0|decorated1 line 2|decorated1 line 4|decorated1 leave",
    "recursion": (
        "factorial1 enter 0|factorial1 line 1|factorial1 line 3"
        "|factorial2 enter 0|factorial2 line 1|factorial2 line 3"
        "|factorial3 enter 0|factorial3 line 1|factorial3 line 2|factorial3 leave"
        "|factorial2 line 4|factorial2 leave|factorial1 line 4|factorial1 leave"
    ),
    "nested": (
        "outer1 enter 0|outer1 line 1|inner2 enter 0|inner2 line 1|inner2 leave"
        "|outer1 line 2|outer1 leave"
    ),
    "generator": (
        "counting1 enter 0|counting1 line 1|counting1 line 2|counting1 leave"
        "|counting1 resume 2|counting1 line 1|counting1 line 2|counting1 leave"
        "|counting1 resume 2|counting1 line 1|counting1 line 3|counting1 leave"
    ),
    "two generators": (
        "counting1 enter 0|counting1 line 1|counting1 line 2|counting1 leave"
        "|counting2 enter 0|counting2 line 1|counting2 line 2|counting2 leave"
        "|counting1 resume 2|counting1 line 1|counting1 line 3|counting1 leave"
        "|counting2 resume 2|counting2 line 1|counting2 line 3|counting2 leave"
    ),
    "throw caught": (
        "guarded1 enter 0|guarded1 line 1|guarded1 line 2|guarded1 leave"
        "|guarded1 resume 2|guarded1 line 3|guarded1 line 4|guarded1 leave"
        "|guarded1 resume 4|guarded1 line 6|guarded1 line 7|guarded1 leave"
    ),
    "throw uncaught": (
        "unguarded1 enter 0|unguarded1 line 1|unguarded1 leave|unguarded1 resume 1|unguarded1 leave"
    ),
    "throw into new": "unguarded1 enter 0|unguarded1 leave",
    "close guarded": (
        "guarded1 enter 0|guarded1 line 1|guarded1 line 2|guarded1 leave"
        "|guarded1 resume 2|guarded1 line 3|guarded1 line 6|guarded1 leave"
    ),
    "close unguarded": (
        "unguarded1 enter 0|unguarded1 line 1|unguarded1 leave|unguarded1 resume 1|unguarded1 leave"
    ),
    "yield from": (
        "delegating1 enter 0|delegating1 line 1"
        "|guarded2 enter 0|guarded2 line 1|guarded2 line 2|guarded2 leave|delegating1 leave"
        "|delegating1 resume 1|guarded2 resume 2|guarded2 line 6|guarded2 line 7|guarded2 leave"
        "|delegating1 line 2|delegating1 leave"
    ),
    "coroutine": (
        "awaiting1 enter 0|awaiting1 line 1"
        "|waiting2 enter 0|waiting2 line 1|waiting2 leave|awaiting1 leave"
        "|awaiting1 resume 1|waiting2 resume 1|waiting2 leave|awaiting1 leave"
        "|awaiting1 resume 1|waiting2 resume 1|waiting2 line 2|waiting2 leave"
        "|awaiting1 line 2|awaiting1 leave"
    ),
    # Python throws into the innermost coroutine at once, and into the outer ones on the way back.
    "throw into coroutine": (
        "awaiting1 enter 0|awaiting1 line 1"
        "|waiting2 enter 0|waiting2 line 1|waiting2 leave|awaiting1 leave"
        "|waiting2 resume 1|waiting2 leave|awaiting1 resume 1|awaiting1 leave"
    ),
    "tasks": (
        "_sleeping1 enter 0|_sleeping1 line 1|_sleeping1 leave"
        "|_sleeping2 enter 0|_sleeping2 line 1|_sleeping2 leave"
        "|_sleeping1 resume 1|_sleeping1 line 2|_sleeping1 leave"
        "|_sleeping2 resume 1|_sleeping2 line 2|_sleeping2 leave"
    ),
    "async generator": (
        "listening1 enter 0|listening1 line 1|listening1 line 2"
        "|ticking2 enter 0|ticking2 line 1|ticking2 line 2|ticking2 leave|listening1 leave"
        "|listening1 resume 2|ticking2 resume 2|ticking2 line 3|ticking2 leave"
        "|listening1 line 3|listening1 line 2"
        "|ticking2 resume 3|ticking2 line 1|ticking2 line 2|ticking2 leave|listening1 leave"
        "|listening1 resume 2|ticking2 resume 2|ticking2 line 3|ticking2 leave"
        "|listening1 line 3|listening1 line 2"
        "|ticking2 resume 3|ticking2 line 1|ticking2 leave|listening1 line 4|listening1 leave"
    ),
    "async generator closed": (
        "ticking1 enter 0|ticking1 line 1|ticking1 line 2|ticking1 leave"
        "|ticking1 resume 2|ticking1 line 3|ticking1 leave|ticking1 resume 3|ticking1 leave"
    ),
    "exception": (
        "catching1 enter 0|catching1 line 1|catching1 line 2"
        "|failing2 enter 0|failing2 line 1|failing2 leave"
        "|catching1 line 3|catching1 line 4|catching1 line 5|catching1 leave"
    ),
    "reraised": (
        "reraising1 enter 0|reraising1 line 1|reraising1 line 2|reraising1 line 3"
        "|reraising1 line 4|reraising1 line 6|reraising1 leave"
    ),
    "unwound": "failing1 enter 0|failing1 line 1|failing1 leave",
    "one-line loop": (
        "one_line_loop1 enter 0|one_line_loop1 line 1|one_line_loop1 line 1|one_line_loop1 line 1"
        "|one_line_loop1 line 1|one_line_loop1 line 2|one_line_loop1 leave"
    ),
    "branches": (
        "branching1 enter 0|branching1 line 1|branching1 line 2|branching1 line 3"
        "|branching1 line 4|branching1 line 1|branching1 line 2|branching1 line 3"
        "|branching1 line 5|branching1 line 1|branching1 line 6|branching1 leave"
    ),
    "with": (
        "in_context1 enter 0|in_context1 line 1|in_context1 line 2|in_context1 line 1"
        "|in_context1 line 3|in_context1 leave"
    ),
    "thread": (
        "starting_a_thread1 enter 0|starting_a_thread1 line 1|starting_a_thread1 line 2"
        "|inner2 enter 0|inner2 line 1|inner2 leave"
        "|starting_a_thread1 line 3|starting_a_thread1 leave"
    ),
    "twins": "twin1 enter 0|twin1 line 1|twin1 leave",
    "closures": (
        "closure1 enter 0|closure1 line 1|closure1 leave"
        "|closure2 enter 0|closure2 line 1|closure2 leave"
    ),
    "watch_inside": (
        "watching1 enter 0|watching1 resume 2|watching1 line 3|watching1 line 4|watching1 leave"
    ),
    "unwatch_inside": (
        "unwatching1 enter 0|unwatching1 line 1|unwatching1 line 2|unwatching1 leave"
    ),
    "watch_suspended": (
        "counting1 enter 0|counting1 resume 2|counting1 line 1|counting1 line 2|counting1 leave"
        "|counting1 resume 2|counting1 line 1|counting1 line 3|counting1 leave"
    ),
    "unwatch_suspended": (
        "counting1 enter 0|counting1 line 1|counting1 line 2|counting1 leave"
        "|counting2 enter 0|counting2 resume 2|counting2 line 1|counting2 line 2|counting2 leave"
    ),
    "unwatch_running_generator": (
        "stopping1 enter 0|stopping1 line 1|stopping1 leave"
        "|stopping1 resume 1|stopping1 line 2|stopping1 leave"
    ),
    "two_listeners": (
        "1:shared1 enter 0|1:shared1 line 1|2:shared1 enter 0|2:shared1 resume 1"
        "|1:shared1 line 2|2:shared1 line 2|1:inner2 enter 0|2:inner2 enter 0"
        "|1:inner2 line 1|2:inner2 line 1|1:inner2 leave|2:inner2 leave"
        "|1:shared1 line 3|2:shared1 line 3|2:shared1 leave"
        "|1:shared1 line 4|1:inner3 enter 0|1:inner3 line 1|1:inner3 leave|1:shared1 leave"
    ),
    "listener_changes_while_suspended": (
        "1:counting1 enter 0|1:counting1 line 1|1:counting1 line 2|1:counting1 leave"
        "|2:counting1 enter 0|2:counting1 resume 2|2:counting1 line 1|2:counting1 line 2"
        "|2:counting1 leave"
    ),
    "thread_outlives_watch": "inner1 enter 0|inner1 line 1|inner1 leave|tracer [None]",
}

# What Python does itself with an exception thrown into an await is an arrival at that line once
# more.
EXPECTED_FROM_3_13 = {
    "throw into coroutine": (
        "awaiting1 enter 0|awaiting1 line 1"
        "|waiting2 enter 0|waiting2 line 1|waiting2 leave|awaiting1 leave"
        "|waiting2 resume 1|waiting2 line 1|waiting2 leave"
        "|awaiting1 resume 1|awaiting1 line 1|awaiting1 leave"
    ),
}

# A generator that is closed at a yield outside try simply ends, with no event.
EXPECTED_OF_3_13 = {"close unguarded": "unguarded1 enter 0|unguarded1 line 1|unguarded1 leave"}


def expected(version: tuple[int, int]) -> dict[str, list[str]]:
    texts = EXPECTED | EXPECTED_FROM_3_13 if version >= (3, 13) else EXPECTED
    texts = texts | EXPECTED_OF_3_13 if version == (3, 13) else texts
    return {name: calls(text) for name, text in texts.items()}


@pytest.mark.parametrize("name", list(programs.PROGRAMS))
def test_calls_of_a_program(tracer: Any, name: str) -> None:
    assert programs.record(tracer, name) == expected(sys.version_info[:2])[name]


@pytest.mark.parametrize("session", programs.SESSIONS, ids=lambda session: session.__name__)
def test_calls_of_a_session(tracer: Any, session: Any) -> None:
    if session is programs.thread_outlives_watch and threading.gettrace() is not None:
        pytest.skip("the test run itself is traced, its threads too")
    assert session(tracer) == expected(sys.version_info[:2])[session.__name__]


@cache
def recorded_by(python: str, tracer: str) -> dict[str, list[str]]:
    script = Path(programs.__file__)
    done = subprocess.run([python, script, tracer], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded: dict[str, list[str]] = json.loads(done.stdout)
    return recorded


@pytest.mark.parametrize(
    ("version", "tracer_name"),
    [
        ((3, 10), "settrace"),
        ((3, 11), "settrace"),
        ((3, 12), "settrace"),
        ((3, 12), "monitoring"),
        ((3, 13), "settrace"),
        ((3, 13), "monitoring"),
        ((3, 14), "monitoring"),
    ],
)
def test_calls_in_another_python(version: tuple[int, int], tracer_name: str) -> None:
    assert recorded_by(python_of(version), tracer_name) == expected(version)


def test_both_tracers_tell_the_same() -> None:
    new = [version for version in find_pythons() if version >= (3, 12)]
    if not new:
        pytest.skip("no Python of 3.12 or later")
    for version in new:
        python = find_pythons()[version]
        assert recorded_by(python, "settrace") == recorded_by(python, "monitoring")


class Value:
    """Stands for a tensor in a frame's locals."""


def holding(value, dead):
    local = value
    del value
    yield local
    yield dead


@pytest.mark.parametrize("ends", ["exhausted", "dropped", "closed", "thrown", "unwatched"])
def test_locals_die_when_they_would(tracer: Any, ends: str) -> None:
    recorder, value = Recorder(), Value()
    dead = weakref.ref(value)
    gc.disable()
    try:
        tracer.watch(recorder, [holding.__code__])
        generator = holding(value, 1)
        del value
        next(generator)
        assert dead() is not None
        if ends == "exhausted":
            list(generator)
        elif ends == "closed":
            generator.close()
        elif ends == "thrown":
            with pytest.raises(KeyError):
                generator.throw(KeyError())
        elif ends == "unwatched":
            tracer.unwatch(recorder)
        if ends in ("dropped", "unwatched"):
            del generator
        assert dead() is None
    finally:
        gc.enable()
        tracer.unwatch(recorder)


def failing_with(value):
    raise ValueError(len([value]))


def test_exceptions_frames_die_with_the_exception(tracer: Any) -> None:
    recorder, value = Recorder(), Value()
    dead = weakref.ref(value)
    gc.disable()
    try:
        tracer.watch(recorder, [failing_with.__code__])
        try:
            failing_with(value)
        except ValueError:
            del value
        assert dead() is None
    finally:
        gc.enable()
        tracer.unwatch(recorder)


def test_tracing_leaves_no_cycles(tracer: Any) -> None:
    """The collector's rounds stay the program's own."""
    tracer.watch(recorder := Recorder(), [programs.inner.__code__, programs.counting.__code__])
    try:
        programs.inner(1)
        while gc.collect():
            pass  # what other tests left may leave more when it is freed
        gc.disable()
        for _ in range(50):
            programs.inner(1)
            list(programs.counting(2))
            next(programs.counting(2))
        assert gc.collect() == 0
    finally:
        gc.enable()
        tracer.unwatch(recorder)


class Silent:
    """A listener that keeps nothing."""

    def enter(self, _code: types.CodeType, _line: int, /) -> Silent:
        return self

    def line(self, line: int, /) -> None:
        pass

    def resume(self, line: int, /) -> None:
        pass

    def leave(self) -> None:
        pass


def test_memory_does_not_grow_with_events(tracer: Any) -> None:
    def work() -> None:
        for _ in range(300):
            programs.inner(1)
            programs.outer(1)
            list(programs.counting(2))
            next(programs.counting(3))
            programs._swallow(ZeroDivisionError, programs.failing, 0)

    functions = (programs.inner, programs.outer, programs.counting, programs.failing)
    listener = Silent()
    tracer.watch(listener, [function.__code__ for function in functions])
    try:
        work()
        before = sys.getallocatedblocks()
        work()
        assert sys.getallocatedblocks() - before < 100
    finally:
        tracer.unwatch(listener)


def test_unwatch_releases_the_listener_and_the_codes(tracer: Any) -> None:
    listener = Silent()
    dead = weakref.ref(listener)

    def local() -> int:
        return 1

    code_dead = weakref.ref(local.__code__)
    tracer.watch(listener, [local.__code__])
    local()
    tracer.unwatch(listener)
    del listener
    assert dead() is None
    assert code_dead() is not None  # a constant of this test's own code


def test_watch_keeps_a_code_alive(tracer: Any) -> None:
    """Its ``id`` could else be that of another code."""
    namespace: dict[str, Any] = {}
    exec("def gone(): return 1", namespace)
    dead = weakref.ref(namespace["gone"].__code__)
    tracer.watch(recorder := Recorder(), [namespace["gone"].__code__])
    namespace.clear()
    assert dead() is not None
    tracer.unwatch(recorder)
    assert dead() is None


def test_running_thread_is_followed_from_its_next_call(tracer: Any) -> None:
    """A thread that ran before: ``sys.monitoring`` reaches it, ``sys.settrace`` cannot."""
    recorder, go, ready = Recorder(), threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        go.wait()
        programs.inner(1)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    tracer.watch(recorder, [programs.inner.__code__])
    go.set()
    thread.join()
    tracer.unwatch(recorder)
    whole = ["inner1 enter 0", "inner1 line 1", "inner1 leave"]
    assert recorder.calls == (whole if tracer.name == "sys.monitoring" else [])


def test_listener_that_raises_interrupts_the_program_and_ends_the_intervals(tracer: Any) -> None:
    class Interrupting(Recorder):
        def enter(self, code: types.CodeType, line: int, /) -> Any:
            frame = super().enter(code, line)
            if code is programs.inner.__code__:
                frame.line = self.interrupt
            return frame

        def interrupt(self, line: int) -> None:
            raise KeyboardInterrupt

    found, recorder = sys.gettrace(), Interrupting()
    tracer.watch(recorder, [programs.outer.__code__, programs.inner.__code__])
    with pytest.raises(KeyboardInterrupt):
        programs.outer(1)
    told = list(recorder.calls)
    assert sorted(told) == sorted(
        ["outer1 enter 0", "outer1 line 1", "inner2 enter 0", "inner2 leave", "outer1 leave"]
    )
    tracer.unwatch(recorder)
    assert recorder.calls == told
    assert sys.gettrace() is found


def test_frame_watched_twice_in_one_call_has_one_interval(tracer: Any) -> None:
    recorder = Recorder()
    tracer.watch(recorder, [programs.inner.__code__, programs.inner.__code__])
    tracer.watch(recorder, [programs.inner.__code__])
    programs.inner(1)
    tracer.unwatch(recorder)
    assert recorder.calls == ["inner1 enter 0", "inner1 line 1", "inner1 leave"]


def test_unwatch_of_a_stranger_has_no_effect(tracer: Any) -> None:
    tracer.unwatch(Recorder())
    tracer.watch(recorder := Recorder(), [programs.inner.__code__])
    tracer.unwatch(Recorder())
    programs.inner(1)
    tracer.unwatch(recorder)
    assert len(recorder.calls) == 3


def fresh_choice(monkeypatch: pytest.MonkeyPatch, forced: str | None) -> Any:
    if forced is None:
        monkeypatch.delenv(tracer_module.TRACER_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(tracer_module.TRACER_VARIABLE, forced)
    return tracer_module.current_tracer.__wrapped__()


def test_choice_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fresh_choice(monkeypatch, None)
    assert chosen.name == ("sys.monitoring" if HAS_MONITORING else "sys.settrace")
    assert "sys.monitoring" in chosen.reason


def test_choice_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fresh_choice(monkeypatch, "settrace")
    assert isinstance(chosen, SettraceTracer)
    assert chosen.reason == "PYTORCH_MEMLAB_TRACER=settrace asks for it"
    if HAS_MONITORING:
        assert fresh_choice(monkeypatch, "monitoring").name == "sys.monitoring"
    else:
        with pytest.raises(UsageError, match=r"needs Python 3\.12 or later"):
            fresh_choice(monkeypatch, "monitoring")


def test_bad_choice_names_the_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"PYTORCH_MEMLAB_TRACER='ptrace': give 'settrace' or 'monitoring'"
    ):
        fresh_choice(monkeypatch, "ptrace")


def test_the_process_has_one_tracer() -> None:
    assert tracer_module.current_tracer() is tracer_module.current_tracer()


def test_tracers_import_no_torch() -> None:
    script = (
        f"import sys; sys.path.insert(0, {os.path.dirname(programs.__file__)!r})\n"
        "import traced_programs as programs; programs.import_without_torch()\n"
        "from pytorch_memlab.line_profiler.tracer import current_tracer\n"
        "current_tracer().watch(programs.Recorder(), [])\n"
        "assert not {'torch', 'numpy', 'pandas', 'line_profiler'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_codes_without_a_listener_leave_no_name_that_slows_calls() -> None:
    """Each call of a function with a name that is kept would be looked up by its code."""

    def code() -> None: ...

    codes, listener = WatchedCodes(), Recorder()
    codes.add(listener, [code.__code__, code.__code__.replace(co_firstlineno=1)])
    assert codes.names == {"code": 2}
    codes.remove(listener)
    assert (codes.names, codes.by_id) == ({}, {})


def test_the_trace_function_of_an_ended_session_gives_way_to_the_one_before_it() -> None:
    """A thread that ran on while it ended finds it in its slot at the next call."""
    calls = []

    def before(_frame: types.FrameType, event: str, arg: object) -> None:
        calls.append((event, arg))

    session: Any = types.SimpleNamespace(over=True)
    chain, found = Chain(session, before), sys.gettrace()
    try:
        local = chain.trace(sys._getframe(), "call", None)
        slot = sys.gettrace()
    finally:
        sys.settrace(found)
    assert (local, slot, calls[0]) == (None, before, ("call", None))
