"""``sys.settrace`` may stop tracing in the middle of a program: the report says so, and where."""

from __future__ import annotations

import inspect
import io
import pdb  # noqa: T100
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from support.terminal import coloured
from support.traced_programs import RecordedFrame, Recorder

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.line_profiler import line_profiler as line_profiler_module
from pytorch_memlab.line_profiler.settrace_tracer import SettraceTracer
from pytorch_memlab.render import html, text
from pytorch_memlab.render.notes import texts

KIB = 1024
FILE = "test_tracing_ends.py"
LATER = "lines that ran later are missing"


@pytest.fixture(autouse=True)
def traced_by_settrace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tracer, found, limit = SettraceTracer("for a test"), sys.gettrace(), sys.getrecursionlimit()
    monkeypatch.setattr(line_profiler_module, "current_tracer", lambda: tracer)
    with simulate("24GiB"):
        yield
    assert sys.getrecursionlimit() == limit
    sys.settrace(found)


def alloc(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8, device="cuda")


def train() -> None:
    kept = alloc(5)
    del kept


def come_to_the_limit(n: int = 0) -> None:
    come_to_the_limit(n + 1)


def takes_the_tracer_off() -> None:
    kept = alloc(3)
    sys.settrace(None)
    more = alloc(7)
    del kept, more
    train()


def comes_to_the_limit() -> None:
    kept = alloc(3)
    try:
        come_to_the_limit()
    except RecursionError:
        more = alloc(7)
    del kept, more
    train()


def debugs() -> None:
    kept = alloc(3)
    breakpoint()  # noqa: T100
    more = alloc(7)
    del kept, more
    train()


