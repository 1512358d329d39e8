"""The line profiler under simulation: whole tables, to the byte."""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from support.sample_reports import SAMPLE_TEXT

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import (
    NotAFunctionError,
    UnknownColumnError,
    UnknownDeviceError,
    UsageError,
)
from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.render.notes import texts
from pytorch_memlab.scopes import peak_tracker

KIB = 1024
PEAK = "active_bytes.all.peak"


def block(kib: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8, device=device)


def table(prof: LineProfiler, func: Any, columns: Any = (PEAK, "hits", "delta")) -> dict[int, Any]:
    """Line, counted from the def -> values, bytes in KiB."""
    (one,) = prof.display(func, columns).report.tables
    first = one.function.first_line
    scale = [KIB if "bytes" in name or name == "delta" else 1 for name in columns]
    return {
        line - first: tuple(
            None if value is None else value // unit
            for value, unit in zip(values, scale, strict=True)
        )
        for line, values in one.rows.items()
    }


SAMPLE = f"{SAMPLE_TEXT}\nsimulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"

SAMPLE_SOURCE = """\
import torch
from pytorch_memlab import LineProfiler

def inner():
    torch.nn.Linear(100, 100).cuda()

def outer():
    linear = torch.nn.Linear(100, 100).cuda()
    linear2 = torch.nn.Linear(100, 100).cuda()
    inner()

with LineProfiler(outer, inner) as prof:
    outer()
prof.print_stats()
"""


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_the_sample_of_the_documentation(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "sample.py"
    script.write_text(SAMPLE_SOURCE)
    with simulate():
        exec(compile(SAMPLE_SOURCE, script, "exec"), {"__name__": "sample"})
    assert capsys.readouterr().out == SAMPLE


def test_a_call_counts_on_the_callers_line_and_in_the_callee() -> None:
    def inner() -> None:
        block(8)

    def outer() -> None:
        kept = block(4)
        inner()
        del kept

    with simulate("24GiB"), LineProfiler(outer, inner) as prof:
        outer()
        assert table(prof, outer) == {0: (0, 1, 0), 1: (4, 1, 4), 2: (12, 1, 0), 3: (4, 1, -4)}
        assert table(prof, inner) == {0: (4, 1, 0), 1: (12, 1, 0)}


def test_a_loop_shows_the_maximum_and_the_mean_of_what_is_kept() -> None:
    def work() -> None:
        kept = []
        for size in (1, 5, 3):
            kept.append(block(size))  # noqa: PERF401 - the loop is what is profiled
        kept.clear()

    with simulate("24GiB"), LineProfiler(work) as prof:
        work()
        assert table(prof, work) == {
            0: (0, 1, 0),
            1: (0, 1, 0),
            2: (9, 4, 0),
            3: (9, 3, 3),
            4: (9, 1, -9),
        }


def test_recursion_lands_on_its_own_lines() -> None:
    def dive(depth: int) -> None:
        kept = block(1)
        if depth:
            dive(depth - 1)
        del kept

    with simulate("24GiB"), LineProfiler(dive) as prof:
        dive(3)
        assert table(prof, dive) == {
            0: (3, 4, 0),
            1: (4, 4, 1),
            2: (4, 4, 0),
            3: (4, 3, 0),
            4: (4, 4, -1),
        }


def test_generators_go_on_in_the_line_where_they_stood() -> None:
    def produce() -> Iterator[int]:
        kept = block(2)
        yield 1
        more = block(4)
        yield 2
        del kept, more

    with simulate("24GiB"), LineProfiler(produce) as prof:
        for _ in produce():
            block(100)
        assert table(prof, produce) == {
            0: (0, 1, 0),
            1: (2, 1, 2),
            2: (2, 1, 0),
            3: (6, 1, 4),
            4: (6, 1, 0),
            5: (6, 1, -6),
        }


def test_coroutines_do_not_count_what_others_do_while_they_wait() -> None:
    async def patient() -> None:
        await asyncio.sleep(0)
        kept = block(2)
        await asyncio.sleep(0.01)
        del kept

    async def greedy() -> None:
        block(64)
        await asyncio.sleep(0)
        block(64)

    async def numbers() -> AsyncIterator[int]:
        yield 1
        block(3)

    async def main() -> None:
        await asyncio.gather(patient(), greedy())
        async for _ in numbers():
            pass

    with simulate("24GiB"), LineProfiler(patient, numbers) as prof:
        asyncio.run(main())
        assert table(prof, patient) == {
            0: (0, 1, 0),
            1: (0, 1, 0),
            2: (2, 1, 2),
            3: (2, 1, 0),
            4: (2, 1, -2),
        }
        assert table(prof, numbers) == {0: (0, 1, 0), 1: (0, 1, 0), 2: (3, 1, 0)}


def test_exceptions_end_their_line() -> None:
    def fails() -> None:
        kept = block(4)
        try:
            block(8)
            raise ValueError
        except ValueError:
            block(16)
            raise
        finally:
            del kept

    with simulate("24GiB"), LineProfiler(fails) as prof:
        with pytest.raises(ValueError):  # noqa: PT011 - which one does not matter
            fails()
        assert table(prof, fails) == {
            0: (0, 1, 0), 1: (4, 1, 4), 2: (4, 1, 0), 3: (12, 1, 0), 4: (4, 1, 0),
            5: (4, 1, 0), 6: (20, 1, 0), 7: (4, 1, 0), 9: (4, 1, -4),
        }  # fmt: skip


def test_an_out_of_memory_error_is_on_its_line() -> None:
    def fills() -> None:
        kept = [block(KIB)]
        while True:
            kept.append(block(512 * KIB))

    with simulate("2GiB"), LineProfiler(fills) as prof:
        with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate"):
            fills()
        assert table(prof, fills, (PEAK, "hits")) == {
            0: (0, 1), 1: (KIB, 1), 2: (KIB + 3 * 512 * KIB, 4), 3: (KIB + 3 * 512 * KIB, 4)
        }  # fmt: skip


def test_threads_are_profiled() -> None:
    def work() -> None:
        kept = block(2)
        del kept

    with simulate("24GiB"), LineProfiler(work) as prof:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        assert table(prof, work) == {0: (0, 3, 0), 1: (2, 3, 2), 2: (2, 3, -2)}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    @property
    def size(self) -> int:
        return block(7).numel()

    @staticmethod
    def fixed() -> None:
        block(9)


def test_what_can_be_registered() -> None:
    with simulate("24GiB"):
        net = Net().cuda()
        x = torch.zeros(4, 16, device="cuda")
        given = (Net, net, net.forward, Net.size, functools.partial(Net.fixed))
        profilers = [LineProfiler(one) for one in given]
        with ExitStack() as stack:
            for prof in profilers:
                stack.enter_context(prof)
            net(x)
            _ = net.size
            Net.fixed()
        names = ["Net.forward", "Net.size", "Net.fixed"]
        ran = [[t.function.qual_name for t in p.display().report.tables] for p in profilers]
        assert ran == [names, names, names[:1], names[1:2], names[2:]]


def test_functions_may_be_added_and_read_while_it_is_on() -> None:
    """A module as torch_geometric generates it."""

    def work() -> None:
        block(3)

    columns = ["allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak"]
    with simulate("24GiB"):
        prof = LineProfiler(target_gpu=0)
        prof.enable()
        prof.add_function(work)
        work()
        shown = LineRecords(prof._raw_line_records, prof._code_infos).display(None, columns)
        assert shown._line_records.values.max(axis=0).tolist() == [3 * KIB, 2 * 2**20, 3 * KIB]
        prof.disable()
        work()
        assert table(prof, work, ("hits",)) == {0: (1,), 1: (1,)}


def test_every_device_has_a_table_and_a_target_narrows() -> None:
    def work(prof: LineProfiler | None = None) -> None:
        first = block(1, "cuda:0")
        if prof:
            prof.target_gpu = torch.device("cuda", 1)
        second = block(2, "cuda:1")
        if prof:
            prof.target_gpu = "cuda:0"
        del first, second

    def rows(prof: LineProfiler) -> dict[str, dict[int, Any]]:
        return {
            one.device.name: {
                line - one.function.first_line: values for line, (values,) in one.rows.items()
            }
            for one in prof.display(columns=[PEAK]).report.tables
        }

    with simulate("24GiB", count=2):
        with LineProfiler(work) as both:
            work()
        assert rows(both) == {
            "cuda:0": {0: 0, 1: KIB, 2: KIB, 4: KIB, 5: KIB, 7: KIB},
            "cuda:1": {0: 0, 1: 0, 2: 0, 4: 2 * KIB, 5: 2 * KIB, 7: 2 * KIB},
        }
        with LineProfiler(work, target_gpu=1) as one:
            work()
        assert rows(one) == {"cuda:1": {0: 0, 1: 0, 2: 0, 4: 2 * KIB, 5: 2 * KIB, 7: 2 * KIB}}
        with LineProfiler(work, target_gpu=0) as switched:
            work(switched)
        assert rows(switched) == {
            "cuda:0": {0: 0, 1: KIB, 2: KIB, 6: KIB, 7: KIB},
            "cuda:1": {3: 0, 4: 2 * KIB, 5: 2 * KIB},
        }


@pytest.mark.parametrize("target", [None, "cuda:1"])
def test_what_comes_after_clear_has_its_devices_and_its_time(target: str | None) -> None:
    def work() -> None:
        block(4, "cuda:1")

    with simulate("24GiB", count=2):
        prof = LineProfiler(work, target_gpu=target)
        with prof:
            work()
        prof.clear()
        assert (prof.recorded().runs[0].seconds, prof.recorded().devices) == (0, ())
        prof.add_function(work)
        with prof:
            work()
        found = prof.recorded()
    assert {one.device.name: (one.capacity, one.peak_active) for one in found.devices} == {
        "cuda:1": (24 * 2**30, 4096)
    }


def test_two_profilers_and_the_programs_own_peaks_at_once() -> None:
    def work() -> int:
        block(32)
        torch.cuda.reset_peak_memory_stats()
        block(4)
        return torch.cuda.max_memory_allocated()

    with simulate("24GiB"):
        alone = work()
        with LineProfiler(work) as one:
            assert work() == alone == 4 * KIB
            with LineProfiler(work) as two:
                assert work() == alone
            work()
        expected = {0: 0, 1: 32, 2: 0, 3: 4, 4: 0}
        assert {line: row[0] for line, row in table(one, work).items()} == expected
        assert {line: row[0] for line, row in table(two, work).items()} == expected
        assert [row[1] for row in table(one, work).values()] == [3] * 5
        assert [row[1] for row in table(two, work).values()] == [1] * 5
        assert torch.cuda.max_memory_allocated() == alone


def test_records_do_not_grow_with_events() -> None:
    def loop(n: int) -> None:
        for i in range(n):
            i += 1

    with simulate("24GiB"), LineProfiler(loop) as prof:
        block(1)
        loop(100)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        loop(20_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 20_000, f"{grown} bytes for 40,000 events"
        assert table(prof, loop, ("hits",)) == {0: (2,), 1: (20102,), 2: (20100,)}


def test_tensors_of_a_frame_die_when_they_would() -> None:
    def work() -> int:
        inner = block(4)
        return inner.numel()

    with simulate("24GiB"), LineProfiler(work):
        work()
        assert torch.cuda.memory_allocated() == 0


def test_what_was_allocated_and_freed_counts_within_the_line() -> None:
    def work() -> None:
        block(4)
        kept = block(2)
        block(1)
        del kept

    columns = ("allocation.all.allocated", "allocated_bytes.all.allocated", "active.all.freed")
    with simulate("24GiB"), LineProfiler(work) as prof:
        work()
        work()
        assert table(prof, work, columns) == {
            0: (0, 0, 0),
            1: (1, 4, 1),
            2: (1, 2, 0),
            3: (1, 1, 1),
            4: (0, 0, 1),
        }


@pytest.mark.knows_simulation("no call of CUDA raises a peak again")
def test_peaks_are_given_back_and_trackers_forgotten() -> None:
    def work() -> None:
        block(2)

    with simulate("24GiB") as machine:
        block(16)
        with LineProfiler(work):
            work()
        raw = machine.gpus[0].allocator.memory_stats()
        assert raw["allocated_bytes"]["all"]["peak"] == 16 * KIB
        assert (
            peak_tracker(__import__("pytorch_memlab.devices").devices.get_device(0)).segments == []
        )


def test_without_a_gpu_cpu_tensors_are_measured_and_it_says_so() -> None:
    def work() -> torch.Tensor:
        kept = torch.zeros(256)
        return (kept + 1) * 2

    with LineProfiler(work) as prof:
        work()
    assert table(prof, work) == {0: (0, 1, 0), 1: (1, 1, 1), 2: (3, 1, 1)}
    assert texts(prof.display().report.notes) == (
        (
            "no GPU here: CPU tensors were measured, of the storages that ops made while "
            "profiled functions ran"
        ),
    )


def test_no_data_says_why() -> None:
    def idle() -> None:
        pass

    with simulate("24GiB"):
        with LineProfiler(idle) as prof:
            pass
        assert str(prof.display()).splitlines()[0] == (
            "No data collected: test_no_data_says_why.<locals>.idle did not run while profiled"
        )
        with LineProfiler() as prof:
            pass
        assert str(prof.display()).startswith("No data collected: no function was registered")
        with LineProfiler(idle) as prof:
            idle()
        assert table(prof, idle, (PEAK,)) == {0: (0,), 1: (0,)}


@pytest.mark.knows_simulation("the notes of a simulated GPU")
def test_a_simulation_that_used_no_gpu_is_named_after_its_end_too() -> None:
    def idle() -> int:
        return 1

    with simulate("24GiB"):
        with LineProfiler(idle) as prof:
            idle()
        with LineProfiler(idle) as not_run:
            pass
        while_it_is_on = str(prof.display()), str(not_run.display()), str(prof.records())
    assert (str(prof.display()), str(not_run.display()), str(prof.records())) == while_it_is_on
    assert texts(prof.display().report.notes) == (
        "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)",
    )
    assert [device.device.name for device in prof.recorded().devices] == ["cuda:0"]
    prof.clear()
    assert texts(prof.display().report.notes)[-1].startswith("no GPU here: CPU tensors")


def test_it_decorates_functions_of_all_kinds() -> None:
    prof = LineProfiler()

    @prof
    def plain() -> None:
        block(1)

    @prof
    def generator() -> Iterator[int]:
        block(2)
        yield 1

    @prof
    async def coroutine() -> None:
        block(3)

    @prof
    async def asynchronous() -> AsyncIterator[int]:
        block(4)
        yield 1

    async def collect() -> list[int]:
        return [number async for number in asynchronous()]

    with simulate("24GiB"):
        assert not prof.enabled
        plain()
        assert list(generator()) == [1]
        asyncio.run(coroutine())
        assert asyncio.run(collect()) == [1]
        assert not prof.enabled
        functions = (plain, generator, coroutine, asynchronous)
        peaks = [table(prof, func, (PEAK,))[2] for func in functions]
    assert peaks == [(1,), (2,), (3,), (4,)]


def test_a_stream_in_the_place_of_the_function_is_told_its_own_place() -> None:
    with pytest.raises(UsageError) as raised:
        LineProfiler(block).print_stats(sys.stderr)
    assert str(raised.value) == "print_stats takes a stream as print_stats(stream=...)"


def test_print_stats_writes_to_the_stdout_of_the_moment() -> None:
    def work() -> None:
        block(1)

    with simulate("24GiB"), LineProfiler(work) as prof:
        work()
        stream = io.StringIO()
        prof.print_stats(stream=stream)
        assert stream.getvalue() == f"{prof.display()}\n"
        assert stream.getvalue().startswith("## test_print_stats_writes")


def test_misuse_is_one_clear_line_and_leaves_nothing_on() -> None:
    def work() -> None:
        pass

    with pytest.raises(NotAFunctionError, match="len is not written in Python and has no lines"):
        LineProfiler(work, len)
    with pytest.raises(NotAFunctionError, match="3"):
        LineProfiler(3)
    with pytest.raises(UnknownDeviceError, match="no device 'cuda:9' here"):
        LineProfiler(work, target_gpu="cuda:9")
    with simulate("24GiB"), LineProfiler(work) as prof:
        work()
        with pytest.raises(UnknownColumnError, match=r"active_bytes\.all\.peak"):
            prof.display(columns=["active_byte.all.peak"])
