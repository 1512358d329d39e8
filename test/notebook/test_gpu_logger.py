"""``IPyGPULogger``: its reports, its data, and what it leaves alone."""

from __future__ import annotations

import re
import threading
from time import perf_counter

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.notebook import cell_events, cell_measurement
from pytorch_memlab.notebook.gpu_logger import Data, IPyGPULogger
from pytorch_memlab.profiles.cells import Usage

MB = 2**20


@pytest.fixture
def logger(shell):
    logger = IPyGPULogger()
    shell.user_ns.update(torch=torch, logger=logger, MB=MB)
    yield logger
    logger.stop()


@pytest.mark.parametrize("options", [{"compact": "compact"}, {"gc_collect": 1}])
def test_an_option_that_is_neither_true_nor_false_is_refused(options):
    [(name, value)] = options.items()
    with pytest.raises(UsageError, match=f"^{name} is True or False, not {value!r}: {name}=True$"):
        IPyGPULogger(**options)


def test_a_cell_is_reported_to_the_byte_on_the_gpu(run, logger, capsys):
    with simulate("24GiB"):
        run("logger.start()")
        capsys.readouterr()
        run(
            "kept = torch.empty(64 * MB, dtype=torch.uint8, device='cuda')\n"
            "blip = kept.add(1).add(1).numel(); del blip"
        )
        lines = capsys.readouterr().out.splitlines()
        assert re.fullmatch(
            r"RAM: Consumed Peaked  Used Total in \d+\.\d{3}s \(In \[2\]\)", lines[0]
        )
        used = logger.data.gpu_mem_used
        assert lines[2] == f"GPU:       64    128    {used:5.0f} MB"
        assert logger.reading.gpu.consumed == 64 * MB
        assert logger.reading.gpu.above_end == 128 * MB
        assert logger.reading.number == 2
        run("del kept")
        assert logger.reading.gpu.consumed == -64 * MB
        logger.stop()


def test_data_unpacks_in_this_order_and_has_names(run, logger):
    assert logger.data == Data(0, 0, 0, 0, 0, 0, 0.0)
    run("logger.start()")
    run("blob = bytearray(50 * MB)")
    data = logger.data
    assert Data._fields == (
        "gen_mem_used_delta",
        "gen_mem_peaked",
        "gen_mem_used",
        "gpu_mem_used_delta",
        "gpu_mem_peaked",
        "gpu_mem_used",
        "time_delta",
    )
    assert 49 <= data.gen_mem_used_delta <= 51
    assert data.cpu == data[:3]
    assert data.gpu == data[3:6] == (0, 0, 0)
    assert data.time.time_delta == data.time_delta > 0
    assert data.cpu.used_total == data.gen_mem_used > 50


def test_a_blip_within_one_statement_is_reported_to_a_megabyte(run, logger, capsys):
    run("logger.start()")
    run("len(bytearray(300 * MB))")
    assert abs(logger.reading.host.above_end - 300 * MB) <= MB
    gen = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Gen:")][-1]
    assert re.fullmatch(r"Gen:        0    (299|300|301)    [ \d]{5} MB", gen)


def test_levels_of_cells_have_their_own_numbers(run, logger, capsys):
    run("logger.start()")
    before = capsys.readouterr().out.count("RAM:")
    run("%%capture out\nblob = bytearray(40 * MB)")
    printed = capsys.readouterr().out
    assert printed.count("RAM:") == before == 1
    assert 39 <= logger.data.gen_mem_used_delta <= 43
    run("print(out.stdout)")
    inner = capsys.readouterr().out.split("RAM:")[1]
    assert "(In [2])" in inner
    assert re.search(r"Gen:       (39|40|41)", inner)


def test_it_starts_once_stops_once_and_reports_its_own_first_cell(run, logger, capsys):
    run("same = logger.start().start() is logger")
    assert capsys.readouterr().out.count("RAM:") == 1
    run("logger.stop(); logger.stop()")
    run("x = 1")
    assert capsys.readouterr().out == ""
    run("logger.start()")
    run("def")
    run("1 / 0")
    assert capsys.readouterr().out.count("RAM:") == 3


def test_a_cell_that_is_run_again_does_not_double_the_reports(shell, run, logger, capsys):
    run("first = logger.start()")
    shell.user_ns["again"] = IPyGPULogger()
    shell.user_ns["other"] = IPyGPULogger(compact=True)
    run("again.start(); other.start()")
    capsys.readouterr()
    run("x = 1")
    printed = capsys.readouterr().out
    assert printed.count("RAM:") == 1
    assert printed.count("(Consumed/Peaked/Used Total)") == 1
    run("other.stop(); again.stop()")
    capsys.readouterr()
    run("x = 1")
    assert capsys.readouterr().out == ""


