"""The tracers beside debuggers, coverage and profilers; each case in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.python_versions import needs_monitoring, python_of

SUPPORT = Path(__file__).parents[1] / "support"
ONLY_OF_SETTRACE = {"PYTORCH_MEMLAB_TRACER": "settrace"}

START = """
import sys, threading
sys.path.insert(0, {here!r})
import traced_programs as programs
programs.import_without_torch()
from pytorch_memlab.line_profiler.tracer import current_tracer

tracer, recorder = current_tracer(), programs.Recorder()
OUTER = ["outer1 enter 0", "outer1 line 1", "outer1 line 2", "outer1 leave"]
"""


def run(
    body: str,
    *,
    python: str = sys.executable,
    prefix: tuple[str, ...] = (),
    typed: str = "",
    tmp_path: Path,
    **environment: str,
) -> str:
    """The output of a script after ``START``; if it fails, the test fails."""
    script = tmp_path / "script.py"
    script.write_text(START.format(here=str(SUPPORT)) + textwrap.dedent(body))
    done = subprocess.run(
        [python, *prefix, str(script)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **ONLY_OF_SETTRACE, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OTHER_TRACER = """
events = []

def other(frame, event, arg):
    if frame.f_code.co_filename != programs.__file__:
        return None
    assert event == "call"
    note(frame, event)
    if frame.f_code.co_name == {declined!r}:
        return None
    if frame.f_code.co_name == {without_lines!r}:
        frame.f_trace_lines = False
    if frame.f_code.co_name == {with_opcodes!r}:
        frame.f_trace_opcodes = True
    return Local()

def note(frame, event):
    is_main = threading.current_thread() is threading.main_thread()
    events.append((frame.f_code.co_name, event, frame.f_lineno, is_main, frame.f_trace_lines))

class Local:
    # A new local function for each event, as CPython allows.
    def __call__(self, frame, event, arg):
        note(frame, event)
        return Local()

def work():
    calls = []
    for name in names:
        calls.append(programs.record(tracer, name) if watched else programs.PROGRAMS[name][1]())
    return calls

def with_other(watched_now):
    global watched
    watched = watched_now
    events.clear()
    sys.settrace(other)
    threading.settrace(other)
    calls = work()
    assert sys.gettrace() is other and threading.gettrace() is other
    sys.settrace(None)
    threading.settrace(None)
    # A thread and the one that started it run in any order.
    return sorted(events, key=lambda event: event[3]), calls

names = [name for name in programs.PROGRAMS if name not in ("tasks", "async generator",
    "async generator closed")]
alone, _ = with_other(False)
recording = {{programs.record.__code__.co_name, programs.Recorder.__init__.__code__.co_name,
    "enter", "line", "resume", "leave", "write", "<listcomp>"}}
beside, calls = with_other(True)
beside = [event for event in beside if event[0] not in recording]
if sys.version_info >= (3, 12):
    # Opcodes that a function asks for while it is traced are told from the next sys.settrace() on.
    alone, beside = ([event for event in all_ if event[1] != "opcode"] for all_ in (alone, beside))
