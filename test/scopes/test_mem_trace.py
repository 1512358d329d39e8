"""``GPUMemTrace``: its numbers, its printed text, and its life."""

from __future__ import annotations

import gc

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_trace import GPUMemTrace, gpu_mem_trace

MB = 2**20


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


def take(mbs: int) -> torch.Tensor:
    return torch.empty(mbs * MB, dtype=torch.uint8, device="cuda")


def test_used_is_what_is_kept_and_peaked_what_was_needed_above_it(gpu, capsys):
    trace = GPUMemTrace()
    kept = take(10)
    take(20)
    trace.report()
    trace.report("some note")
    assert trace.data() == (10, 20)
    assert capsys.readouterr().out == (
        "△used: 10MB, △peaked: 20MB\n△used: 10MB, △peaked: 20MB: some note\n"
    )
    del kept
    assert trace.data() == (0, 30)


def test_a_reset_begins_anew_and_report_n_reset_does_both(gpu, capsys):
    trace = GPUMemTrace()
    kept = [take(16)]
    trace.report_n_reset("first")
    assert trace.data() == (0, 0)
    kept.append(take(6))
    trace.reset()
    kept.clear()
    assert trace.data() == (-22, 0)
    assert capsys.readouterr().out == "△used: 16MB, △peaked: 0MB: first\n"


def test_stop_freezes_the_numbers_until_it_is_started_again(gpu):
    trace = GPUMemTrace()
    kept = take(10)
    trace.stop()
    more = take(30)
    trace.stop()
    assert trace.data() == (10, 0)
    assert repr(trace) == "△used: 10MB, △peaked: 0MB"
    trace.start()
    assert trace.data() == (0, 0)
    del kept, more
    assert trace.data() == (-40, 0)


def test_silence_is_a_method_and_an_argument(gpu, capsys):
    trace = GPUMemTrace(silent=True)
    trace.report()
    trace.silent(silent=False)
    trace.report("on")
    trace.silent()
    trace.report_n_reset()
    trace.silent(False)
    trace.report("again")
    assert capsys.readouterr().out == (
        "△used: 0MB, △peaked: 0MB: on\n△used: 0MB, △peaked: 0MB: again\n"
    )


def test_a_context_prints_nothing_unless_asked_and_keeps_its_numbers(gpu, capsys):
    with GPUMemTrace() as trace:
        take(26)
    take(50)
    assert trace.data() == (0, 26)
    assert capsys.readouterr().out == ""
    with GPUMemTrace(ctx="mine", on_exit_report=True):
        take(3)
    assert capsys.readouterr().out == "△used: 0MB, △peaked: 3MB: mine: exit\n"


def test_a_decorated_function_reports_every_call_also_a_failing_one(gpu, capsys):
    @gpu_mem_trace
    def work(fails: bool) -> int:
        take(7)
        if fails:
            raise KeyError("x")
        return 5

    assert work(False) == 5
    with pytest.raises(KeyError):
        work(True)
    line = f"△used: 0MB, △peaked: 7MB: {work.__qualname__}: exit\n"
    assert capsys.readouterr().out == line * 2


def test_a_generators_report_comes_at_its_end_with_what_it_took(gpu, capsys):
    @gpu_mem_trace
    def work():
        take(7)
        yield 1

    for _ in work():
        assert capsys.readouterr().out == ""
    assert capsys.readouterr().out == f"△used: 0MB, △peaked: 7MB: {work.__qualname__}: exit\n"


def test_a_name_in_the_place_of_silent_is_told(gpu):
    with pytest.raises(UsageError, match="name the trace with ctx='mine'"):
        GPUMemTrace("mine")


def test_traces_overlap_with_each_other_and_with_a_line_profiler(gpu):
    def work() -> None:
        take(40)
        take(10)

    outer = GPUMemTrace()
    take(60)
    torch.cuda.reset_peak_memory_stats()
    inner = GPUMemTrace()
    with LineProfiler(work):
        work()
    assert inner.data() == (0, 40)
    assert outer.data() == (0, 60)
    assert torch.cuda.max_memory_allocated() == 40 * MB


def test_it_watches_the_device_that_is_current_when_it_starts():
    with simulate("24GiB", count=2):
        torch.cuda.set_device(1)
        trace = GPUMemTrace()
        torch.cuda.set_device(0)
        kept = [take(10), torch.empty(3 * MB, dtype=torch.uint8, device="cuda:1")]
        assert trace.data() == (3, 0)
        trace.start()
        kept.append(take(5))
        assert trace.data() == (5, 0)


def test_the_hidden_names_work_too(gpu):
    trace = GPUMemTrace()
    take(10)
    trace.data_set()
    trace.peak_monitor_func()
    trace.peak_monitor_stop()
    take(50)
    assert trace.data() == (0, 10)
    trace.peak_monitor_start()
    take(5)
    assert trace.data() == (0, 5)


def test_a_trace_that_dies_leaves_no_window_open(gpu):
    from pytorch_memlab.devices import get_device
    from pytorch_memlab.scopes import peak_tracker

    trace = GPUMemTrace()
    tracker = peak_tracker(get_device("cuda:0"))
    assert len(tracker._windows) == 1
    del trace
    gc.collect()
    assert not tracker._windows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_all_numbers_are_zero(capsys):
    with GPUMemTrace() as trace:
        torch.ones(MB)
    trace.report("cpu")
    assert trace.data() == (0, 0)
    assert capsys.readouterr().out == "△used: 0MB, △peaked: 0MB: cpu\n"