def line_of(func: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(func)
    return first + next(number for number, line in enumerate(lines) if text in line)


def table(profiler: LineProfiler, func: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Hits, delta and peak by the text of the line, of lines that were recorded."""
    columns = ("hits", "delta", "allocated_bytes.all.peak")
    ((rows),) = (one.rows for one in profiler.display(func, columns).report.tables)
    lines, first = inspect.getsourcelines(func)
    return {lines[line - first].strip(): values for line, values in rows.items()}


def notes(profiler: LineProfiler, func: Any = None) -> tuple[str, ...]:
    return texts(profiler.display(func).report.notes)


@pytest.mark.parametrize(
    ("func", "at", "recorded"),
    [
        (takes_the_tracer_off, "sys.settrace(None)", []),
        (comes_to_the_limit, "come_to_the_limit()", ["try:"]),
        (debugs, "breakpoint()", []),
    ],
)
def test_the_report_says_where_and_shows_what_ran_before(
    func: Callable[..., Any], at: str, recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("c\n"), stdout=asked, nosigint=True, readrc=False)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))
    alloc(64)
    torch.cuda.reset_peak_memory_stats()
    with LineProfiler(func, train) as profiler:
        func()
    where = f"tracing ended at {FILE}:{line_of(func, at)}: {LATER}"
    assert notes(profiler)[0] == where
    assert table(profiler, func) == {
        f"def {func.__name__}() -> None:": (1, 0, 0),
        "kept = alloc(3)": (1, 3 * KIB, 3 * KIB),
        **dict.fromkeys(recorded, (1, 0, 3 * KIB)),
    }
    assert notes(profiler, train)[:2] == ("train did not run before tracing ended", where)
    # From Python 3.13 on, a debugger stops at the line that calls it.
    stops = ("-> more = alloc(7)", "-> breakpoint()")
    assert (func is debugs) == any(line in asked.getvalue() for line in stops)


def test_every_renderer_says_it(tmp_path: Path) -> None:
    with LineProfiler(takes_the_tracer_off) as profiler:
        takes_the_tracer_off()
    report = profiler.display().report
    line = line_of(takes_the_tracer_off, "sys.settrace(None)")
    sentence = f"tracing ended at {FILE}:{line}: {LATER}"
    assert f"\n{sentence}\n" in text.render(report)
    on_terminal = re.sub(r"\x1b\[[0-9;]*m", "", coloured(text.write, report))
    assert sentence in " ".join(on_terminal.split())
    assert f">{sentence}</p>" in html.fragment(report)
    profiler.save(tmp_path / "p.json")
    assert load(tmp_path / "p.json").display().report.notes[0] == sentence


def test_a_trace_function_at_the_limit_ends_its_intervals_there() -> None:
    """The program's own calls are flat, so that the limit is met in ours."""

    def recurse(n: int) -> None:
        held.append(blocks.pop())
        recurse(n + 1)

    def main() -> None:
        try:
            recurse(0)
        except RecursionError:
            held.clear()
            blocks.clear()

    held: list[torch.Tensor] = []
    blocks = [alloc(1) for _ in range(sys.getrecursionlimit())]
    with LineProfiler(recurse, main) as profiler:
        main()
    first = line_of(recurse, "def recurse")
    places = [f"tracing ended at {FILE}:{line}: {LATER}" for line in range(first, first + 3)]
    assert notes(profiler)[0] in places
    for func in (recurse, main):
        assert all(delta == 0 for _, delta, _ in table(profiler, func).values())
    assert list(table(profiler, main)) == ["def main() -> None:", "try:", "recurse(0)"]


def test_after_the_last_profiled_line_or_before_the_first() -> None:
    with LineProfiler(train) as profiler:
        train()
        sys.settrace(None)
        train()
    last = line_of(train, "del kept")
    assert notes(profiler)[0] == f"tracing ended after {FILE}:{last}: {LATER}"
    with LineProfiler(train) as profiler:
        sys.settrace(None)
        train()
    assert notes(profiler)[:2] == (
        "train did not run before tracing ended",
        f"tracing ended before a profiled function ran: {LATER}",
    )


def test_a_profiler_that_is_on_says_it_and_traces_again_when_more_is_profiled() -> None:
    with LineProfiler(takes_the_tracer_off, train) as profiler:
        takes_the_tracer_off()
        line = line_of(takes_the_tracer_off, "sys.settrace(None)")
        ended = f"tracing ended at {FILE}:{line}: lines that ran"
        assert notes(profiler)[0] == f"{ended} later are missing"
        profiler.add_function(alloc)
        train()
        assert notes(profiler)[0] == f"{ended} until it began again are missing"
        assert table(profiler, train)["kept = alloc(5)"] == (1, 5 * KIB, 5 * KIB)
        profiler.clear()
        assert not any("tracing" in note for note in notes(profiler))


def test_a_frame_that_goes_on_when_tracing_begins_again_gets_no_gap() -> None:
    def main() -> None:
        sys.settrace(None)
        kept = alloc(100)
        profiler.add_function(train)
        more = alloc(2)
        del kept, more

    profiler = LineProfiler(main)
    with profiler:
        main()
    rows = table(profiler, main)
    assert "sys.settrace(None)" not in rows
    assert "kept = alloc(100)" not in rows
    assert rows["more = alloc(2)"] == (1, 2 * KIB, 102 * KIB)
    assert rows["del kept, more"][1] == -102 * KIB
    assert rows["def main() -> None:"][0] == 1, "it was called once"


def test_threads_are_told_apart() -> None:
    def work() -> None:
        kept = alloc(3)
        sys.settrace(None)
        del kept

    with LineProfiler(work, train) as profiler:
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        train()
    line = line_of(work, "sys.settrace(None)")
    sentences = [note for note in notes(profiler) if "tracing" in note]
    assert sentences == [
        f"tracing of a thread ended at {FILE}:{line}: its lines that ran later are missing"
    ]
    assert table(profiler, work)["kept = alloc(3)"][:2] == (2, 3 * KIB)
    assert table(profiler, train)["kept = alloc(5)"] == (1, 5 * KIB, 5 * KIB)


def test_an_end_in_a_thread_is_noticed_though_a_later_frame_has_the_same_address() -> None:
    addresses: list[int] = []

    def work(ends: bool) -> None:
        addresses.append(id(sys._getframe()))
        if ends:
            sys.settrace(None)
        elif addresses[-1] != addresses[0] and len(addresses) < 500:
            work(False)

    with LineProfiler(work) as profiler:
        thread = threading.Thread(target=work, args=(True,))
        thread.start()
        thread.join()
        work(False)
    assert addresses[-1] == addresses[0], "no frame took the place of the thread's"
    sentences = [note for note in notes(profiler) if "tracing" in note]
    line = line_of(work, "sys.settrace(None)")
    assert sentences == [
        f"tracing of a thread ended at {FILE}:{line}: its lines that ran later are missing"
    ]


def test_a_generator_may_go_on_in_another_thread() -> None:
    shown: list[tuple[str, ...]] = []

    def work() -> Iterator[None]:
        kept = alloc(3)
        yield
        shown.append(notes(profiler))
        more = alloc(7)
        del kept, more

    with LineProfiler(work) as profiler:
        generator = work()
        thread = threading.Thread(target=next, args=(generator,))
        thread.start()
        thread.join()
        assert next(generator, "over") == "over"
    assert not any("tracing" in note for note in (*shown[0], *notes(profiler)))
    assert table(profiler, work)["more = alloc(7)"][:2] == (1, 7 * KIB)


def test_nothing_is_said_where_tracing_goes_on() -> None:
    def main() -> None:
        found = sys.gettrace()
        sys.settrace(None)
        sys.settrace(found)
        threading.Thread(target=train).start()
        train()

    def gone(frame: Any, event: str, arg: object) -> None:
        sys.settrace(None)

    with LineProfiler(main, train) as profiler:
        main()
    assert not any("tracing" in note for note in notes(profiler))
    sys.settrace(gone)
    with LineProfiler(train) as profiler:
        train()
    assert not any("tracing" in note for note in notes(profiler))
    assert len(table(profiler, train)) == 3


def test_intervals_end_at_the_limit_though_that_takes_more_calls_than_are_left() -> None:
    def deep(calls: int) -> None:
        if calls:
            deep(calls - 1)

    class NearTheLimit(RecordedFrame):
        def line(self, line: int, /) -> None:
            raise RecursionError

        def leave(self) -> None:
            deep(100)
            super().leave()

    class Listener(Recorder):
        def enter(self, code: CodeType, line: int, /) -> RecordedFrame:
            return NearTheLimit(self, code.co_name, code)

    tracer, listener, limit = SettraceTracer("for a test"), Listener(), sys.getrecursionlimit()
    tracer.watch(listener, [train.__code__])
    sys.setrecursionlimit(len(inspect.stack()) + 50)
    try:
        train()
    except RecursionError:
        listener.calls.append("caught")
    finally:
        left = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
    tracer.unwatch(listener)
    assert left < limit
    assert listener.calls == ["train leave", "caught"]
    first = line_of(train, "kept = alloc(5)")
    assert listener.ends == [f"at {FILE}:{first}"]