assert len(alone) > 200
assert beside == alone, [pair for pair in zip(beside, alone) if pair[0] != pair[1]][:5]
assert calls == [programs.record(tracer, name) for name in names]
assert all(calls)
assert sys.gettrace() is None and threading.gettrace() is None
"""


@pytest.mark.parametrize(
    "variant",
    [
        {"declined": "", "without_lines": "", "with_opcodes": ""},
        {"declined": "counting", "without_lines": "", "with_opcodes": ""},
        {"declined": "", "without_lines": "guarded", "with_opcodes": ""},
        {"declined": "outer", "without_lines": "inner", "with_opcodes": "awaiting"},
    ],
)
def test_another_trace_function_sees_what_it_sees_alone(
    variant: dict[str, str], tmp_path: Path
) -> None:
    script = OTHER_TRACER.format(**variant)
    if variant["without_lines"]:
        # Where it turned line events off, ours turn them on and keep them from it.
        script = script.replace(", frame.f_trace_lines))", "))")
    run(script, tmp_path=tmp_path)


def test_trace_function_that_installs_itself_again_stays_chained(tmp_path: Path) -> None:
    run(
        """
        events = []

        def other(frame, event, arg):
            sys.settrace(other)
            if frame.f_code.co_filename == programs.__file__:
                events.append((frame.f_code.co_name, event))
                return other

        sys.settrace(other)
        tracer.watch(recorder, [programs.inner.__code__])
        programs.outer(1)
        programs.outer(1)
        tracer.unwatch(recorder)
        assert sys.gettrace() is other
        sys.settrace(None)
        once = ["inner1 enter 0", "inner1 line 1", "inner1 leave"]
        assert recorder.calls == once + [call.replace("1", "2", 1) for call in once]
        assert events.count(("inner", "line")) == 2 and events.count(("outer", "line")) == 4
        """,
        tmp_path=tmp_path,
    )


def test_trace_function_set_meanwhile_is_not_clobbered(tmp_path: Path) -> None:
    run(
        """
        def other(frame, event, arg):
            return None

        tracer.watch(recorder, [programs.inner.__code__])
        sys.settrace(other)
        threading.settrace(other)
        tracer.watch(recorder, [programs.outer.__code__])
        tracer.unwatch(recorder)
        assert sys.gettrace() is other and threading.gettrace() is other
        """,
        tmp_path=tmp_path,
    )


def test_trace_function_that_takes_itself_off_leaves_ours_on(tmp_path: Path) -> None:
    run(
        """
        def other(frame, event, arg):
            if event == "line" and frame.f_code.co_name == "inner":
                outer = frame.f_back
                del frame.f_trace, outer.f_trace
                sys.settrace(None)
                return None
            return other

        sys.settrace(other)
        tracer.watch(recorder, [programs.inner.__code__, programs.outer.__code__])
        programs.outer(1)
        tracer.unwatch(recorder)
        assert sys.gettrace() is None
        assert recorder.calls == ["outer1 enter 0", "outer1 line 1", "inner2 enter 0",
            "inner2 line 1", "inner2 leave", "outer1 line 2", "outer1 leave"], recorder.calls
        """,
        tmp_path=tmp_path,
    )


def test_trace_function_that_raises_ends_tracing_of_its_thread(tmp_path: Path) -> None:
    run(
        """
        def other(frame, event, arg):
            if frame.f_code.co_name == "inner":
                raise KeyError("stop")
            return other

        sys.settrace(other)
        tracer.watch(recorder, [programs.inner.__code__, programs.outer.__code__])
        try:
            programs.outer(1)
        except KeyError:
            pass
        assert sys.gettrace() is None
        before = list(recorder.calls)
        assert before == ["outer1 enter 0", "outer1 line 1", "outer1 leave"], before
        tracer.unwatch(recorder)
        assert recorder.calls == before and sys.gettrace() is None
        """,
        tmp_path=tmp_path,
    )


def test_tracer_found_comes_back_after_a_listener_raised(tmp_path: Path) -> None:
    run(
        """
        def other(frame, event, arg):
            return other

        def interrupted(self, line):
            raise KeyboardInterrupt

        programs.RecordedFrame.line = interrupted
        sys.settrace(other)
        tracer.watch(recorder, [programs.outer.__code__])
        try:
            programs.outer(1)
        except KeyboardInterrupt:
            pass
        assert recorder.calls == ["outer1 enter 0", "outer1 leave"], recorder.calls
        tracer.unwatch(recorder)
        assert sys.gettrace() is other
        """,
        tmp_path=tmp_path,
    )


def test_tracer_that_calls_the_one_it_found_for_every_event(tmp_path: Path) -> None:
    run(
        """
        tracer.watch(recorder, [programs.inner.__code__])
        found = sys.gettrace()

        def other(frame, event, arg):
            found(frame, event, arg)
            return other

        sys.settrace(other)
        programs.outer(1)
        sys.settrace(found)
        tracer.unwatch(recorder)
        assert recorder.calls == ["inner1 enter 0", "inner1 line 1", "inner1 leave"]
        assert sys.gettrace() is None
        """,
        tmp_path=tmp_path,
    )


COVERAGE = """
import asyncio, os
import coverage