def test_it_is_shown_as_it_was_made():
    assert repr(IPyGPULogger(compact=True)) == "<IPyGPULogger(compact=True, gc_collect=True): off>"


def test_what_another_listener_does_at_the_end_of_a_cell_is_not_its_time(
    shell, run, logger, monkeypatch
):
    passed = [0]
    for module in (cell_events, cell_measurement):
        monkeypatch.setattr(module, "perf_counter", lambda: perf_counter() + passed[0])

    class Slow:
        def cell_began(self, cell, /):
            pass

        def cell_ended(self, cell, result, /):
            passed[0] += 1000

    slow = Slow()
    run("logger.start()")
    cell_events.cell_events(shell).add(slow)  # told in the reverse order, before the logger
    run("x = 1")
    cell_events.cell_events(shell).remove(slow)
    assert 0 < logger.data.time_delta < 1000


def test_garbage_is_collected_unless_one_looks_for_it(shell, run, logger):
    cycle = "class Loop: pass\nloop = Loop(); loop.own = loop; loop.blob = bytearray(60 * MB)"
    run("logger.start()")
    run(cycle)
    run("del loop")
    assert logger.data.gen_mem_used_delta <= -58
    logger.stop()
    shell.user_ns["logger"] = lazy = IPyGPULogger(gc_collect=False)
    import gc

    gc.disable()
    try:
        run("logger.start()")
        run(cycle)
        run("del loop")
        assert abs(lazy.data.gen_mem_used_delta) <= 1
    finally:
        gc.enable()
        lazy.stop()
        gc.collect()


def test_the_allocators_cache_is_emptied_before_a_snapshot(run, logger):
    with simulate("24GiB"):
        run("logger.start()")
        run("torch.empty(64 * MB, dtype=torch.uint8, device='cuda').numel()")
        assert torch.cuda.memory_reserved() == 0
        logger.stop()


def test_a_simulation_that_begins_or_ends_in_a_cell_breaks_no_report(shell, run, logger, capsys):
    shell.user_ns["simulation"] = simulate("24GiB")
    run("logger.start()")
    assert run("machine = simulation.__enter__(); torch.ones(1).cuda()").success
    assert run("kept = torch.ones(MB).cuda()").success
    assert logger.reading.gpu.consumed == 4 * MB
    assert run("simulation.__exit__()").success
    assert logger.reading.gpu == Usage(0, 0, 0)
    assert "failed" not in capsys.readouterr().err


def test_no_thread_watches(shell, run, logger):
    before = threading.active_count()
    run("logger.start()")
    run("import threading; counted = threading.active_count()")
    assert threading.active_count() == before
    assert shell.user_ns["counted"] == before
    logger.stop()


def test_an_empty_cell_costs_less_than_five_milliseconds(shell, run, logger, capsys):
    def seconds() -> float:
        times = []
        for _ in range(15):
            began = perf_counter()
            run("pass")
            times.append(perf_counter() - began)
        return min(times)

    plain = seconds()
    run("logger.start()")
    logged = seconds()
    assert logged - plain < 0.005


def test_outside_ipython_it_says_what_is_needed():
    with pytest.raises(UsageError, match="needs IPython"):
        IPyGPULogger().start()


def test_a_line_adds_up_although_the_allocator_takes_whole_segments(run, logger):
    with simulate("24GiB"):
        run("logger.start()")
        run("first = torch.empty(MB, dtype=torch.uint8, device='cuda')")
        before = logger.reading.gpu.used
        run("second = torch.empty(4 * MB, dtype=torch.uint8, device='cuda')")
        assert torch.cuda.memory_reserved() >= 20 * MB
        assert logger.reading.gpu.used - before == logger.reading.gpu.consumed == 4 * MB
        run("del first, second")
        logger.stop()


@pytest.mark.knows_simulation("the host holds the tensors of simulated GPUs")
def test_a_line_says_once_that_the_host_holds_the_tensors_of_simulated_gpus(run, logger, capsys):
    told = "Gen contains the tensors of the simulated GPUs\n"
    run("logger.start()")
    with simulate("24GiB", compute=False):
        run("kept = torch.empty(MB, device='cuda')")
    with simulate("24GiB"):
        run("pass")
        assert told not in capsys.readouterr().out
        run("kept = torch.empty(MB, device='cuda')")
        assert capsys.readouterr().out.endswith(told)
        run("other = torch.empty(MB, device='cuda')")
        assert told not in capsys.readouterr().out
        logger.stop()
    run("del kept, other")