def work(watched):
    programs.outer(1)
    if watched:
        tracer.watch(recorder, [f.__code__ for f in (programs.outer, programs.counting, work,
            programs.awaiting)])
    programs.outer(2)
    list(programs.counting(2))
    programs.starting_a_thread()
    programs._finish(programs.awaiting())
    programs._swallow(ValueError, programs.reraising)
    if watched:
        tracer.unwatch(recorder)
    programs.branching(2)
    return None

def measure(watched):
    measured = coverage.Coverage(data_file=None, branch=True, config_file=False, {limit})
    measured.start()
    slot = sys.gettrace()
    work(watched)
    assert sys.gettrace() is slot
    measured.stop()
    data = measured.get_data()
    return {{os.path.basename(f): sorted(data.arcs(f)) for f in data.measured_files()
        if "pytorch_memlab" not in f}}

programs.Recorder.__module__
alone, beside = measure(False), measure(True)
script = alone.pop("script.py", [])
lines = {{line for arc in script for line in arc}}
own = {{line for arc in beside.pop("script.py", []) for line in arc}}
assert lines <= own, (lines, own)
recording = range(programs.Recorder.__init__.__code__.co_firstlineno - 3,
    programs.RecordedFrame.write.__code__.co_firstlineno + 3)
for f, arcs in beside.items():
    beside[f] = [arc for arc in arcs if abs(arc[0]) not in recording]
assert beside == alone, (beside, alone)
assert len(recorder.calls) > 25
tracer.watch(again := programs.Recorder(), [programs.outer.__code__])
programs.outer(1)
tracer.unwatch(again)
assert again.calls == ["outer1 enter 0", "outer1 line 1", "outer1 line 2", "outer1 leave"]
print(len(recorder.calls), sum(map(len, alone.values())), len(lines))
"""


@pytest.mark.parametrize("core", ["ctrace", "pytrace"])
@pytest.mark.parametrize("limit", ["", "include=['*/traced_programs.py']", "include=['*script*']"])
def test_coverage_finds_the_same_arcs(core: str, limit: str, tmp_path: Path) -> None:
    printed = run(COVERAGE.format(limit=limit), tmp_path=tmp_path, COVERAGE_CORE=core)
    calls, arcs, lines = map(int, printed.split())
    assert calls == 34
    assert (arcs > 30) == ("script" not in limit)
    assert (lines > 10) == ("traced" not in limit)


def test_line_profiler_counts_the_same_hits(tmp_path: Path) -> None:
    run(
        """
        from line_profiler import LineProfiler

        def work(watched):
            programs.outer(1)
            if watched:
                tracer.watch(recorder, [programs.outer.__code__, programs.counting.__code__])
            programs.outer(1)
            list(programs.counting(2))
            if watched:
                tracer.unwatch(recorder)
            programs.outer(1)

        def measure(watched):
            profiler = LineProfiler(work, programs.outer, programs.inner, programs.counting)
            profiler.enable()
            slot = sys.gettrace()
            work(watched)
            assert sys.gettrace() is slot, (sys.gettrace(), slot)
            profiler.disable()
            return {key: {line: hits for line, hits, _ in timings}
                for key, timings in profiler.get_stats().timings.items()}

        alone, beside = measure(False), measure(True)
        for key, hits in alone.items():
            for line, count in hits.items():
                assert beside[key][line] == count, (key, line, count, beside[key])
        assert len(alone) == 4
        assert recorder.calls.count("outer1 line 1") == 1 and len(recorder.calls) == 16
        """,
        tmp_path=tmp_path,
    )


@pytest.mark.parametrize("tracer", ["settrace", "default"])
def test_cprofile_counts_the_same_calls(tracer: str, tmp_path: Path) -> None:
    run(
        """
        import cProfile, pstats

        profiler = cProfile.Profile()
        profiler.enable()
        tracer.watch(recorder, [programs.outer.__code__])
        programs.outer(1)
        tracer.unwatch(recorder)
        profiler.disable()
        stats = pstats.Stats(profiler).stats
        calls = {name: count for (_, _, name), (_, count, *_) in stats.items()}
        assert calls["outer"] == calls["inner"] == 1
        assert recorder.calls == OUTER
        """,
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="" if tracer == "default" else tracer,
    )


# From Python 3.14 on, pdb traces by sys.monitoring and keeps its function in ``frame.f_trace``,
# which sys.settrace calls too: no other tracer of that kind can serve beside it.
BESIDE_PDB = "monitoring" if sys.version_info >= (3, 14) else "settrace"

DEBUGGED = """
tracer.watch(recorder, [programs.outer.__code__, programs.inner.__code__])
before = sys.gettrace()
programs.outer(1)
programs.outer(2)
tracer.unwatch(recorder)
print("calls", len(recorder.calls), recorder.calls[-1])
"""


@pytest.mark.parametrize(
    ("commands", "seen"),
    [
        ("c\n", []),
        (
            "b traced_programs.inner\nc\np 'x is', x\nc\np 'x is', x\nc\n",
            ["('x is', 1)", "('x is', 2)"],
        ),
        ("b traced_programs.inner\nc\nn\nn\nn\np 'y is', y\nc\nc\n", ["('y is', 2)"]),
        ("b traced_programs.outer\nc\ns\ns\nw\ncl 1\nc\n", ["return x + 1"]),
        ("b traced_programs.inner\nc\ncl 1\nc\n", ["return x + 1"]),
    ],
)
def test_pdb_stops_where_it_should(commands: str, seen: list[str], tmp_path: Path) -> None:
    prepare = f"!import sys; sys.path.insert(0, {str(SUPPORT)!r}); import traced_programs\n"
    printed = run(
        DEBUGGED,
        tmp_path=tmp_path,
        prefix=("-m", "pdb"),
        typed=prepare + commands + "q\n",
        PYTORCH_MEMLAB_TRACER=BESIDE_PDB,
    )
    assert "calls 14 outer3 leave" in printed, printed
    for text in seen:
        assert text in printed


def test_pdb_quits(tmp_path: Path) -> None:
    printed = run(
        DEBUGGED,
        tmp_path=tmp_path,
        prefix=("-m", "pdb"),
        typed=f"!import sys; sys.path.insert(0, {str(SUPPORT)!r}); import traced_programs\n"
        "b traced_programs.inner\nc\nq\n",
        PYTORCH_MEMLAB_TRACER=BESIDE_PDB,
    )
    assert "calls" not in printed


@needs_monitoring
def test_monitoring_leaves_settrace_and_other_tools_alone(
    version: tuple[int, int], tmp_path: Path
) -> None:
    run(
        """
        m, events = sys.monitoring, sys.monitoring.events
        seen = []

        def other(frame, event, arg):
            seen.append((frame.f_code.co_name, event))
            return other

        def tool(code, line):
            if code in (programs.inner.__code__, programs.outer.__code__):
                seen.append((code.co_name, "tool"))

        def program():
            seen.clear()
            programs.outer(1)
            return list(seen)

        assert tracer.name == "sys.monitoring"
        m.use_tool_id(m.PROFILER_ID, "other")
        m.register_callback(m.PROFILER_ID, events.LINE, tool)
        m.set_events(m.PROFILER_ID, events.LINE)
        sys.settrace(other)
        alone = program()
        tracer.watch(recorder, [programs.outer.__code__])
        assert sys.gettrace() is other
        beside = program()
        tracer.unwatch(recorder)
        assert sys.gettrace() is other
        sys.settrace(None)
        assert alone == beside and ("inner", "tool") in alone and ("inner", "line") in alone
        assert m.get_tool(m.PROFILER_ID) == "other" and m.get_events(m.PROFILER_ID) == events.LINE
        assert [m.get_tool(tool) for tool in range(6) if tool != m.PROFILER_ID] == [None] * 5
        assert recorder.calls == OUTER
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="",
    )


@needs_monitoring
def test_monitoring_gives_its_tool_id_back(version: tuple[int, int], tmp_path: Path) -> None:
    run(
        """
        m, events, first = sys.monitoring, sys.monitoring.events, 3
        codes = [programs.outer.__code__, programs.inner.__code__]
        for _ in range(2):
            tracer.watch(recorder, codes)
            assert m.get_tool(first) == "pytorch_memlab"
            assert m.get_events(first) == events.PY_THROW | events.PY_UNWIND
            assert m.get_local_events(first, codes[0])
            programs.outer(1)
            tracer.unwatch(recorder)
            assert m.get_tool(first) is None
            m.use_tool_id(first, "next")
            assert m.get_events(first) == 0
            assert [m.get_local_events(first, code) for code in codes] == [0, 0]
            for event in (events.LINE, events.JUMP, events.PY_START, events.PY_RESUME,
                    events.PY_YIELD, events.PY_RETURN, events.PY_THROW, events.PY_UNWIND):
                assert m.register_callback(first, event, None) is None
            m.free_tool_id(first)
        assert len(recorder.calls) == 14
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="",
    )


@needs_monitoring
def test_monitoring_after_a_tool_that_disabled_lines(
    version: tuple[int, int], tmp_path: Path
) -> None:
    """It left its local events set when it freed the id, as 3.12 and 3.13 let it."""
    run(
        """
        m, events, first = sys.monitoring, sys.monitoring.events, 3
        code = programs.outer.__code__
        m.use_tool_id(first, "former")
        all_events = (events.LINE | events.JUMP | events.PY_START | events.PY_RESUME
            | events.PY_YIELD | events.PY_RETURN)
        for event in (events.LINE, events.PY_START, events.PY_RETURN):
            m.register_callback(first, event, lambda *_: m.DISABLE)
        m.set_local_events(first, code, all_events)
        programs.outer(1)
        m.free_tool_id(first)

        for turn in (1, 2):
            tracer.watch(recorder, [code])
            programs.outer(1)
            tracer.unwatch(recorder)
        one = ["outer1 enter 0", "outer1 line 1", "outer1 line 2", "outer1 leave"]
        assert recorder.calls == one + [call.replace("outer1", "outer2") for call in one]
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="",
    )


@needs_monitoring
def test_cprofile_starts_and_counts_the_same_calls_while_codes_are_watched(
    version: tuple[int, int], tmp_path: Path
) -> None:
    """It takes the tool id of profilers, and fails where that is taken."""
    run(
        """
        import cProfile, pstats

        def calls():
            profile = cProfile.Profile()
            profile.runcall(programs.outer, 1)
            stats = pstats.Stats(profile).stats
            return {name[2]: row[:2] for name, row in stats.items() if name[0] == programs.__file__}

        alone = calls()
        tracer.watch(recorder, [programs.outer.__code__])
        assert tracer.name == "sys.monitoring"
        assert calls() == alone == {"outer": (1, 1), "inner": (1, 1)}
        tracer.unwatch(recorder)
        assert recorder.calls == OUTER
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="",
    )


@needs_monitoring
def test_settrace_serves_while_no_tool_id_is_free(version: tuple[int, int], tmp_path: Path) -> None:
    run(
        """
        m = sys.monitoring
        for tool in range(6):
            m.use_tool_id(tool, f"tool{tool}")
        tracer.watch(recorder, [programs.outer.__code__])
        assert tracer.name == "sys.settrace"
        assert "no free tool id" in tracer.reason and "tool2" in tracer.reason
        programs.outer(1)
        m.free_tool_id(0)
        second = programs.Recorder()
        tracer.watch(second, [programs.outer.__code__])
        assert tracer.name == "sys.settrace"
        tracer.unwatch(second)
        tracer.unwatch(recorder)
        assert sys.gettrace() is None
        assert recorder.calls == OUTER
        tracer.watch(recorder, [programs.outer.__code__])
        assert tracer.name == "sys.monitoring" and m.get_tool(0) == "pytorch_memlab"
        tracer.unwatch(recorder)
        assert m.get_tool(0) is None
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="",
    )


@needs_monitoring
def test_forced_monitoring_says_who_holds_the_tool_ids(
    version: tuple[int, int], tmp_path: Path
) -> None:
    run(
        """
        from pytorch_memlab.errors import UsageError

        for tool in range(6):
            sys.monitoring.use_tool_id(tool, f"tool{tool}")
        try:
            tracer.watch(recorder, [programs.outer.__code__])
        except UsageError as error:
            assert "tool3" in str(error) and "PYTORCH_MEMLAB_TRACER=settrace" in str(error)
        else:
            raise AssertionError
        sys.monitoring.free_tool_id(3)
        tracer.watch(recorder, [programs.outer.__code__])
        programs.outer(1)
        tracer.unwatch(recorder)
        assert len(recorder.calls) == 4
        """,
        python=python_of(version),
        tmp_path=tmp_path,
        PYTORCH_MEMLAB_TRACER="monitoring",
    )
